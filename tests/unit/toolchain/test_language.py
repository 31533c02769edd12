"""Refused words in the text of the project (pages, documentation, comments, docstrings) and in names of code and tests.

Names in code spans, identifiers and the string literals of tests are data, not text. Migrations and the changelog's
released sections are left out.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REFUSED = re.compile(
    r"(?<![\w`./-])(whoever|whomever|nobody|somebody|anew|in vain|thereof|wherein|told|tells|telling|hears|hearing"
    r"|stands for|stand by itself|come true|has leave|have leave|gives way|give way|housed|fate|veil|speakers"
    r"|believing|doubting|ruling|weighing|yielding|rooming|standing|handing|mend|beside it)(?![\w`=(.-]*[`=(])\b",
    re.IGNORECASE,
)
REFUSED_IN_NAMES = re.compile(
    rf"{REFUSED.pattern}|\b(anybody|tell|hear|heard|stands?|believed?|beside|mended|fates)\b", re.IGNORECASE
)
# Words of a sentence, which no noun phrase has.
_SENTENCE = re.compile(
    r"\b(a|an|the|is|are|was|were|has|have|may|must|that|who|whom|what|it|its|they|not|no|every|says|gets|goes|comes)\b"
)
_LONGEST_NAME = 5
_LONGEST_TEST_NAME = 70
_LEFT = {"test_chinese_is_complete"}  # scripts outside the repository run this file by path
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
REFUSED_NAMES = frozenset(
    [
        "whoever",
        "whomever",
        "nobody",
        "somebody",
        "anew",
        "vain",
        "beside",
        "thereof",
        "wherein",
        "tell",
        "told",
        "tells",
        "telling",
        "hear",
        "hears",
        "hearing",
        "heard",
        "housed",
        "fate",
        "fates",
        "veil",
        "speaker",
        "speakers",
        "believing",
        "doubting",
        "ruling",
        "weighing",
        "yielding",
        "rooming",
        "standing",
        "standings",
        "handing",
        "mend",
        "everybody",
        "asker",
        "askers",
        "weighed",
    ]
)
LEFT_NAMES = {
    "hetsched/adapters/oci/archive_reader.py: tell",  # of Python's file protocol
    "hetsched/client/documents.py: standing",  # field of the queue's JSON document
    "web/api/workloads/queue.py: standing",  # the same, and parameter of GET queue/
    "web/pages/workloads/queue.py: standing",  # parameter of the queue page's address
    "web/api/nodes/facts/source_reports.py: heard_at",  # field `heardAt` of the agent's JSON document
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_NO_CODE = re.compile(r"(?m)^ *//.*$|\"(?:[^\"\\\n]|\\.)*\"")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
_CODE_SPAN = re.compile(r"``.*?``|`[^`]*`|```.*?```|\{%.*?%\}|\{\{.*?\}\}|<[a-z/][^>]*>", re.DOTALL)


def text_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file, with its line."""
    source = path.read_text()
    if path.suffix != ".py":
        yield 1, source
        return
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        docstring = token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.NL}
        if token.type == tokenize.COMMENT or docstring:
            yield token.start[0], token.string
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            before = token.type


def refused(path: Path) -> list[str]:
    """Return the refused words of a file with their lines."""
    found: list[str] = []
    if REFUSED.search(path.read_text()) is None:
        return found  # most files, which need not be tokenized
    for first, text in text_of(path):
        plain = _CODE_SPAN.sub(lambda span: "\n" * span.group().count("\n"), text)
        for match in REFUSED.finditer(plain):
            line = first + plain.count("\n", 0, match.start())
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    return found


