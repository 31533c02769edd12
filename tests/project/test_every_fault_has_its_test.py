"""The page on reliability names, for each fault and each invariant, a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROWS = dict(re.findall(r"^\| ([FI]\d+) \| (.*)$", PAGE, re.MULTILINE))
NAMED = sorted(set(re.findall(r"`(tests/[^`]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize("name", [f"{kind}{number}" for kind in "FI" for number in range(1, 37)])
def test_each_has_a_row_that_names_a_test(name: str) -> None:
    assert "::test_" in ROWS.get(name, ""), f"docs/reliability.md says nothing of {name}"


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_what_is_named_is_there(file: str, test: str) -> None:
    path = ROOT / file
    assert path.is_file(), file
    functions = ast.walk(ast.parse(path.read_text()))
    assert test in {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
