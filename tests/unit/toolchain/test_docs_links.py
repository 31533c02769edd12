"""Relative links in the documentation, with their anchors, and test files that it cites."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "deploy/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TESTS = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
_CITED = re.compile(r"(?:tests/[\w/]*)?\btest_\w+\.py\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and GitLab form them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_cited_test_files_exist() -> None:
    """A test is cited by its path, or by its name alone: names are unique."""
    known = TESTS | {path.rpartition("/")[2] for path in TESTS}
    cited = {(page.name, file) for page in PAGES for file in _CITED.findall(page.read_text(encoding="utf-8"))}
    assert sorted(one for one in cited if one[1] not in known) == []