def names_of(path: Path) -> Iterator[str]:
    """Yield the names of a module: its own, and those of classes, functions, variables, parameters and attributes."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name


def script_names(source: str) -> Iterator[str]:
    """Yield the identifiers of a script, without its comments and string literals."""
    yield from _IDENTIFIER.findall(_NO_CODE.sub(" ", source))


def has_refused_word(name: str) -> bool:
    return not REFUSED_NAMES.isdisjoint(word.lower() for word in _WORD.findall(name))


def _files() -> list[Path]:
    patterns = ("README.md", "SECURITY.md", "docs/**/*.md", "templates/**/*.html", "deploy/**/*.md")
    packages = ("hetsched/**/*.py", "web/**/*.py", "workers/**/*.py")
    return sorted(
        path
        for pattern in (*patterns, *packages)
        for path in ROOT.glob(pattern)
        if "migrations" not in path.parts and "assets" not in path.parts
    )


def _test_modules() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def test_no_text_contains_a_refused_word() -> None:
    assert [line for path in (*_files(), *_test_modules()) for line in refused(path)] == []


def _test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def _plain(name: str) -> str:
    """Return the name of a test as words; the term "what-if" is one."""
    return name.removeprefix("test_").replace("what_if", "whatif").replace("_", " ")


def test_no_test_name_contains_a_refused_word() -> None:
    names = {path: [path.stem, *_TEST.findall(path.read_text())] for path in _test_files()}
    found = [
        (path.name, name) for path, many in names.items() for name in many if REFUSED_IN_NAMES.search(_plain(name))
    ]
    assert found == []


def test_test_names_are_short_and_start_without_an_article() -> None:
    names = {name for path in _test_files() for name in _TEST.findall(path.read_text())}
    assert [name for name in names if len(name) > _LONGEST_TEST_NAME or re.match("test_(a|an|the)_", name)] == []


def test_test_files_are_named_by_noun_phrases() -> None:
    names = {path.stem: _plain(path.stem) for path in _test_files() if path.stem not in _LEFT}
    assert [stem for stem, name in names.items() if len(name.split()) > _LONGEST_NAME or _SENTENCE.search(name)] == []


def test_names_of_test_files_are_unique() -> None:
    """The documentation cites some of them without their folder."""
    stems = Counter(path.stem for path in _test_files())
    assert [stem for stem, count in stems.items() if count > 1] == []


def test_no_name_of_product_code_contains_a_refused_word() -> None:
    modules = [path for path in _files() if path.suffix == ".py" and not path.stem.endswith("_pb2")]
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*modules, ROOT / "dev.py", ROOT / "requirements" / "installer.py")
        for name in names_of(path)
        if has_refused_word(name)
    }
    assert named == LEFT_NAMES


def test_no_name_in_tests_contains_a_refused_word() -> None:
    modules = _test_modules()
    found = {(path.name, name) for path in modules for name in names_of(path) if has_refused_word(name)}
    assert (len(modules) > 0, found) == (True, set())


def test_no_identifier_of_a_script_contains_a_refused_word() -> None:
    scripts = sorted((ROOT / "static" / "js").glob("*.js"))
    found = {(path.name, name) for path in scripts for name in script_names(path.read_text()) if has_refused_word(name)}
    assert (len(scripts) > 0, found) == (True, set())


@pytest.mark.parametrize(
    "source",
    [
        "told = 1\n",
        "def read(told): ...\n",
        "def read(*, told_at=0): ...\n",
        "self.heard = {}\n",
        "read(tell=print)\n",
        "for told in rows: ...\n",
        "text = f'{told}'\n",
        "class Told: ...\n",
    ],
)
def test_refused_names_of_variables_parameters_and_attributes_are_found(tmp_path: Path, source: str) -> None:
    path = tmp_path / "one.py"
    path.write_text(source)
    assert [name for name in names_of(path) if has_refused_word(name)] != []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("const told = 1;", ["told"]),
        ("function tellAge() {}", ["tellAge"]),
        ("this.heardAt = 0;", ["heardAt"]),
        ('const SAID = new Set(["said", "told"]);', []),
        ("// what is told\n", []),
    ],
)
def test_refused_identifiers_of_scripts_are_found(source: str, names: list[str]) -> None:
    assert [name for name in script_names(source) if has_refused_word(name)] == names


@pytest.mark.parametrize(
    ("name", "refused"),
    [("PolicyTold", True), ("_tell_later", True), ("by_fate", True), ("Understanding", False), ("hearth", False)],
)
def test_refused_words_are_found_in_names(name: str, refused: bool) -> None:
    assert has_refused_word(name) is refused


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""What is told counts."""\n', ["told"]),
        ("x = 1  # nobody asks\n", ["nobody"]),
        ('told = "told"\n', []),
        ('"""Return `told`."""\n', []),
    ],
)
def test_refused_word_is_found_in_text_only(tmp_path: Path, source: str, words: list[str]) -> None:
    path = tmp_path / "one.py"
    path.write_text(source)
    plain = [_CODE_SPAN.sub("", text) for _, text in text_of(path)]
    assert [match.group() for text in plain for match in REFUSED.finditer(text)] == words
