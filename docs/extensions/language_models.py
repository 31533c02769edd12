"""Write the files of the site that language models read: llms.txt, llms-full.txt and the Markdown source of each page.

The form of `llms.txt` is that of https://llmstxt.org: title, summary, and one section of links for each group of the
navigation. A link leads to the Markdown source and has the first sentence of the page as its note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import toctree
from sphinx.application import Sphinx

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def write_files(app: Sphinx, exception: Exception | None) -> None:
    """Write the files after a successful build of the site (event `build-finished`)."""
    if exception is not None or app.builder.name != "html":
        return
    out, source = Path(app.outdir), Path(app.srcdir)
    root = app.config.root_doc
    guide = [f"# {app.config.project}", "", f"> {_summary(app, root)}", ""]
    full = []
    for caption, pages in _groups(app, root):
        guide += [f"## {caption}", ""]
        for page in pages:
            text = (source / f"{page}.md").read_text(encoding="utf-8")
            file = f"{page}.md".removeprefix("docs/")
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (out / file).write_text(text, encoding="utf-8")
            full.append(f"<!-- {file} -->\n\n{text}")
            note = _summary(app, page)
            guide.append(f"- [{_title(app, page)}]({app.config.html_baseurl}{file})" + (f": {note}" if note else ""))
        guide.append("")
    (out / "llms.txt").write_text("\n".join(guide), encoding="utf-8")
    (out / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")


def _groups(app: Sphinx, page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the groups of the navigation, each with its pages and their subpages."""
    for tree in app.env.get_doctree(page).findall(toctree):
        pages = [below for _, entry in tree["entries"] for below in (entry, *_subpages(app, entry))]
        yield tree["caption"], pages


def _subpages(app: Sphinx, page: str) -> Iterator[str]:
    for below in app.env.toctree_includes.get(page, ()):
        yield below
        yield from _subpages(app, below)


def _title(app: Sphinx, page: str) -> str:
    return app.env.titles[page].astext()


def _summary(app: Sphinx, page: str) -> str:
    """Return the first sentence of the first paragraph of a page; tables and lists are skipped."""
    for paragraph in app.env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            return _SENTENCE_END.split(" ".join(paragraph.astext().split()))[0]
    return ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
