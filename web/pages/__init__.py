"""Lives here: the console: one file a page, which reads rows and hands them to a template.

May import: what `web` may, and the documents of `web.api`.
Never: write a row; a page asks REST for that, from the browser.
"""
