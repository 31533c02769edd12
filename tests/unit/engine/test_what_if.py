"""What-if: the same decisions on a copy, without changes of the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from hetsched.contracts.api.decision import Verdict, WhatIfAnswer
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import Pod, built, cluster, policy_of, scheduler

NOW = "2026-11-20T10:00:00Z"
POLICY = scheduler([], policy="hetsched").policy


def asked(state: ClusterState, *pods: Pod, **more: Any) -> WhatIfAnswer:
    return what_if(state, POLICY, [built(pod) for pod in pods], evaluated_at=NOW, **more)


def test_state_is_unchanged() -> None:
    state = cluster([a_node("a"), a_node("b")], [a_pod("r").running_on("a")])
    before = state.digest(), state.columns.load.tobytes()
    answer = asked(state, a_pod("p"), explain=True, drain=["a"])
    assert (state.digest(), state.columns.load.tobytes()) == before
    assert answer.snapshot == state.digest()
    assert answer.evaluated_at == NOW


def test_each_pod_sees_the_earlier_ones_in_queue_order() -> None:
    # One node for one pod: the one with the higher priority gets it, although it is last in the file.
    state = cluster([a_node("n").pods(1)])
    answer = asked(state, a_pod("low"), a_pod("high").priority(9))
    assert [placement.pod for placement in answer.placements] == ["default/high"]
    assert [(item.pod, item.verdict) for item in answer.unplaced] == [("default/low", Verdict.NOT_NOW)]
    assert answer.verdict is Verdict.NOT_NOW
    assert answer.summary.startswith("1 of 2 pods fit; default/low does not fit now")


def test_worst_verdict_is_the_verdict_of_all() -> None:
    state = cluster([a_node("n").cpu(8)])
    answer = asked(state, a_pod("fits"), a_pod("huge").cpu(99), a_pod("wrong").wrong())
    assert answer.verdict is Verdict.MISCONFIGURED
    assert {item.pod: item.verdict for item in answer.unplaced} == {
        "default/huge": Verdict.NEVER_FITS, "default/wrong": Verdict.MISCONFIGURED,
    }  # fmt: skip


def test_alike_pods_are_each_explained_by_their_own_name() -> None:
    state = cluster([a_node("n").cpu(8)])
    answer = asked(state, *(a_pod(f"p{number}").cpu(3) for number in range(4)))
    # 8 CPUs take two pods of 3 and leave 2.
    assert [item.pod for item in answer.unplaced] == ["default/p2", "default/p3"]
    assert answer.unplaced[0].reasons == answer.unplaced[1].reasons
    assert [item.nearest_fit[0].change for item in answer.unplaced] == ["cpu 3 -> 2"] * 2
    assert answer.summary.startswith("2 of 4 pods fit; default/p2 does not fit now")


def test_matrix_is_returned_on_request_only() -> None:
    state = cluster([a_node("a"), a_node("b").cordoned()])
    assert asked(state, a_pod("p")).nodes is None
    assert "nodes" not in asked(state, a_pod("p")).document()
    nodes = asked(state, a_pod("p"), explain=True).nodes
    assert nodes is not None
    assert [(row.name, row.rank, row.refused and row.refused.code) for row in nodes] == [
        ("a", 1, None), ("b", None, "NodeUnschedulable"),
    ]  # fmt: skip


def test_pods_of_a_drained_node_move_before_new_pods() -> None:
    # b has capacity for one pod: the one that has to leave a gets it.
    state = cluster([a_node("a"), a_node("b").pods(1)], [a_pod("old").running_on("a")])
    answer = asked(state, a_pod("new"), drain=["a"])
    assert [(moved.pod, moved.from_, moved.to, moved.verdict) for moved in answer.displaced] == [
        ("default/old", "a", "b", Verdict.PLACED)
    ]
    assert [item.pod for item in answer.unplaced] == ["default/new"]


def test_displaced_pod_without_a_node_has_a_reason() -> None:
    state = cluster([a_node("a"), a_node("b").cpu(0)], [a_pod("old").running_on("a")])
    [moved] = asked(state, drain=["a"]).displaced
    assert (moved.to, moved.verdict) == (None, Verdict.NOT_NOW)  # the drained node could take it again


def test_displaced_pod_without_a_node_is_not_now() -> None:
    state = cluster(
        [a_node("a"), a_node("b").cpu(1)], [a_pod("big").cpu(4).running_on("a"), a_pod("x").running_on("a")]
    )
    answer = asked(state, drain=["a"])
    assert (answer.verdict, answer.verdict.exit_code) == (Verdict.NOT_NOW, 10)
    assert answer.summary.startswith("1 of 2 displaced pods fit on no other node; default/big does not fit now: ")
    document = answer.document()
    assert document["verdict"] == "not-now"
    messages = {item["pod"]: item.get("message") for item in document["displaced"]}
    assert messages["default/x"] is None
    assert messages["default/big"].startswith("default/big does not fit now: 0 of 2 nodes fit (")
    # The same request with a placed pod fails as well.
    assert asked(state, a_pod("new"), drain=["a"]).verdict is Verdict.NOT_NOW


def test_displaced_pod_that_the_asked_pod_evicts_fails_the_request() -> None:
    state = cluster([a_node("a").cpu(4), a_node("b").cpu(4)], [a_pod("old").cpu(4).priority(1).running_on("a")])
    answer = asked(state, a_pod("new").cpu(4).priority(10), drain=["a"])
    (moved,) = answer.displaced
    assert (moved.to, moved.verdict, answer.verdict) == (None, Verdict.NOT_NOW, Verdict.NOT_NOW)
    assert moved.message is not None
    assert "default/new" in moved.message
    assert [placement.node for placement in answer.placements] == ["b"]
    assert answer.evictions == ()  # it ran on a, not on the node that is said to be removed
    assert answer.summary.startswith("the displaced pod fits on no other node; ")


def test_complete_drain_is_reported() -> None:
    state = cluster([a_node("a"), a_node("b")], [a_pod("old").running_on("a")])
    assert asked(state, drain=["a"]).summary == "the displaced pod fits on another node"
    assert asked(state, drain=["b"]).summary == "no pods need to be moved"


def test_pods_of_a_daemon_set_and_static_pods_stay_on_a_drained_node() -> None:
    agent = a_pod("agent").having(controller="DaemonSet/agent").running_on("a")
    state = cluster([a_node("a"), a_node("b")], [agent, a_pod("old").running_on("a")])
    answer = asked(state, drain=["a"])
    assert [moved.pod for moved in answer.displaced] == ["default/old"]
    assert answer.verdict is Verdict.PLACED


def test_balance_is_measured_before_and_after() -> None:
    # 8 CPUs, 32 GiB. Before: 0 and 0 used, variance 0 -> 1.
    # After 4 CPUs and 0 memory: utilisations 0.5 and 0, mean 0.25, variance (0.25^2 + 0.25^2) / 2 = 0.0625 -> 0.9375
    state = cluster([a_node("n").cpu(8).memory("32Gi")])
    answer = asked(state, a_pod("p").cpu(4).memory(0))
    assert (answer.balance.before, answer.balance.after) == (1.0, 0.9375)


def test_single_pod_result_has_a_summary() -> None:
    answer = what_if(cluster([a_node("n")]), policy_of("node-ready"), [built(a_pod("p"))], evaluated_at=NOW)
    assert answer.summary == "default/p fits on n with score 0.0, out of 1 nodes"


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods())
def test_what_if_equals_the_real_cycle(fleet: list[NodeReport], pods: Sequence[PodSpec]) -> None:
    state = ClusterState(fleet, (), NAMESPACES)
    answer = what_if(state, POLICY, pods, evaluated_at=NOW, explain=True)
    deciding = Scheduler(state, POLICY)
    real = {pod.key: deciding.schedule(pod) for pod in sorted(pods, key=POLICY.sort_key)}
    assert {p.pod: p.node for p in answer.placements} == {key: o.node for key, o in real.items() if o.node}
    assert {p.pod: p.gpus for p in answer.placements} == {key: o.allocation.gpus for key, o in real.items() if o.node}
    assert answer.nodes is not None
    best = {row.pod: row.name for row in answer.nodes if row.rank == 1}
    assert best == {p.pod: p.node for p in answer.placements}


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods())
def test_every_number_of_the_matrix_adds_up(fleet: list[NodeReport], pods: Sequence[PodSpec]) -> None:
    answer = what_if(ClusterState(fleet, (), NAMESPACES), POLICY, pods, evaluated_at=NOW, explain=True)
    for row in answer.nodes or ():
        if row.feasible:
            assert row.refused is None
            assert row.total == pytest.approx(sum(score.weighted for score in row.scores))
            assert all(0 <= score.normalized <= 100 for score in row.scores)
            assert all(score.weighted == score.weight * score.normalized for score in row.scores)
        else:
            assert (row.total, row.rank, row.scores) == (None, None, ())
            assert row.refused is not None
            assert (row.refused.nodes, bool(row.refused.message)) == (1, True)


def test_summary_has_the_worst_rejection() -> None:
    # The first rejected pod only has to wait, the second can never run: the second decides the verdict.
    state = ClusterState([a_node("n").cpu(2).build()], [a_pod("r").cpu(2).running_on("n").build()])
    pods = [a_pod("waits").cpu(1).build(), a_pod("never").cpu(3).build()]
    answer = what_if(state, policy_of("resource-fit"), pods, evaluated_at="now")
    assert answer.verdict == "never-fits"
    assert answer.summary.startswith("0 of 2 pods fit; default/never never fits this cluster")
