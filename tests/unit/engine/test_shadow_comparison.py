"""Comparison of another scheduler's placement with our choice on the same state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.comparison import compare
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import policy_of, scheduler

FULLEST = policy_of("resource-fit", "binpack")


def test_same_node_has_no_regret() -> None:
    found = compare(scheduler([a_node("n1"), a_node("n2").cpu(1)], policy=FULLEST), a_pod("p").cpu(1).build(), "n2")
    assert (found.chosen, found.regret, found.rank, found.refusal) == ("n2", 0.0, 1, None)


def test_regret_is_the_score_difference() -> None:
    # binpack on CPU alone: 1 of 2 is 50 points, 1 of 8 is 12.5; so theirs is 37.5 behind, and second of two
    policy = policy_of("resource-fit", _cpu_binpack())
    found = compare(
        scheduler([a_node("n1").cpu(2), a_node("n2").cpu(8)], policy=policy), a_pod("p").cpu(1).build(), "n2"
    )
    assert (found.chosen, found.our_score, found.their_score) == ("n1", 50.0, 12.5)
    assert (found.regret, found.rank, found.feasible) == (37.5, 2, 2)
    assert [row.name for row in found.top] == ["n1", "n2"]


def test_rejected_node_has_a_reason_and_no_regret() -> None:
    found = compare(scheduler([a_node("n1"), a_node("n2").cpu(1)], policy=FULLEST), a_pod("p").cpu(4).build(), "n2")
    assert (found.chosen, found.regret, found.rank) == ("n1", None, None)
    assert found.refusal is not None
    assert (found.refusal.plugin, found.refusal.code) == ("resource-fit", "InsufficientResource")


def test_no_choice_if_no_node_fits() -> None:
    found = compare(scheduler([a_node("n1").cpu(1)], policy=FULLEST), a_pod("p").cpu(4).build(), "n1")
    assert (found.chosen, found.feasible, found.our_score) == ("", 0, None)
    assert found.refusal is not None


def test_invalid_request_is_reported() -> None:
    found = compare(scheduler([a_node("n1")], policy=FULLEST), a_pod("p").wrong().build(), "n1")
    assert found.refusal is not None
    assert found.chosen == ""


@settings(max_examples=40)
@given(fleet=mixed_fleets(), pods=mixed_pods())
def test_comparison_equals_the_matrix_and_changes_nothing(fleet: list[NodeReport], pods: list[PodSpec]) -> None:
    state = ClusterState(fleet, (), NAMESPACES)
    ours = Scheduler(state, policy_of("node-ready", "taints", "resource-fit", "gpu-fit", "pod-affinity", "binpack"))
    for pod in pods:
        rows = {row.name: row for row in matrix(ours, pod)}
        before = state.digest()
        for node in fleet:
            found = compare(ours, pod, node.name)
            assert state.digest() == before
            row = rows[node.name]
            assert found.theirs is not None
            assert (found.theirs.feasible, found.theirs.total, found.theirs.scores) == (
                row.feasible, row.total, row.scores,
            )  # fmt: skip
            assert (found.regret is None) == (not row.feasible)
            assert found.regret is None or found.regret >= 0
        placed = ours.schedule(pod)
        assert (placed.node or "") == found.chosen


def _cpu_binpack() -> object:
    from hetsched.contracts.objects.policy import PluginUse

    return PluginUse("binpack", params={"resources": {"cpu": 1}, "shape": [[0, 0], [100, 10]], "mode": "plain"})


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_equal_nodes_are_equal(node: str) -> None:
    found = compare(scheduler([a_node("n1"), a_node("n2")], policy=FULLEST), a_pod("p").cpu(1).build(), node)
    assert (found.chosen, found.regret, found.rank) == ("n1", 0.0, 1)
