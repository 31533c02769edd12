"""Chinese forms of messages from the engine: rejections, waits, parameters, policies.

Rejections and waits are messages with templates; `test_message_catalogue` compares the templates with the catalogue.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation

from hetsched.contracts.message import Message, format_pods, joined, verbatim
from hetsched.contracts.params import params_schema
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.registry import load_registry
from web.translation import translate

ROOT = Path(__file__).resolve().parents[2]
ENGINE = sorted((ROOT / "hetsched/engine").rglob("*.py"))


@pytest.fixture
def chinese() -> Iterator[None]:
    with translation.override("zh-hans"):
        yield


def is_text(node: ast.expr | None) -> bool:
    """Return whether an expression is a sentence without a template: a literal with a blank, or an f-string."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    )


def sentences_without_template(code: str) -> Iterator[str]:
    """Yield the plain texts of rejections, of waits and of variables called `message`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal":
            yield from (ast.unparse(arg) for arg in node.args[1:2] if is_text(arg))
        elif isinstance(node, ast.FunctionDef) and node.name == "waits":
            returned = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return))
            yield from (ast.unparse(one) for one in returned if one is not None and is_text(one))
        elif isinstance(node, ast.Assign) and is_text(node.value):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from (ast.unparse(node.value) for name in names if name == "message")


def test_every_refusal_and_wait_of_the_engine_is_a_message() -> None:
    assert {path.name: found for path in ENGINE if (found := [*sentences_without_template(path.read_text())])} == {}
    plain = 'message = f"a {b}"\nRefusal("Code", "no room")\ndef waits(self): return f"a {b}"'
    assert len([*sentences_without_template(plain)]) == 3


CORDONED = Message("the node is cordoned")
FREE = Message("a node with {names} free", names=joined(", ", ["cpu 32", "memory 32Gi"]))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            Message(
                "{pod} does not fit now: {detail}",
                pod="hpc/solver-1",
                detail=Message(
                    "{n} of {m} nodes fit ({each})",
                    n=0,
                    m=48,
                    each=joined(
                        "; ",
                        [
                            Message(
                                "{count}: {detail}",
                                count=20,
                                detail=Message(
                                    "the node runs {isa}, but the pod requires {need}", isa="x86", need="armv8.2-a"
                                ),
                            ),
                            Message(
                                "{count}: {detail}",
                                count=4,
                                detail=Message("the node lacks {names}", names=joined(", ", ["asimdrdm", "dcpop"])),
                            ),
                        ],
                    ),
                ),
            ),
            "hpc/solver-1 目前放不下：48 个节点中有 0 个可行"
            "（20 个：节点运行 x86，需要 armv8.2-a；4 个：节点缺少 asimdrdm、dcpop）",
        ),
        (
            joined(", or ", [Message("a node to be Ready and not cordoned"), FREE]),
            "有节点就绪且未被封锁，或有空闲 cpu 32、memory 32Gi 的节点",
        ),
        (
            Message(
                "{detail}, replacing {pods}",
                detail=Message(
                    "{pod} placed on {node} with {n}/1000 of GPU {card}, score {score}",
                    pod="ml/p",
                    node="t4-0",
                    n=250,
                    card=3,
                    score="57.2",
                ),
                pods=format_pods(["ml/a", "ml/b", "ml/c"], 1),
            ),
            "ml/p 放置到 t4-0，使用卡 3 的 250/1000，得分 57.2，取代 ml/a 及另外 2 个",
        ),
        (
            joined(
                "; ",
                [
                    Message(
                        "kubelet of {node} rejected {n} pods of this owner: {text}",
                        node="n1",
                        n=2,
                        text="UnexpectedAdmissionError",
                    ),
                    Message("the next attempt is at {time}", time="10:00"),
                ],
            ),
            "n1 的 kubelet 拒绝过此属主的 2 个 Pod：UnexpectedAdmissionError；10:00 再试",
        ),
        (
            Message(
                "gang {key} needs capacity for {n} members at the same time, but the cluster has capacity for at "
                "most {m}",
                key="ml/g",
                n=4,
                m=2,
            ),
            "Pod 组 ml/g 需要同时放下 4 个成员，而集群最多只能放 2 个",
        ),
        # Names of fields are messages too.
        (
            Message("{field} {was} -> {now}", field=Message("maxSkew over {key}", key="zone"), was=1, now=2),
            "zone 上的 maxSkew 1 → 2",
        ),
        (Message("remove {field} {text}", field=Message("host port"), text="80/TCP"), "去掉 主机端口 80/TCP"),
        # A text of another program is not translated, not even one that is an entry of the catalogue.
        (Message("no connection: {text}", text="the node is cordoned"), "无法连接：the node is cordoned"),
        (verbatim("the node is cordoned"), "the node is cordoned"),
        (joined("; ", [CORDONED, verbatim("its owner is on holiday")]), "节点已封锁；its owner is on holiday"),
        # Rows of earlier versions are translated as a whole or not at all.
        ("the node is cordoned", "节点已封锁"),
        ("the node is cordoned; the node is not Ready", "the node is cordoned; the node is not Ready"),
        ("", ""),
    ],
)
def test_message_is_translated(chinese: None, message: str, said: str) -> None:
    assert translate(message) == said


def test_english_texts_are_unchanged() -> None:
    with translation.override("en"):
        assert translate("the node is cordoned") == "the node is cordoned"


def test_every_parameter_and_choice_of_every_plugin_has_a_chinese_name(chinese: None) -> None:
    texts = {
        text
        for info in load_registry()
        for schema in params_schema(info.params).get("properties", {}).values()
        for text in (schema.get("title", ""), schema.get("description", ""), *map(str, schema.get("enum", ())))
        if text
    }
    assert len(texts) > 100
    assert {text for text in texts if translation.pgettext("parameter", text) == text} <= {"fp32", "cpu", "gpu"}


def test_every_policy_of_the_product_is_described_in_chinese(chinese: None) -> None:
    texts = {spec.description for spec in BUILTIN.values()}
    assert {text for text in texts if translation.pgettext("policy", text) == text} == set()
