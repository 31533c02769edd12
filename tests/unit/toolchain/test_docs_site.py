"""The documentation site: built from the pages of the repository without a warning and without other hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import dev

ROOT = Path(__file__).parents[3]
GROUPS = ["Tutorials", "How-to guides", "Reference", "Explanation", "Decisions", "Contributing"]
# Attributes with which a page loads a resource without an action of the reader.
LOADING = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "srcset"),
    ("form", "action"),
}


class Page(HTMLParser):
    """Links, resources, anchors and the navigation of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in LOADING and value:
                self.loaded.append(value)
            if (tag, name) == ("a", "href") and value:
                self.links.append(value)
            if name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `dev.py docs` does; a warning fails the build."""
    out = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, *dev.SPHINX, "-d", str(out / "doctrees"), ".", str(out / "html")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (build.returncode, build.stderr) == (0, "")
    return out / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(found) > 100
    return found


def test_pages_load_nothing_from_another_host(pages: dict[Path, Page], site: Path) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert {
        address for address in loaded if urlsplit(address).netloc or urlsplit(address).scheme not in ("", "data")
    } == set()
    styles = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []


def test_links_between_pages_resolve(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if urlsplit(link).scheme:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append((path.name, link))
    assert dead == []


def test_each_page_has_one_place_in_the_navigation(site: Path) -> None:
    """The guide for language models lists the navigation."""
    listed = re.findall(r"^- \[.+?\]\((\S+?)\)", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    expected = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert expected - set(listed) == set()
    assert set(listed) - expected == {"deploy/README.md", "SECURITY.md", "CHANGELOG.md"}


def test_navigation_has_the_groups(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<span class="caption-text">(.+?)</span>', home) == GROUPS


@pytest.mark.parametrize(
    ("word", "page"),
    [("containerd", "how-to/agent"), ("plugin", "reference/plugins/index"), ("drain", "how-to/submitting")],
)
def test_search_index_has_the_words_of_a_page(site: Path, word: str, page: str) -> None:
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
    found: list[int] = []
    for terms in (index["terms"], index["titleterms"]):
        number = terms.get(word, [])
        found += [number] if isinstance(number, int) else number
    names = {index["docnames"][number] for number in found}
    assert page in names
    assert [name for name in index["docnames"] if not (site / f"{name}.html").is_file()] == []


def test_guide_for_language_models_has_the_form_of_llmstxt_org(site: Path) -> None:
    guide = (site / "llms.txt").read_text(encoding="utf-8")
    assert guide.startswith("# hetsched\n\n> hetsched is a scheduler control plane for mixed Kubernetes fleets")
    assert re.findall(r"^## (.+)$", guide, re.MULTILINE) == GROUPS
    lines = [line for line in guide.splitlines() if line.startswith("- ")]
    assert [line for line in lines if not re.fullmatch(r"- \[.+?\]\(\S+\.md\)(: \S.*)?", line)] == []
    for file in re.findall(r"\]\((\S+\.md)\)", "\n".join(lines)):
        source = ROOT / "docs" / file if (ROOT / "docs" / file).is_file() else ROOT / file
        assert (site / file).read_bytes() == source.read_bytes()
    assert (site / "llms-full.txt").stat().st_size > 400_000


def test_rest_page_has_every_operation_and_object_of_the_document(pages: dict[Path, Page], site: Path) -> None:
    document = json.loads((site / "openapi.json").read_text(encoding="utf-8"))
    path = site / "reference" / "rest.html"
    text = path.read_text(encoding="utf-8")
    operations = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert {"GET /api/v1/nodes/", "POST /api/v1/workloads/"} <= operations
    shown = re.findall(r"<h3><code[^>]*>(.*?)</code>", text)
    assert {re.sub(r"<.*?>", "", heading) for heading in shown} == operations
    assert {f"rest-{name.lower()}" for name in document["components"]["schemas"]} - pages[path].anchors == set()
    assert len(document["components"]["schemas"]) > 200


def test_pod_lifecycle_is_a_picture_of_all_transitions(site: Path) -> None:
    source = (ROOT / "docs/reference/pod-lifecycle.md").read_text(encoding="utf-8")
    text = (site / "reference" / "pod-lifecycle.html").read_text(encoding="utf-8")
    (picture,) = re.findall(r'<svg class="states".*?</svg>', text, re.DOTALL)
    transitions = re.findall(r"^ +(\S+) --> (\S+)$", source, re.MULTILINE)
    states = {state for pair in transitions for state in pair} - {"[*]"}
    assert picture.count('marker-end="url(#arrow)"') == len(transitions) > 30
    assert picture.count("<text ") == len(states)
    assert "--&gt;" not in text


def test_dead_link_or_unplaced_state_fails_the_build(tmp_path: Path) -> None:
    """Prove that warnings are errors, with the configuration of the site and one page."""
    (tmp_path / "docs").mkdir()
    diagram = "```mermaid\nstateDiagram-v2\n    pending --> nowhere\n```\n"
    (tmp_path / "docs" / "README.md").write_text(f"# Title\n\n[dead](missing.md) [anchor](#missing)\n\n{diagram}")
    command = [sys.executable, *dev.SPHINX, ".", "out"]
    command[command.index("docs")] = str(ROOT / "docs")
    build = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert build.returncode == 1
    assert "missing" in build.stderr
    assert "states without a place in the diagram: nowhere" in build.stderr
    assert build.stderr.count("WARNING") == 3
