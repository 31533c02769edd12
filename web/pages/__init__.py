"""The console: one module per page; a page reads rows and renders a template.

May import: everything that `web` may, and the documents of `web.api`.
Never: write rows; the browser writes through REST.
"""
