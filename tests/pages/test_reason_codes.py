"""Every reason code of the engine renders in English and in Chinese from its template and parameters."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from django.utils import translation

from hetsched.contracts.message import Message
from web.translation import translate

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for name in ("engine", "scheduling") for path in (ROOT / "hetsched" / name).rglob("*.py")]
MAKERS = {"Refusal", "Reason", "_refused", "_refusal"}
_CODE = re.compile(r"([A-Z][a-z]+){1,6}|[A-Z]\w+")
_HOLE = re.compile(r"\{(\w+)\}")


def templates_by_code() -> dict[str, set[str]]:
    """Return the templates of each reason code; a name is resolved to the messages assigned to it in the module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        text = path.read_text()
        if not any(f"{maker}(" in text for maker in MAKERS):
            continue
        tree = ast.parse(text)
        for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))):
            nodes = [*ast.walk(scope)]
            names: dict[str, set[str]] = defaultdict(set)
            for node in nodes:
                if isinstance(node, ast.Assign):
                    for target in (target for target in node.targets if isinstance(target, ast.Name)):
                        names[target.id] |= _templates(node.value, {})
            for node in nodes:
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                    code = node.args[0] if node.args else None
                    if isinstance(code, ast.Constant) and _CODE.fullmatch(str(code.value)):
                        rest: list[ast.expr] = node.args[1:]
                        found[str(code.value)] |= {text for one in rest for text in _templates(one, names)}
    return found


def _templates(node: ast.AST, names: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Message":
            found |= {str(arg.value) for arg in part.args[:1] if isinstance(arg, ast.Constant)}
            found |= {text for arg in part.args[:1] if isinstance(arg, ast.Name) for text in names.get(arg.id, ())}
        elif isinstance(part, ast.Name):
            found |= names.get(part.id, set())
    return found


CODES = templates_by_code()


def test_codes_of_the_engine_are_found() -> None:
    assert {"InsufficientResource", "NodeNotReady", "GangTooSmall", "IsaMissingExtension"} <= CODES.keys()
    assert len([code for code, templates in CODES.items() if templates]) > 60
    assert CODES["NodeNotReady"] == {"the node is not Ready"}


@pytest.mark.parametrize("code", sorted(code for code, templates in CODES.items() if templates))
def test_reason_code_renders_in_both_languages(code: str) -> None:
    for template in CODES[code]:
        params = {name: f"<{name}>" for name in _HOLE.findall(template)}
        message = Message(template, **params)
        with translation.override("en"):
            assert translate(message) == _HOLE.sub(r"<\1>", template)
        with translation.override("zh-hans"):
            chinese = translate(message)
        assert re.search("[\u4e00-\u9fff]", chinese), template
        assert sorted(re.findall(r"<\w+>", chinese)) == sorted(params.values())
