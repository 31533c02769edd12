"""The contract of every plugin in the registry; a new plugin file is tested without another edit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.params import check_params, default_params, params_schema
from hetsched.engine.cluster.columns import Bools, Rows, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.registry import PluginInfo
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal
from hetsched.engine.gpu.workload_mix import mix_of
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import REGISTRY, active, policy_of

EXAMPLES = settings(max_examples=60)


def serving(*points: str) -> Iterator[ActivePlugin]:
    """Yield every plugin of one of the points; a failure names the last one."""
    for info in REGISTRY:
        if set(points) & set(info.points):
            note(f"plugin {info.name} in {info.source}")
            yield active(info.name)


class Scene:
    """A cluster with some running pods, and one more pod."""

    def __init__(self, fleet: list[NodeReport], pods: list[PodSpec], picks: list[int]) -> None:
        self.state = ClusterState(fleet, (), NAMESPACES)
        self.state.use_mix(mix_of(pods))
        self.pods = pods
        for pod, pick in zip(pods[1:], picks, strict=False):
            self.state.assume(self.state.compile(pod), pick % len(fleet))
        self.rows: Rows = np.array(picks, np.intp) % len(fleet)

    def ask(self, pod: PodSpec | None = None) -> Request:
        return self.state.compile(pod or self.pods[0])

    def windows(self) -> tuple[Window, Window]:
        """Return all rows and some rows (also repeated ones), both read-only."""
        columns, some = self.state.columns, Window(self.state.columns, self.rows)
        gathered = [some.static(name) for name in columns.layout.static] + [
            some.load(name) for name in columns.layout.load
        ]
        for block in (columns.static, columns.load, *gathered):
            block.flags.writeable = False
        every = Window(columns)
        return every, some


scenes = st.builds(Scene, mixed_fleets(), mixed_pods(), st.lists(st.integers(0, 6), min_size=1, max_size=10))


def prepared(plugin: ActivePlugin, request: Request, state: ClusterState, step: str) -> bool:
    """Run the pre-step of a plugin; return whether the step itself would run."""
    answer = getattr(plugin.instance, step)(request, state) if plugin.serves(step.replace("_", "-")) else None
    return answer is not SKIP and not isinstance(answer, Refusal)


def feasible_rows(state: ClusterState, pod: PodSpec) -> Bools:
    """Return (N,) the nodes that pass all built-in filters."""
    remaining: Bools = np.ones(len(state.reports), np.bool_)
    for plugin in policy_of(*(info.name for info in REGISTRY if "filter" in info.points)).filters:
        request = state.compile(pod)
        if prepared(plugin, request, state, "pre_filter"):
            remaining &= plugin.instance.filter(request, state.all_rows)
    return remaining


def bits(values: Iterable[float]) -> bytes:
    return np.asarray(values, np.float64).tobytes()


@EXAMPLES
@given(scene=scenes)
def test_filter_of_selected_rows_equals_filter_of_all_rows(scene: Scene) -> None:
    for plugin in serving("filter"):
        request = scene.ask()
        if prepared(plugin, request, scene.state, "pre_filter"):
            every, some = scene.windows()
            fits = plugin.instance.filter(request, every)
            assert (fits.dtype, fits.shape) == (np.bool_, (every.n,))
            assert plugin.instance.filter(request, some).tolist() == fits[scene.rows].tolist()


@EXAMPLES
@given(scene=scenes)
def test_reasons_cover_exactly_the_refused_rows(scene: Scene) -> None:
    for plugin in serving("filter"):
        request = scene.ask()
        if not prepared(plugin, request, scene.state, "pre_filter"):
            continue
        for nodes in scene.windows():
            explained = np.zeros(nodes.n, np.bool_)
            for refusal, rows in plugin.instance.refusals(request, nodes):
                assert rows.shape == (nodes.n,)
                assert refusal.code.isalnum()
                assert refusal.code[0].isupper()
                assert refusal.message
                explained |= rows
            assert explained.tolist() == (~plugin.instance.filter(request, nodes)).tolist()


@EXAMPLES
@given(scene=scenes)
def test_scores_over_some_rows_are_the_scores_over_all_rows_picked(scene: Scene) -> None:
    for plugin in serving("score"):
        request = scene.ask()
        if prepared(plugin, request, scene.state, "pre_score"):
            every, some = scene.windows()
            scores = plugin.instance.score(request, every)
            assert (scores.dtype, scores.shape) == (np.float64, (every.n,))
            assert bits(plugin.instance.score(request, some)) == bits(scores[scene.rows])


@EXAMPLES
@given(scene=scenes)
def test_scores_of_feasible_nodes_end_between_0_and_100(scene: Scene) -> None:
    feasible = feasible_rows(scene.state, scene.pods[0])
    if not feasible.any():
        return
    for plugin in serving("score"):
        request = scene.ask()
        request.feasible = feasible
        if not prepared(plugin, request, scene.state, "pre_score"):
            continue
        scores = plugin.instance.score(request, scene.windows()[0])
        if plugin.serves("normalize-score"):
            scores.flags.writeable = False  # the evaluator keeps raw scores of the inventory and normalises them again
            scores = plugin.instance.normalize(request, scores, feasible)
            assert scores.shape == feasible.shape
        assert np.isfinite(scores).all()
        assert ((scores[feasible] >= 0) & (scores[feasible] <= 100)).all()


@EXAMPLES
@given(scene=scenes)
def test_results_are_independent_of_earlier_calls(scene: Scene) -> None:
    for used in serving("filter", "score"):
        for pod in (*scene.pods, *reversed(scene.pods)):
            assert answers(used, scene.state, pod) == answers(active(used.name), scene.state, pod)


def answers(plugin: ActivePlugin, state: ClusterState, pod: PodSpec) -> tuple[bytes, bytes]:
    request, filtered, scored = state.compile(pod), b"", b""
    if plugin.serves("filter") and prepared(plugin, request, state, "pre_filter"):
        filtered = plugin.instance.filter(request, state.all_rows).tobytes()
    if plugin.serves("score") and prepared(plugin, request, state, "pre_score"):
        scored = bits(plugin.instance.score(request, state.all_rows))
    return filtered, scored


@EXAMPLES
@given(scene=scenes)
def test_static_plugin_is_independent_of_reservations(scene: Scene) -> None:
    empty = ClusterState(scene.state.reports, (), NAMESPACES)
    empty.use_mix(scene.state.mix)
    for plugin in serving("filter", "score"):
        known: dict[object, tuple[bytes, bytes]] = {}
        for pod in scene.pods if plugin.static else ():
            request = scene.ask(pod)
            key = plugin.instance.static_key(request) if hasattr(plugin.instance, "static_key") else request.shape
            found = answers(plugin, scene.state, pod)
            # A skipped pre-step leaves an empty result, which no cache stores.
            assert known.setdefault((key, found[0] == b"", found[1] == b""), found) == found
            assert answers(plugin, empty, pod) == found


@EXAMPLES
@given(scene=scenes)
def test_unreserve_reverts_reserve_when_repeated(scene: Scene) -> None:
    state = scene.state
    before = state.digest(), state.columns.load.tobytes(), state.columns.static.tobytes()
    feasible = np.flatnonzero(feasible_rows(state, scene.pods[0])).tolist()
    for plugin in serving("reserve"):
        request = scene.ask()
        prepared(plugin, request, state, "pre_filter")
        for row in feasible:
            part = plugin.instance.reserve(request, row, state)
            assert part is None or isinstance(part, Allocation)
            for _ in range(2):
                plugin.instance.unreserve(request, row, state)
                assert (state.digest(), state.columns.load.tobytes(), state.columns.static.tobytes()) == before


@EXAMPLES
@given(scene=scenes)
def test_reserved_resources_were_free(scene: Scene) -> None:
    state = scene.state
    feasible = np.flatnonzero(feasible_rows(state, scene.pods[0])).tolist()
    for plugin in serving("reserve"):
        request = scene.ask()
        prepared(plugin, request, state, "pre_filter")
        for row in feasible:
            part = plugin.instance.reserve(request, row, state)
            placed = state.assume(request, row, part or Allocation())
            free = state.columns.field("card_milli_free")[:, row]
            assert (free[[card.index for card in placed.allocation.gpus]] >= 0).all()
            state.forget(request.pod.key)


@pytest.mark.parametrize("info", REGISTRY, ids=lambda info: info.name)
def test_parameters_declare_themselves(info: PluginInfo) -> None:
    defaults = default_params(info.params)
    assert check_params(info.params, defaults, plugin=info.name) == info.params()
    assert msgspec.json.decode(msgspec.json.encode(info.params()), type=info.params) == info.params()
    schema = params_schema(info.params)
    assert set(schema["properties"]) == set(defaults)
    for field, declared in schema["properties"].items():
        assert declared.get("title"), f"{info.name}.{field} has no title"
        assert declared.get("description"), f"{info.name}.{field} has no description"


@pytest.mark.parametrize("info", REGISTRY, ids=lambda info: info.name)
def test_plugin_has_a_summary(info: PluginInfo) -> None:
    assert info.summary.endswith(".")
    assert "Rule" in info.doc
    assert "Source" in info.doc
