"""Configuration of Sphinx for the documentation site, which `python3 dev.py docs` builds.

The pages are the Markdown files of this folder and some files of the repository to which they link; a forge also
renders them. The extensions add the navigation, the file name `index.html` of index pages, and the files for language
models. The site loads nothing from another host.
"""

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "hetsched"
author = "the hetsched maintainers"
language = "en"

extensions = ["myst_parser", "index_pages", "navigation", "language_models", "rest_reference", "state_diagrams"]
root_doc = "docs/README"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**", "deploy/README.md", "SECURITY.md", "CHANGELOG.md"]
# Sphinx does not search these folders.
exclude_patterns = [".*", "build", "hetsched", "locale", "static", "staticfiles", "templates", "tests", "var", "web"]
nitpicky = True

# Anchors of headings have the form of a forge, so that a link works in both.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "hetsched"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    # A diagram that `state_diagrams` does not draw is shown as text. The examples of REST requests are
    # not complete HTTP messages.
    for name in ("mermaid", "http"):
        app.add_lexer(name, TextLexer)
