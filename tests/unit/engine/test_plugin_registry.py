"""The plugin registry: one file adds a plugin; an invalid file is rejected by name."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine import plugins
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extension_points import POINTS
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import PluginError, Registry, load_registry
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import cluster

WithPlugin = Callable[..., Registry]

GREEN = '''
"""Prefer green nodes.

Rule: `bonus` for nodes whose label says so. Source: this test.
"""

from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.framework.registry import plugin


class GreenParams(Params, frozen=True):
    bonus: Annotated[int, msgspec.Meta(ge=0, le=100, title="Bonus", description="Score of a green node.")] = 60


@plugin("green", summary="Prefer green nodes.", params=GreenParams)
class Green:
    def pre_score(self, request, state):
        request.memo["green"] = state.label("colour")

    def score(self, request, nodes):
        ids, values = request.memo["green"]
        return np.where(nodes.pick(ids) == values.index.get("green", -2), float(self.params.bonus), 0.0)
'''


def test_module_in_the_plugin_folder_is_registered(with_plugin: WithPlugin) -> None:
    before = {info.name for info in load_registry()}
    registry = with_plugin(GREEN)
    assert {info.name for info in registry} - before == {"green"}
    [described] = [entry for entry in registry.describe() if entry["name"] == "green"]
    assert described["summary"] == "Prefer green nodes."
    assert described["points"] == ["pre-score", "score"]
    assert (described["reads"], described["scope"]) == ("load", "row")
    assert described["defaults"] == {"bonus": 60}
    bonus = described["params"]["properties"]["bonus"]
    assert (bonus["title"], bonus["minimum"], bonus["maximum"]) == ("Bonus", 0, 100)
    assert registry["green"].doc.startswith("Prefer green nodes.")


def test_new_plugin_is_used_with_parameters(with_plugin: WithPlugin) -> None:
    registry = with_plugin(GREEN)
    policy = compile_policy(PolicySpec("eco", (PluginUse("green", 2.0, {"bonus": 30}),)), registry)
    deciding = Scheduler(cluster([a_node("a"), a_node("b").labelled(colour="green")]), policy)
    outcome = deciding.schedule(a_pod().build())
    # total 2 * 30 over the weight 2 = 30
    assert (outcome.node, outcome.score) == ("b", 30.0)


def test_all_built_in_plugins_are_listed_in_name_order() -> None:
    registry = load_registry()
    names = [info.name for info in registry]
    assert names == sorted(names)
    for name in ("node-ready", "taints", "node-affinity", "pod-affinity", "topology-spread", "host-ports"):
        assert name in registry
    assert all(set(info.points) <= set(POINTS) for info in registry)
    assert len(registry) == len(registry.describe())


HEAD = "from hetsched.engine.framework.registry import plugin\n"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "@plugin('Bad_Name', summary='x')\nclass P:\n    def sort_key(self, pod): ...",
            "must consist of lower-case words",
        ),
        ("@plugin('idle', summary='x')\nclass P: ...", "implements no extension point"),
        (
            "@plugin('odd', summary='x')\nclass P:\n    def score(self, nodes, request): ...",
            r"score\(nodes, request\) should be score\(request, nodes\)",
        ),
        (
            "@plugin('odd', summary='x')\nclass P:\n    def permit(self, request, row): ...",
            r"permit\(request, row\) should be permit\(request, row, room\)",
        ),
        (
            "@plugin('mute', summary='x')\nclass P:\n    def filter(self, request, nodes): ...",
            "a filter must also have the method `refusals`",
        ),
        (
            "@plugin('greedy', summary='x')\nclass P:\n    def reserve(self, request, row, state): ...",
            "reserve and unreserve must be implemented together",
        ),
        (
            "from hetsched.contracts.params import Params\n"
            "class N(Params, frozen=True):\n    needed: int\n"
            "@plugin('bare', summary='x', params=N)\nclass P:\n    def sort_key(self, pod): ...",
            "every parameter needs a default",
        ),
        (
            "@plugin('odd', summary='x')\nclass P:\n    compiled_term = 'fast'\n"
            "    def score(self, request, nodes): ...",
            "compiled_term has type str",
        ),
        (
            "from hetsched.engine.framework.compiled_terms import LoopReserve\n"
            "@plugin('odd', summary='x')\nclass P:\n    compiled_reserve = LoopReserve.NOTHING\n"
            "    def score(self, request, nodes): ...",
            "compiled_reserve needs the extension point reserve",
        ),
        (
            "from hetsched.engine.framework.compiled_terms import CompiledTerm\n"
            "def formula(): ...\n"
            "@plugin('odd', summary='x')\nclass P:\n    compiled_term = CompiledTerm((formula,), formula)\n"
            "    def score(self, request, nodes): ...",
            "every formula must have the decorator loop_function",
        ),
        (
            "from hetsched.engine.framework.compiled_terms import CompiledTerm\n"
            "from hetsched.engine.framework.extension_points import Scope\n"
            "@plugin('odd', summary='x', scope=Scope.CLUSTER)\nclass P:\n    compiled_term = CompiledTerm((), print)\n"
            "    def score(self, request, nodes): ...",
            "formulas require scope ROW and reads LOAD",
        ),
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("def broken(:", "cannot be loaded: SyntaxError"),
    ],
)
def test_invalid_plugin_is_rejected_with_its_module(with_plugin: WithPlugin, source: str, complaint: str) -> None:
    with pytest.raises(PluginError, match=complaint) as caught:
        with_plugin(HEAD + source, "culprit")
    assert "hetsched.engine.plugins.culprit" in str(caught.value)


def test_names_are_unique(with_plugin: WithPlugin) -> None:
    taken = HEAD + "@plugin('taints', summary='x')\nclass P:\n    def sort_key(self, pod): ..."
    with pytest.raises(PluginError, match="'taints' is declared in both") as caught:
        with_plugin(taken, "twin")
    assert "hetsched.engine.plugins.constraints.taints" in str(caught.value)
    assert "hetsched.engine.plugins.twin" in str(caught.value)


def test_imported_plugin_is_not_registered_twice(with_plugin: WithPlugin) -> None:
    with_plugin("from hetsched.engine.plugins.constraints.taints import Taints")


def test_installed_packages_bring_plugins_by_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("elsewhere")
    exec(HEAD + "@plugin('foreign', summary='x')\nclass P:\n    def sort_key(self, pod): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    entry = importlib.metadata.EntryPoint("foreign", "elsewhere", "hetsched.plugins")
    monkeypatch.setattr("hetsched.engine.framework.registry._installed", lambda: (entry,))
    assert load_registry()["foreign"].source == "elsewhere"


def test_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("lost", "nowhere_to_be_found", "hetsched.plugins")
    monkeypatch.setattr("hetsched.engine.framework.registry._installed", lambda: (entry,))
    with pytest.raises(PluginError, match="nowhere_to_be_found cannot be loaded"):
        load_registry()


def test_compiled_loop_and_explanations_name_no_plugin() -> None:
    names = {info.name for info in load_registry()}
    root = Path(plugins.__path__[0]).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno} {node.value}"
        for folder in ("compiled", "explain", "preemption", "simulation")
        for path in sorted((root / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    ]
    assert found == []
