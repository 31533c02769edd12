"""A pod with scheduling gates is never placed, and its reason names the gates."""

from __future__ import annotations

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

GATES = ("example.org/quota", "example.org/audit")


def gated(name: str = "held") -> PodSpec:
    return a_pod(name).having(gates=GATES).build()


def test_gated_pod_has_its_gates_as_the_reason() -> None:
    alone = scheduler([a_node()])
    answer = what_if(alone.state, alone.policy, [gated()], evaluated_at="")
    assert answer.verdict is Verdict.NOT_NOW
    assert [(r.code, r.missing, r.field) for r in answer.unplaced[0].reasons] == [
        ("SchedulingGated", GATES, "spec.schedulingGates")
    ]
    assert answer.summary == (
        "default/held does not fit now: the pod has the scheduling gates example.org/quota, example.org/audit"
    )
    assert matrix(alone, gated()) == ()


def test_gated_pod_reserves_nothing() -> None:
    full = scheduler([a_node().cpu("1")])
    assert [full.schedule(pod).node for pod in (gated(), a_pod("free").build())] == [None, "node"]


def test_compiled_loop_skips_gated_pods() -> None:
    batch = BatchScheduler(scheduler([a_node()]), expected=1_000_000, shortest=1)
    outcomes = batch.schedule([a_pod("p1").build(), gated(), a_pod("p2").build()])
    assert [outcome.node for outcome in outcomes] == ["node", None, "node"]


def test_gang_waits_for_its_gated_member() -> None:
    room = scheduler([a_node()], policy=policy_of("resource-fit", "gang"))
    free = a_pod("p1").gang("ring", 2).build()
    pod = a_pod("p2").gang("ring", 2).having(gates=GATES).build()
    answer = what_if(room.state, room.policy, [free, pod], evaluated_at="")
    assert answer.placements == ()
    assert {item.pod: item.reasons[0].code for item in answer.unplaced}["default/p2"] == "SchedulingGated"
