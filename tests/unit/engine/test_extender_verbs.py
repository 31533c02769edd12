"""Extender responses about nodes, ranks and victims match our own cycle, and change no state."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extender_verbs import (
    MOST_PRIORITY,
    UNKNOWN_NODE,
    filter_nodes,
    find_victims,
    prioritize_nodes,
)
from tests.builders import PodBuilder, a_node, a_pod, matching
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import policy_of, scheduler


@settings(max_examples=60)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)), st.randoms(use_true_random=False))
def test_responses_equal_our_own_cycle(
    fleet: list[NodeReport], pods: list[PodSpec], policy: str, chance: random.Random
) -> None:
    deciding = scheduler(fleet, policy=policy, namespaces=NAMESPACES)
    for pod in pods:
        names = [*(report.name for report in fleet), "stranger"]
        chance.shuffle(names)
        before = deciding.state.digest()
        answer, ranks = filter_nodes(deciding, pod, names), prioritize_nodes(deciding, pod, names)
        totals = {row.name: row.total for row in matrix(deciding, pod)}
        assert deciding.state.digest() == before
        assert sorted([*answer.feasible, *answer.rejected, *answer.unresolvable]) == sorted(names)
        assert answer.feasible == [name for name in names if name in answer.feasible]
        if not pod.ready or pod.gang is not None:
            assert set(answer.unresolvable) == set(names)
            assert set(ranks.values()) == {0}
        else:
            assert answer.rejected["stranger"] == UNKNOWN_NODE
            assert set(answer.feasible) <= {name for name, total in totals.items() if total is not None}
            by_total = sorted((totals[name], ranks[name]) for name in answer.feasible)
            assert [rank for _, rank in by_total] == sorted(rank for _, rank in by_total)
            assert all(ranks[name] == 0 for name in names if totals.get(name) is None)
        outcome = deciding.schedule(pod)
        if pod.gang is None and outcome.node is not None and not outcome.evicted and outcome.node in answer.feasible:
            feasible = [name for name, total in totals.items() if total is not None]
            if set(feasible) == set(answer.feasible):
                assert [name for name, rank in ranks.items() if rank == MOST_PRIORITY] == [outcome.node]


def test_pod_fits_only_its_reserved_node() -> None:
    deciding = scheduler([a_node("n1"), a_node("n2")], policy="hetsched")
    pod = a_pod("p").having(uid="u").build()
    row = deciding.state.row_of["n2"]
    outcome = deciding.place_on(pod, row)
    assert (outcome.node, deciding.state.placed_pods["default/p"].row) == ("n2", row)
    assert filter_nodes(deciding, pod, ["n1", "n2"]).feasible == ["n2"]
    assert prioritize_nodes(deciding, pod, ["n1", "n2"]) == {"n1": 0, "n2": MOST_PRIORITY}
    another = a_pod("p").having(uid="v").build()
    assert filter_nodes(deciding, another, ["n1", "n2"]).feasible == []


def test_infeasible_node_is_not_assumed() -> None:
    deciding = scheduler([a_node("n1").cpu("2")], policy="hetsched")
    assert deciding.place_on(a_pod("p").cpu("4").build(), 0).node is None
    assert deciding.place_on(a_pod("q").wrong().build(), 0).node is None
    assert deciding.state.placed_pods == {}


def test_node_too_small_when_empty_is_unresolvable() -> None:
    small, full = a_node("small").cpu("2").build(), a_node("full").cpu("8").build()
    state = ClusterState([full, small], [a_pod("r").cpu("6").having(node_name="full").build()])
    answer = filter_nodes(Scheduler(state, policy_of("resource-fit")), a_pod("p").cpu("4").build(), ["small", "full"])
    # full: 8 - 6 = 2 of 4 are free, and 8 once it is empty; small: 2 of 4 in any case.
    assert (list(answer.rejected), list(answer.unresolvable)) == (["full"], ["small"])


# -- victims
# -------------------------------------------------------------------------------------------------------------


def cards(*residents: PodBuilder, budgets: Sequence[DisruptionBudget] = ()) -> Scheduler:
    """Return a node of 8 CPUs with two GPUs and these pods on it."""
    node = a_node("n1").gpus(2).build()
    state = ClusterState([node], [pod.build() for pod in residents], budgets=budgets)
    return Scheduler(state, policy_of("resource-fit", "gpu-fit"))


def resident(name: str, priority: int, cards: int = 0) -> PodBuilder:
    pod = a_pod(name).having(uid=f"u-{name}", node_name="n1").priority(priority).labelled(app=name)
    return pod.gpu(cards) if cards else pod


NEWCOMER = a_pod("new").priority(5).gpu(2).build()


def test_victims_of_kube_scheduler_suffice_if_the_pod_fits() -> None:
    deciding = cards(resident("a", 1, 1), resident("b", 2, 1))
    before = deciding.state.digest()
    # Both GPUs are needed: 2 of 2.
    assert find_victims(deciding, NEWCOMER, {"n1": ["u-a", "u-b"]}) == {"n1": ("u-a", "u-b")}
    assert deciding.state.digest() == before


def test_victims_are_added_for_resources_unknown_to_kube_scheduler() -> None:
    # `c` holds no GPU, so it stays, although it has the lowest priority.
    deciding = cards(resident("a", 1, 1), resident("b", 2, 1), resident("c", 0))
    assert find_victims(deciding, NEWCOMER, {"n1": ["u-a"]}) == {"n1": ("u-a", "u-b")}


def test_node_is_left_out_where_evictable_pods_are_insufficient() -> None:
    important = cards(resident("a", 1, 1), resident("b", 5, 1))  # not lower than 5
    assert find_victims(important, NEWCOMER, {"n1": ["u-a"], "stranger": ["u-x"]}) == {}
    ganged = cards(resident("a", 1, 1), resident("b", 1, 1).gang("g", 1))
    assert find_victims(ganged, NEWCOMER, {"n1": ["u-a"]}) == {}
    budget = DisruptionBudget("default", "b", matching(app="b"), 0)
    guarded = cards(resident("a", 1, 1), resident("b", 1, 1), budgets=[budget])
    assert find_victims(guarded, NEWCOMER, {"n1": ["u-a"]}) == {}


def test_pods_that_are_not_known_here_may_leave_too() -> None:
    deciding = cards(resident("a", 1, 2))
    assert find_victims(deciding, NEWCOMER, {"n1": ["u-unseen", "u-a"]}) == {"n1": ("u-unseen", "u-a")}
