"""Scripts and templates follow the content security policy: no markup from strings, no inline code, no eval.

Numbers and times are formatted in the page's language by one module (`draw.js`), not in the browser's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "static").rglob("*.js"))
TEMPLATES = sorted([*(ROOT / "templates").rglob("*.html"), *ROOT.glob("hetsched/*/templates/**/*.html")])
MARKUP = re.compile(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTMLUnsafe")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_markup_and_no_code_from_strings(script: Path) -> None:
    assert not MARKUP.search(script.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_figures_and_times_are_in_the_language_of_the_page(script: Path) -> None:
    text = script.read_text()
    assert not re.search(r"\.toLocale\w*String\(", text)
    assert "DateTimeFormat" not in text or script.name == "draw.js"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_template_has_no_inline_or_unescaped_code(template: Path) -> None:
    text = template.read_text()
    assert not re.search(r"\sstyle=|\son(?!e=)[a-z]+=|javascript:", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\|\s*safe\b|autoescape off|mark_safe", text)


def test_pages_load_no_external_resources() -> None:
    for path in [*SCRIPTS, *TEMPLATES, *(ROOT / "static").rglob("*.css")]:
        foreign = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
        assert [address for address in foreign if "www.w3.org" not in address] == [], path
