"""A what-if lists the evictions of a placement and names them in its sentence, and leaves the state unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.api.decision import Evicted, Verdict, WhatIfAnswer
from hetsched.contracts.objects.cluster import DisruptionBudget, ElasticQuota
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.what_if import what_if
from hetsched.lab.replay import replay
from tests.builders import PodBuilder, a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

PREEMPTING = policy_of("node-ready", "resource-fit", "preemption")
WITHOUT = policy_of("node-ready", "resource-fit")
BUDGET = DisruptionBudget("default", "keep", matching(app="web"), 1)


def state(*budgets: DisruptionBudget) -> ClusterState:
    running = [
        a_pod("web").cpu("4").labelled(app="web").running_on("a").build(),
        a_pod("high").cpu("4").priority(9).running_on("a").build(),
    ]
    return ClusterState([a_node("a").build()], running, budgets=budgets)


def asked(pod: PodBuilder, *budgets: DisruptionBudget, policy: Policy = PREEMPTING) -> WhatIfAnswer:
    cluster = state(*budgets)
    before = cluster.digest()
    answer = what_if(cluster, policy, [pod.build()], evaluated_at="2026-11-20T10:00:00Z")
    assert cluster.digest() == before
    return answer


def test_placement_after_the_eviction_is_shown() -> None:
    answer = asked(a_pod("urgent").cpu("2").priority(5))
    assert answer.verdict is Verdict.PLACED
    assert [item.node for item in answer.placements] == ["a"]
    assert answer.evictions == (Evicted("default/web", "a", 0),)
    assert answer.summary.endswith("; the placement requires the eviction of default/web (priority 0) from a")
    assert list(answer.document()["evictions"]) == [{"pod": "default/web", "node": "a", "priority": 0, "pdb": None}]


def test_matrix_shows_the_capacity_of_the_evicted_pods() -> None:
    policy = policy_of("node-ready", "resource-fit", "preemption", "least-allocated")
    urgent = a_pod("urgent").cpu("2").priority(5).build()
    answer = what_if(state(), policy, [urgent], evaluated_at="2026-11-20T10:00:00Z", explain=True)
    (row,) = answer.nodes or ()
    assert (row.name, row.feasible, row.rank) == ("a", True, 1)
    assert row.total == answer.placements[0].score
    assert [margin.node for margin in answer.tipping or ()] == ["a"]


def test_violated_disruption_budget_is_named() -> None:
    answer = asked(a_pod("urgent").cpu("2").priority(5), BUDGET)
    assert answer.evictions == (Evicted("default/web", "a", 0, "default/keep"),)
    assert "violate a disruption budget" in answer.summary


def test_several_evictions_are_summed_up() -> None:
    answer = asked(a_pod("urgent").cpu("8").priority(50))
    assert "; the placement requires the eviction of 2 running pods from a" in answer.summary


def test_pod_is_not_now_without_preemption() -> None:
    answer = asked(a_pod("urgent").cpu("2").priority(5), policy=WITHOUT)
    assert (answer.verdict, answer.evictions) == (Verdict.NOT_NOW, ())
    assert "evict" not in answer.summary


def test_requested_pod_may_be_evicted_again() -> None:
    # Both teams are guaranteed 4 CPUs. The first pod borrows, the second claims its own guarantee.
    quotas = [ElasticQuota(name, name, (("cpu", 4000),)) for name in ("q1", "q2")]
    policy = policy_of("node-ready", "quota", "resource-fit", "preemption")
    cluster = ClusterState([a_node("a").build()], quotas=quotas)
    pods = [a_pod("borrows", "q1").cpu("8").build(), a_pod("claims", "q2").cpu("2").build()]
    answer = what_if(cluster, policy, pods, evaluated_at="2026-11-20T10:00:00Z")
    assert [item.pod for item in answer.placements] == ["q2/claims"]
    assert answer.evictions == ()
    (left_out,) = answer.unplaced
    assert (left_out.pod, left_out.verdict) == ("q1/borrows", Verdict.NOT_NOW)
    assert (left_out.reasons[0].code, left_out.reasons[0].message) == ("Preempted", "preempted by q2/claims")
    result, _ = replay(cluster, pods, policy)
    assert (result.placed, result.pending, result.evicted) == (1, 1, 0)


def test_replay_counts_its_evictions() -> None:
    pods = [a_pod("urgent").cpu("8").priority(50).build(), a_pod("late").cpu("1").build()]
    result, _ = replay(state(), pods, PREEMPTING)
    assert (result.placed, result.pending, result.evicted) == (1, 1, 2)
    assert replay(state(), pods, PREEMPTING)[0].placements == result.placements


def test_pods_of_a_drained_node_may_evict_too() -> None:
    cluster = ClusterState(
        [a_node("a").build(), a_node("b").build()],
        [a_pod("moved").cpu("8").priority(5).running_on("a").build(), a_pod("low").cpu("8").running_on("b").build()],
    )
    answer = what_if(cluster, PREEMPTING, [], evaluated_at="2026-11-20T10:00:00Z", drain=["a"])
    assert [(item.pod, item.to) for item in answer.displaced] == [("default/moved", "b")]
    assert [item.pod for item in answer.evictions] == ["default/low"]


@pytest.mark.parametrize("how", [{"controller": "DaemonSet/agent"}, {"controller": "Node/a"}, {"preemptible": False}])
def test_drain_does_not_displace_daemonset_and_static_pods(how: dict[str, Any]) -> None:
    running = [a_pod("agent").running_on("a").having(**how).build(), a_pod("web").running_on("a").build()]
    cluster = ClusterState([a_node("a").build(), a_node("b").build()], running)
    answer = what_if(cluster, PREEMPTING, [], evaluated_at="2026-11-20T10:00:00Z", drain=["a"])
    assert [(displaced.pod, displaced.from_, displaced.to) for displaced in answer.displaced] == [
        ("default/web", "a", "b")
    ]
