"""Choose the path of each page in the site.

An index page README.md becomes index.html: a forge shows README.md for a folder, and a web server shows index.html. The
folder `docs` becomes the root of the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.search import js_index

INDEX = "README"


def published(docname: str) -> str:
    """Return the path of a page in the site, without its suffix."""
    folder, _, name = docname.removeprefix("docs/").rpartition("/")
    return f"{folder}/{'index' if name == INDEX else name}".lstrip("/")


class SearchIndex:
    """Format of the search index: Sphinx's own, with the paths of the site."""

    def dump(self, data: dict[str, Any], file: TextIO) -> None:
        js_index.dump({**data, "docnames": [published(name) for name in data["docnames"]]}, file)

    def load(self, file: TextIO) -> dict[str, Any]:
        raise ValueError("each build indexes all pages")


class SiteBuilder(StandaloneHTMLBuilder):
    """HTML builder that applies `published` to files, links and the search index."""

    name = "html"
    indexer_format = SearchIndex()

    def get_output_path(self, page_name: str, /) -> Path:
        return super().get_output_path(published(page_name))

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        return super().get_target_uri(published(docname), typ)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_builder(SiteBuilder, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
