"""Form the navigation of the site from the links of the index pages.

The index page of the documentation has one section for each group of pages. An index page below it contributes its
links to pages of its own folder. A page that no index page links to is reported as a warning by Sphinx, and a page that
several links would add twice is reported here.
"""

from __future__ import annotations

import posixpath
import re

from index_pages import INDEX
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

_SECTION = re.compile(r"^## ", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w./-]+)\.md\)")
_LOGGER = logging.getLogger(__name__)


def add_navigation(app: Sphinx, docname: str, content: list[str]) -> None:
    """Append a hidden table of contents for each section of an index page (event `source-read`)."""
    folder, _, name = docname.rpartition("/")
    text = content[0]
    if docname == app.config.root_doc:
        sections = [(section.partition("\n")[0].strip(), section) for section in _SECTION.split(text)[1:]]
        content[0] += "".join(_tree(caption, _pages(section, folder)) for caption, section in sections)
    elif name == INDEX:
        content[0] += _tree("", [page for page in _pages(text, folder) if page.startswith(f"{folder}/")])


def _pages(text: str, folder: str) -> list[str]:
    """Return the pages to which a text in this folder links, each once."""
    links = (posixpath.normpath(posixpath.join(folder, link)) for link in _LINK.findall(text))
    return list(dict.fromkeys(links))


def _tree(caption: str, pages: list[str]) -> str:
    if not pages:
        return ""
    options = [f":caption: {caption}"] if caption else []
    return "\n".join(["", "", "```{toctree}", ":hidden:", *options, "", *(f"/{page}" for page in pages), "```", ""])


def check_pages_once(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn about pages with more than one place in the navigation (event `env-check-consistency`)."""
    places = [page for pages in env.toctree_includes.values() for page in pages]
    for page in sorted({page for page in places if places.count(page) > 1}):
        _LOGGER.warning("the page has more than one place in the navigation", location=page)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_navigation)
    app.connect("env-check-consistency", check_pages_once)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
