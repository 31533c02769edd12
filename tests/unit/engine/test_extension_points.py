"""The scheduling and binding cycles call every extension point in the framework's order, and undo rejected steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extension_points import POINTS, Reads, Scope
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import Registry, plugin
from hetsched.engine.framework.status import ALLOW, SKIP, Eviction, Refusal, Wait
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, Node, Pod, cluster

NO = Refusal("NotThisOne", "not this one")
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def deciding(*classes: Any, nodes: list[Node] | None = None, running: list[Pod] | None = None) -> Scheduler:
    """Return a scheduler whose policy contains only these scratch plugins."""
    known = {info.name: info for info in REGISTRY} | {cls.info.name: cls.info for cls in classes}
    policy = PolicySpec("scratch", tuple(PluginUse(cls.info.name) for cls in classes))
    state = cluster(nodes or [a_node("a"), a_node("b"), a_node("c")], running or [])
    return Scheduler(state, compile_policy(policy, Registry(known)))


@plugin("recorder", summary="Serves every point and remembers the calls.", scope=Scope.CLUSTER)
class Recorder:
    def sort_key(self, pod):
        CALLS.append("sort_key")
        return (pod.name,)

    def pre_filter(self, request, state):
        CALLS.append("pre_filter")

    def filter(self, request, nodes):
        CALLS.append("filter")
        return np.ones(nodes.n, np.bool_)

    def refusals(self, request, nodes):
        yield NO, np.zeros(nodes.n, np.bool_)

    def post_filter(self, request, diagnosis, state):
        CALLS.append("post_filter")

    def pre_score(self, request, state):
        CALLS.append("pre_score")

    def score(self, request, nodes):
        CALLS.append("score")
        return np.arange(nodes.n, dtype=np.float64)

    def normalize(self, request, scores, feasible):
        CALLS.append("normalize")
        return scores

    def reserve(self, request, row, state):
        CALLS.append("reserve")

    def unreserve(self, request, row, state):
        CALLS.append("unreserve")

    def permit(self, request, row, room):
        CALLS.append("permit")
        return ALLOW

    def pre_bind(self, pod, node, allocation):
        CALLS.append("pre_bind")

    def bind(self, pod, node, allocation):
        CALLS.append("bind")

    def post_bind(self, pod, node, allocation):
        CALLS.append("post_bind")


def test_placement_calls_all_points_in_order() -> None:
    scheduler = deciding(Recorder)
    assert Recorder.info.points == tuple(POINTS)
    scheduler.policy.sort_key(a_pod().build())
    outcome = scheduler.schedule(a_pod().build())
    assert outcome.node == "c"  # the highest score
    assert scheduler.bind(outcome) is None
    assert CALLS == [
        "sort_key", "pre_filter", "filter", "pre_score", "score", "normalize", "reserve", "permit",
        "pre_bind", "bind", "post_bind",
    ]  # fmt: skip


# -- PreFilter ---------------------------------------------------------------------------------------------------------


def test_skipped_pre_filter_skips_the_filter() -> None:
    @plugin("skipping", summary="Sits out.")
    class Skipping(Recorder):
        def pre_filter(self, request, state):
            return SKIP

    assert deciding(Skipping).schedule(a_pod().build()).node is not None
    assert "filter" not in CALLS
    assert "score" in CALLS


@pytest.mark.parametrize("scope", list(Scope))
def test_pre_filter_restricts_the_nodes(scope: Scope) -> None:
    @plugin("narrowing", summary="Only row 1.", scope=scope)
    class Narrowing:
        def pre_filter(self, request, state):
            return np.array([1])

    scheduler = deciding(Narrowing)
    assert scheduler.schedule(a_pod().build()).node == "b"
    refused = {row.name: row.refused for row in matrix(scheduler, a_pod("next").build())}
    assert refused["a"] is not None
    assert (refused["a"].code, refused["b"]) == ("NarrowedOut", None)


@pytest.mark.parametrize("scope", list(Scope))
def test_pre_filter_rejection_applies_to_every_pod_of_the_shape(scope: Scope) -> None:
    @plugin("closed", summary="Refuses all.", scope=scope)
    class Closed:
        def pre_filter(self, request, state):
            return NO

    @plugin("spread-by-name", summary="Makes totals vary from pod to pod.", scope=Scope.CLUSTER)
    class Varying:
        def score(self, request, nodes):
            return np.zeros(nodes.n)

    scheduler = deciding(Closed, Varying)
    for name in ("first", "second"):
        outcome = scheduler.schedule(a_pod(name).build())
        assert (outcome.node, outcome.refusal) == (None, ("closed", NO))
    diagnosis = diagnose(scheduler, a_pod("third").build())
    assert [(reason.code, reason.plugin, reason.nodes) for reason in diagnosis.reasons] == [("NotThisOne", "closed", 3)]


# -- PostFilter --------------------------------------------------------------------------------------------------------


def test_post_filters_run_in_order_until_one_names_victims() -> None:
    # Cluster-scoped: rules about other pods are assumed to be satisfiable in an empty cluster.
    @plugin("full", summary="No node fits.", scope=Scope.CLUSTER)
    class Full:
        def filter(self, request, nodes):
            return np.zeros(nodes.n, np.bool_)

        def refusals(self, request, nodes):
            yield Refusal("Full", "full", resolvable=True), nodes.pick(np.array([True, True, False]))
            yield NO, nodes.pick(np.array([False, False, True]))

    @plugin("clueless", summary="Declares no extension point.")
    class Clueless:
        def post_filter(self, request, diagnosis, state):
            CALLS.append("clueless")

    @plugin("preempting", summary="Sends the first pod of the first node that fewer pods could open.")
    class Preempting:
        def post_filter(self, request, diagnosis, state):
            CALLS.append("preempting")
            assert diagnosis.resolvable == (0, 1)
            return Eviction(state.columns.names[diagnosis.resolvable[0]], ("default/victim",))

    @plugin("too-late", summary="Never asked.")
    class TooLate:
        def post_filter(self, request, diagnosis, state):
            CALLS.append("too-late")

    outcome = deciding(Full, Clueless, Preempting, TooLate).schedule(a_pod().build())
    assert outcome.eviction == Eviction("a", ("default/victim",))
    assert outcome.node is None
    assert CALLS == ["clueless", "preempting"]


def test_post_filters_are_skipped_if_a_node_fits() -> None:
    assert deciding(Recorder).schedule(a_pod().build()).eviction is None
    assert "post_filter" not in CALLS


# -- Score -------------------------------------------------------------------------------------------------------------


def scoring(name: str, scores: list[float], **declared: Any) -> Any:
    @plugin(name, summary="Fixed scores.", **declared)
    class Fixed:
        def score(self, request, nodes):
            return nodes.pick(np.array(scores))

    return Fixed


def test_scores_are_weighted_and_summed() -> None:
    # a 1*10 + 2*50 + 3*0 = 110;  b 1*20 + 2*40 + 3*5 = 115;  c 1*30 + 2*0 + 3*20 = 90;  weights 6
    classes = (
        scoring("static", [10, 20, 30], reads=Reads.STATIC),
        scoring("load", [50, 40, 0]),
        scoring("cluster", [0, 5, 20], scope=Scope.CLUSTER),
    )
    known = Registry({cls.info.name: cls.info for cls in classes})
    uses = tuple(PluginUse(cls.info.name, weight) for cls, weight in zip(classes, (1, 2, 3), strict=True))
    policy = compile_policy(PolicySpec("p", uses), known)
    scheduler = Scheduler(cluster([a_node("a"), a_node("b"), a_node("c")]), policy)
    rows = matrix(scheduler, a_pod().build())
    assert [(row.name, row.total, row.rank) for row in rows] == [("b", 115, 1), ("a", 110, 2), ("c", 90, 3)]
    assert [(s.plugin, s.raw, s.weight, s.weighted) for s in rows[0].scores] == [
        ("static", 20, 1, 20), ("load", 40, 2, 80), ("cluster", 5, 3, 15),
    ]  # fmt: skip
    outcome = scheduler.schedule(a_pod().build())
    assert (outcome.node, outcome.score) == ("b", 115 / 6)


def test_zero_weight_disables_scoring_but_not_the_filter() -> None:
    policy = compile_policy(PolicySpec("p", (PluginUse("taints", 0),)), REGISTRY)
    soft = a_node("a").tainted("x", effect="PreferNoSchedule")
    scheduler = Scheduler(cluster([soft, a_node("b"), a_node("c").tainted("y")]), policy)
    assert scheduler.schedule(a_pod().build()).node == "a"
    assert [row.name for row in matrix(scheduler, a_pod("next").build()) if not row.feasible] == ["c"]


# -- Reserve and Unreserve ---------------------------------------------------------------------------------------------


def reserving(name: str, answers: dict[int, Any]) -> Any:
    @plugin(name, summary="Reserves as told.")
    class Reserving:
        def reserve(self, request, row, state):
            CALLS.append(f"{name} reserves {row}")
            return answers.get(row)

        def unreserve(self, request, row, state):
            CALLS.append(f"{name} unreserves {row}")

    return Reserving


def test_failed_reserve_is_reverted_and_the_next_node_tried() -> None:
    scheduler = deciding(reserving("one", {}), reserving("two", {0: NO, 1: NO}))
    assert scheduler.schedule(a_pod().build()).node == "c"
    assert CALLS == [
        "one reserves 0", "two reserves 0", "one unreserves 0", "two unreserves 0",
        "one reserves 1", "two reserves 1", "one unreserves 1", "two unreserves 1",
        "one reserves 2", "two reserves 2",
    ]  # fmt: skip


def test_failed_reserve_affects_one_pod_only() -> None:
    @plugin("picky", summary="Refuses the first pod on the first node.")
    class Picky:
        def reserve(self, request, row, state):
            return NO if request.pod.name == "first" and row == 0 else None

        def unreserve(self, request, row, state):
            pass

    scheduler = deciding(Picky)
    assert scheduler.schedule(a_pod("first").build()).node == "b"
    assert scheduler.schedule(a_pod("second").build()).node == "a"  # the same shape, so the same cached evaluation


def test_failed_reserve_leaves_no_trace() -> None:
    scheduler = deciding(reserving("never", {0: NO, 1: NO, 2: NO}))
    before = scheduler.state.digest()
    assert scheduler.schedule(a_pod().build()).node is None
    assert scheduler.state.digest() == before


def test_grants_of_several_plugins_are_put_together() -> None:
    near, far = ZoneGrant("node-0", "0-3"), ZoneGrant("node-1", "4-7")
    scheduler = deciding(
        reserving("one", {0: Allocation(zones=(near,), cpu_policy="exclusive")}),
        reserving("two", {0: None}),
        reserving("three", {0: Allocation(zones=(far,))}),
    )
    outcome = scheduler.schedule(a_pod().build())
    assert outcome.allocation == Allocation(zones=(near, far), cpu_policy="exclusive")
    assert scheduler.state.placed_pods["default/pod"].allocation == outcome.allocation


# -- Permit ------------------------------------------------------------------------------------------------------------


def permitting(name: str, answer: Any) -> Any:
    @plugin(name, summary="Permits as told.")
    class Permitting:
        def permit(self, request, row, room):
            return answer

    return Permitting


def test_rejected_permit_reverts_the_assumed_pod() -> None:
    scheduler = deciding(reserving("one", {}), permitting("strict", NO))
    before = scheduler.state.digest()
    outcome = scheduler.schedule(a_pod().build())
    assert (outcome.node, outcome.refusal) == (None, ("strict", NO))
    assert CALLS[-1] == "one unreserves 0"
    assert scheduler.state.digest() == before


def test_waiting_pod_keeps_its_reservation_until_all_permits() -> None:
    scheduler = deciding(permitting("first", Wait(30)), permitting("second", Wait(20)))
    outcome = scheduler.schedule(a_pod().build())
    assert (outcome.node, outcome.is_waiting) == ("a", True)
    assert "default/pod" in scheduler.state.placed_pods
    with pytest.raises(ValueError, match="default/pod is held"):
        scheduler.bind(outcome)
    scheduler.waiting_pods.allow("default/pod", "first")
    assert scheduler.waiting_pods.drain() == ([], [])
    scheduler.waiting_pods.allow("default/pod", "second")
    assert scheduler.waiting_pods.drain() == ([outcome], [])
    assert scheduler.waiting_pods.drain() == ([], [])
    assert not outcome.is_waiting
    assert scheduler.bind(outcome) is None


def test_waiting_pod_expires_at_the_shortest_permit_timeout() -> None:
    scheduler = deciding(permitting("first", Wait(30)), permitting("second", Wait(20)))
    outcome = scheduler.schedule(a_pod().build())
    scheduler.waiting_pods.expire(19.9)
    assert scheduler.waiting_pods.drain() == ([], [])
    scheduler.waiting_pods.expire(20)
    assert scheduler.waiting_pods.drain() == ([], [outcome])
    scheduler.undo(outcome)
    assert not scheduler.state.placed_pods


def test_waiting_pod_can_be_rejected() -> None:
    scheduler = deciding(permitting("first", Wait(30)))
    outcome = scheduler.schedule(a_pod().build())
    scheduler.waiting_pods.reject("default/stranger")
    scheduler.waiting_pods.reject("default/pod")
    assert scheduler.waiting_pods.drain() == ([], [outcome])


def test_reverted_placement_is_not_waiting() -> None:
    scheduler = deciding(permitting("first", Wait(30)))
    outcome = scheduler.schedule(a_pod().build())
    scheduler.undo(outcome)
    scheduler.waiting_pods.allow("default/pod", "first")
    scheduler.waiting_pods.expire(99)
    assert scheduler.waiting_pods.drain() == ([], [])


def test_members_of_a_gang_are_let_in_together() -> None:
    @plugin("pairs", summary="Two by two.")
    class Pairs:
        def permit(self, request, row, room):
            waiting = [key for key in room.pods if key.startswith("default/pair")]
            if not waiting:
                return Wait(60)
            for key in waiting:
                room.allow(key, "pairs")
            return ALLOW

    scheduler = deciding(Pairs)
    first = scheduler.schedule(a_pod("pair-1").build())
    assert first.is_waiting
    second = scheduler.schedule(a_pod("pair-2").build())
    assert not second.is_waiting
    assert scheduler.waiting_pods.drain() == ([first], [])


# -- the binding cycle -------------------------------------------------------------------------------------------------


def binding(name: str, **answers: Any) -> Any:
    def remember(step: str) -> Any:
        def call(self, pod, node, allocation):
            CALLS.append(f"{name} {step} {pod.key} on {node}")
            return answers[step]

        return call

    steps = {step: remember(step) for step in answers}
    return plugin(name, summary="Binds as told.")(type("Binding", (), {**steps, "__module__": __name__}))


def test_binding_runs_all_steps_in_order() -> None:
    scheduler = deciding(
        binding("writer", bind=None), binding("volumes", pre_bind=None), binding("mail", post_bind=None)
    )
    assert scheduler.bind(scheduler.schedule(a_pod().build())) is None
    assert CALLS == [
        "volumes pre_bind default/pod on a", "writer bind default/pod on a", "mail post_bind default/pod on a",
    ]  # fmt: skip


@pytest.mark.parametrize("step", ["pre_bind", "bind"])
def test_failed_prebind_ends_binding_and_reverts_the_assumed_pod(step: str) -> None:
    scheduler = deciding(reserving("one", {}), binding("culprit", **{step: NO}), binding("mail", post_bind=None))
    before = scheduler.state.digest()
    outcome = scheduler.schedule(a_pod().build())
    assert scheduler.bind(outcome) == NO
    assert outcome.refusal == ("culprit", NO)
    assert (outcome.node, outcome.allocation) == (None, Allocation())
    assert CALLS[-1] == "one unreserves 0"
    assert scheduler.state.digest() == before
    with pytest.raises(ValueError, match="default/pod is not placed"):
        scheduler.bind(outcome)


def test_repeated_unreserve_has_no_effect() -> None:
    scheduler = deciding(reserving("one", {}))
    outcome = scheduler.schedule(a_pod().build())
    scheduler.undo(outcome)
    other = scheduler.schedule(a_pod().build())  # the same key again, reserved again
    scheduler.undo(outcome)
    assert other.node == "a"
    assert "default/pod" in scheduler.state.placed_pods


def test_only_one_plugin_sorts_and_only_one_binds() -> None:
    with pytest.raises(InputError, match="only one plugin that binds pods") as caught:
        deciding(binding("writer", bind=None), binding("copyist", bind=None))
    assert caught.value.code == "PolicyPointDoubled"
    with pytest.raises(InputError, match="only one plugin that sorts the queue"):
        deciding(Recorder, REGISTRY["priority-sort"].factory)
