"""The Chinese audit trail: kinds, names of details, reasons and changes are translated, codes are not.

The kinds and the names of details are collected from the source, where entries are recorded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.test import Client
from django.utils import translation

from hetsched.access.tokens import create_token
from hetsched.contracts.message import Message, verbatim
from hetsched.inventory.actions import cordon, set_default_policy
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import cancel
from tests.builders import a_pod
from tests.pages.reading import main_of
from tests.situations import ALICE, submitted
from web.pages.account.audit import changed

ROOT = Path(__file__).resolve().parents[2]
APPS = ("access", "inventory", "journal", "placement", "policies", "project")
SOURCES = [path for app in APPS for path in sorted((ROOT / "hetsched" / app).rglob("*.py"))]
RECORDS = {"audit", "_audit", "record"}
NAMED_DETAILS = {"details", "about"}


def names_of_details() -> Iterator[str]:
    """Yield the keys of the details that are recorded with a reason."""
    for path in SOURCES:
        text = path.read_text()
        if "audit" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                values = [keyword.value for keyword in node.keywords if keyword.arg == "details"]
                values += node.args if isinstance(node.func, ast.Name) and node.func.id in RECORDS else []
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in NAMED_DETAILS:
                values = [node.value]
            for value in values:
                yield from (
                    str(key) for inner in ast.walk(value) if isinstance(inner, ast.Dict) for key in _keys(inner)
                )


def _keys(found: ast.Dict) -> Iterator[object]:
    return (key.value for key in found.keys if isinstance(key, ast.Constant))


def kinds() -> set[str]:
    """Return the kinds of objects in entries: named ones, and those of rows that are passed themselves."""
    named = r"""(?:obj=|about = |audited_as = )\(?"([a-z-]+)\""""
    found = {kind for path in SOURCES for kind in re.findall(named, path.read_text())}
    rows = {"cluster", "node", "policy", "policyrevision", "token", "workload", "hold"}
    assert rows <= {model._meta.model_name for model in apps.get_models()}
    return found | rows


def test_every_kind_and_detail_name_is_translated() -> None:
    names = set(names_of_details()) | {"mostPriority", "submitsPerMinute", "quota", "true", "false"}
    assert len(names) > 40
    assert len(kinds()) > 15
    with translation.override("zh-hans"):
        words = {(context, word) for context, all_ in (("detail", names), ("kind", kinds())) for word in all_}
        silent = {pair for pair in words if translation.pgettext(*pair) == pair[1]}
    assert silent == set()


@pytest.mark.parametrize(
    ("details", "english", "said"),
    [
        ({"nodes": 48, "running": 82, "pending": 0}, "nodes 48; running 82; pending 0", "节点 48；运行中 82；等待中 0"),
        ({"before": True, "after": False}, "true → false", "是 → 否"),
        (
            {"expected": Message("on {node}", node="n1"), "got": verbatim("the node is cordoned")},
            "expected on n1; got the node is cordoned",
            "预期 在 n1 上；实际 the node is cordoned",
        ),
        ({"before": None, "after": ["a"]}, '– → ["a"]', '– → ["a"]'),
        ({"unknown-field": 1}, "unknown-field 1", "unknown-field 1"),
    ],
    ids=["counts", "flags", "messages", "lists", "unknown"],
)
def test_changes_are_in_the_language_of_the_reader(details: dict[str, object], english: str, said: str) -> None:
    with translation.override("en"):
        assert changed(details) == english
    with translation.override("zh-hans"):
        assert changed(details) == said


def test_codes_of_entries_are_not_translated(browsing: Callable[..., Client], cluster: Cluster) -> None:
    cordon(cluster, "n1", actor=ALICE, reason="fan & noise")
    set_default_policy(cluster, "binpack", actor=ALICE, reason="-")
    cancel(submitted(cluster, a_pod("p")), actor=ALICE, reason="-")
    create_token(role="viewer", name="Grafana")
    page = browsing(is_superuser=True).get("/audit/", headers={"accept-language": "zh-CN"}).content.decode()
    shown = " ".join(re.sub(r"<[^>]+>", " ", main_of(page)).split())
    assert "alice operator node.cordon fleet/n1 节点 fan &amp; noise" in shown
    assert "cluster.policy fleet 集群 - hetsched → binpack" in shown
    assert "hetsched 策略 随产品提供" in shown
    assert "命令行 token.create" in shown
    assert "名称 Grafana；角色 viewer" in shown
