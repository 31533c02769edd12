"""The incremental evaluation, updated row by row, equals a full evaluation, bit for bit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster import selector_counts
from hetsched.engine.cluster import state as ledger
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import best, best_of, matrix
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.scoring import INFEASIBLE, Evaluator
from hetsched.engine.gpu.workload_mix import mix_of
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import built, policy_of, rebuilt, scheduler

STEPS = st.lists(
    st.tuples(st.sampled_from(["schedule", "schedule", "schedule", "forget", "report", "label"]), st.integers(0, 11)),
    max_size=25,
)


def assert_equal_to_a_full_sweep(deciding: Scheduler, pods: list[PodSpec]) -> None:
    """Compare with a new ledger, which has nothing to update."""
    full = rebuilt(deciding.state)
    for pod in pods:
        kept, total = deciding.evaluator.evaluate(deciding.state.compile(pod))
        fresh, expected = Evaluator(full, deciding.policy).evaluate(full.compile(pod))
        assert total.tobytes() == expected.tobytes()
        assert kept.feasible.tobytes() == fresh.feasible.tobytes()
        assert kept.weight_sum == fresh.weight_sum
        assert best(deciding, pod, 3) == best(Scheduler(full, deciding.policy), pod, 3)


def live(deciding: Scheduler, pods: list[PodSpec], steps: list[tuple[str, int]]) -> None:
    """Take random steps and compare a few shapes after each, so that the others lag behind by several rows."""
    state = deciding.state
    state.use_mix(mix_of(pods))
    for position, (step, pick) in enumerate(steps):
        if step == "schedule":
            pod = msgspec.structs.replace(pods[pick % len(pods)], name=f"step-{position}")
            deciding.schedule(pod)
        elif step == "forget" and state.placed_pods:
            state.forget(sorted(state.placed_pods)[pick % len(state.placed_pods)])
        elif step == "report":
            old, other = (state.reports[at % len(state.reports)] for at in (pick, pick + 1))
            labels = {**other.labels, "kubernetes.io/hostname": old.name}
            facts = {"labels": labels, "isa": other.isa, "image_sizes": other.image_sizes, "usage": other.usage}
            state.apply_report(msgspec.structs.replace(old, ready=not old.ready, **facts if pick % 2 else {}))
        elif step == "label":
            labels = {"env": "prod" if pick % 2 else "test"}
            namespaces = {**state.namespaces, sorted(NAMESPACES)[pick % len(NAMESPACES)]: labels}
            storage, budgets = state.volumes.storage, state.budgets
            state.redefine(ClusterContent(namespaces=namespaces, storage=storage, budgets=budgets))
        assert_equal_to_a_full_sweep(deciding, pods[position % len(pods) :][:2])
    assert_equal_to_a_full_sweep(deciding, pods)


@settings(max_examples=60)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)), STEPS)
def test_cached_decisions_equal_fresh_ones_after_random_changes(
    fleet: list[NodeReport], pods: list[PodSpec], policy: str, steps: list[tuple[str, int]]
) -> None:
    live(scheduler(fleet, policy=policy, namespaces=NAMESPACES), pods, steps)


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods(), STEPS)
def test_equal_after_the_ledger_log_restarts(
    fleet: list[NodeReport], pods: list[PodSpec], steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_LOG_LIMIT", 3)
        live(scheduler(fleet, namespaces=NAMESPACES), pods, steps)


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods(), STEPS)
def test_equal_after_the_pod_counts_restart(
    fleet: list[NodeReport], pods: list[PodSpec], steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selector_counts, "_MOST_ENTRIES", 3)
        live(scheduler(fleet, namespaces=NAMESPACES), pods, steps)


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods(), STEPS)
def test_forked_state_gives_the_same_decisions(
    fleet: list[NodeReport], pods: list[PodSpec], steps: list[tuple[str, int]]
) -> None:
    original = scheduler(fleet, namespaces=NAMESPACES)
    live(original, pods, steps)
    copy = Scheduler(original.state.fork(), original.policy)
    for pod in pods:
        mine, theirs = original.schedule(pod), copy.schedule(pod)
        assert (mine.node, mine.score, mine.allocation) == (theirs.node, theirs.score, theirs.allocation)


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)))
def test_evaluation_for_the_best_nodes_gives_the_same_decision(
    fleet: list[NodeReport], pods: list[PodSpec], policy: str
) -> None:
    deciding, twice = (scheduler(fleet, policy=policy, namespaces=NAMESPACES) for _ in range(2))
    for pod in pods:
        if pod.ready and pod.gang is None:
            evaluated = deciding.evaluate(pod)
            feasible = [outcome for outcome in matrix(twice, pod) if outcome.feasible]
            assert list(best_of(deciding, evaluated, 3)) == feasible[:3]
            mine, theirs = deciding.schedule(pod, evaluated=evaluated), twice.schedule(pod)
            assert (mine.node, mine.score, mine.allocation) == (theirs.node, theirs.score, theirs.allocation)


def test_only_changed_rows_are_evaluated() -> None:
    deciding = scheduler([a_node(f"n{i}") for i in range(20)], policy=policy_of("resource-fit", "least-allocated"))
    request = deciding.state.compile(built(a_pod()))
    evaluation, _ = deciding.evaluator.evaluate(request)
    evaluation.total[:] = -7.0  # rows without an evaluation stay unchanged
    deciding.state.assume(request, 3)
    _, total = deciding.evaluator.evaluate(deciding.state.compile(built(a_pod("next"))))
    assert np.flatnonzero(total != -7.0).tolist() == [3]
    total[:] = -7.0
    _, total = deciding.evaluator.evaluate(deciding.state.compile(built(a_pod("last"))))
    assert (total == -7.0).all()


def test_earlier_request_is_evaluated_with_the_latest_report() -> None:
    deciding = scheduler([a_node("n")], policy=policy_of("node-ready"))
    request = deciding.state.compile(built(a_pod()))
    assert deciding.evaluator.evaluate(request)[1].tolist() == [0.0]
    deciding.state.apply_report(a_node("n").not_ready().build())
    assert deciding.evaluator.evaluate(request)[1].tolist() == [INFEASIBLE]


def test_empty_cluster_has_no_feasible_node() -> None:
    deciding = Scheduler(ClusterState([]), policy_of("resource-fit", "least-allocated"))
    assert deciding.schedule(a_pod().build()).node is None
