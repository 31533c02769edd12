"""Refused words in the text of the project: pages, documentation, comments and docstrings.

Names in code spans and identifiers are data, not text. Tests, migrations and the changelog's released sections are
left out.
"""

from __future__ import annotations

import io
import re
import tokenize
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
    found = []
    for first, text in text_of(path):
        plain = _CODE_SPAN.sub(lambda span: "\n" * span.group().count("\n"), text)
        for match in REFUSED.finditer(plain):
            line = first + plain.count("\n", 0, match.start())
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    return found


def _files() -> list[Path]:
    patterns = ("README.md", "SECURITY.md", "docs/**/*.md", "templates/**/*.html", "deploy/**/*.md")
    packages = ("hetsched/**/*.py", "web/**/*.py", "workers/**/*.py")
    return sorted(
        path
        for pattern in (*patterns, *packages)
        for path in ROOT.glob(pattern)
        if "migrations" not in path.parts and "assets" not in path.parts
    )


def test_no_text_contains_a_refused_word() -> None:
    assert [line for path in _files() for line in refused(path)] == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""What is told counts."""\n', ["told"]),
        ("x = 1  # nobody asks\n", ["nobody"]),
        ('told = "told"\n', []),
        ('"""Return `told`."""\n', []),
    ],
)
def test_a_refused_word_is_found_in_text_only(tmp_path: Path, source: str, words: list[str]) -> None:
    path = tmp_path / "one.py"
    path.write_text(source)
    plain = [_CODE_SPAN.sub("", text) for _, text in text_of(path)]
    assert [match.group() for text in plain for match in REFUSED.finditer(text)] == words
