"""The reliability and security pages name an existing test for each fault, invariant and threat."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = "".join((ROOT / "docs" / "explanation" / name).read_text() for name in ("reliability.md", "security.md"))
ROWS = dict(re.findall(r"^\| ([FIT]\d+) \| (.*)$", PAGES, re.MULTILINE))
NAMED = sorted(set(re.findall(r"`(tests/[^`]+\.py)::(\w+)`", PAGES)))
KINDS = {"F": 36, "I": 36, "T": 28}


@pytest.mark.parametrize("name", [f"{kind}{number}" for kind, count in KINDS.items() for number in range(1, count + 1)])
def test_each_has_a_row_that_names_a_test(name: str) -> None:
    assert "::test_" in ROWS.get(name, ""), f"no page mentions {name}"


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_cited_test_exists(file: str, test: str) -> None:
    path = ROOT / file
    assert path.is_file(), file
    functions = ast.walk(ast.parse(path.read_text()))
    assert test in {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
