"""Every message template of the product has a Chinese form, which is filled from the parameters."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from django.utils import translation

from hetsched.contracts.message import Message, format_pods, joined
from tests.pages.test_chinese_is_complete import written
from web.translation import translate

ROOT = Path(__file__).resolve().parents[2]
MODULES = [path for name in ("hetsched", "web", "workers") for path in (ROOT / name).rglob("*.py")]
# Other texts with placeholders in modules with messages.
OTHER = {"#/components/schemas/{name}", "#/$defs/{name}", " ", ": {detail}", "{text}"}
_HOLE = re.compile(r"\{[a-z]\w*\}")


def templates() -> Iterator[str]:
    """Yield the texts given to Message, and in modules with messages every literal with placeholders."""
    for path in MODULES:
        source = path.read_text()
        if "message import" not in source and path.name != "message.py":
            continue
        tree = ast.parse(source)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Message", "joined"):
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value:
                    yield str(first.value)
            elif isinstance(node, ast.Constant) and id(node) not in inside and _is_template(node.value):
                yield str(node.value)


def literals() -> Iterator[str]:
    """Yield every literal text of the product."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def cut(found: Iterable[str]) -> set[str]:
    """Return the templates that redaction leaves of those about a pod."""
    return {text.removesuffix(": {detail}") for text in found if "{pod}" in text or "{pods}" in text}


def composed_templates(code: str) -> int:
    """Return how many messages have a composed text as their template."""
    calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.args)
    named = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Message")
    return sum(isinstance(call.args[0], ast.JoinedStr | ast.BinOp) for call in named)


def _is_template(value: object) -> bool:
    return isinstance(value, str) and _HOLE.search(value) is not None and "\n" not in value


def test_every_template_has_a_chinese_form() -> None:
    with (ROOT / "locale/zh_Hans/LC_MESSAGES/django.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    wanted = set(templates()) - OTHER
    assert "Insufficient {resource}: {amount} requested" in wanted
    assert len(wanted) > 200
    assert {text for text in wanted | cut(wanted) if catalogue.pgettext("message", text) == text} == set()


def test_catalogue_has_no_unused_messages() -> None:
    found = set(literals())
    entries = {text for context, text, _translation in written() if context == "message"}
    assert len(entries) > 800
    assert entries - found - cut(found) == set()


def test_no_template_is_composed() -> None:
    assert composed_templates("Message(f'{x} fits', x=1)\nMessage('a' + x)\nMessage(x)\nMessage('a', b=f'{c}')") == 2
    sources = {path.name: path.read_text() for path in MODULES}
    found = {name: composed_templates(source) for name, source in sources.items() if "Message(" in source}
    assert {name: count for name, count in found.items() if count} == {}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            Message(
                "{pod} does not fit now: {detail}",
                pod="a/b",
                detail=Message(
                    "{n} of {m} nodes fit ({each})",
                    n=0,
                    m=2,
                    each=joined("; ", [Message("{count}: {detail}", count=2, detail=Message("the node is cordoned"))]),
                ),
            ),
            "a/b 目前放不下：2 个节点中有 0 个可行（2 个：节点已封锁）",
        ),
        (Message("the node lacks {names}", names=joined(", ", ["v", "zba"])), "节点缺少 v、zba"),
        (
            Message(
                "{detail}, replacing {pods}", detail=Message("placed on {node}", node="n"), pods=format_pods(["a/x"])
            ),
            "放置到 n，取代 a/x",
        ),
        (Message("the taint {taint} is not tolerated", taint="the node is cordoned"), None),
    ],
)
def test_message_is_rendered_from_its_parameters(message: Message, shown: str | None) -> None:
    with translation.override("zh-hans"):
        text = translate(message)
    assert text == shown if shown else "the node is cordoned" in text
    with translation.override("en"):
        assert translate(message) == message
