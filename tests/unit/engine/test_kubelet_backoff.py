"""Back-off of a node whose kubelet rejected an owner's pods: skipped, then tried with one pod; others go there."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.avoided_nodes import AvoidedNodes, NodeRejections
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, cluster

POLICY = compile_policy(BUILTIN["first-fit"], REGISTRY, implied=True)
RESTS = NodeRejections(2, "TopologyAffinityError", "10:31 UTC", backs_off=True)
TRIED = NodeRejections(2, "TopologyAffinityError", "10:31 UTC", backs_off=False)


def of(owner: str, name: str) -> PodSpec:
    return a_pod(name).cpu(1).having(controller_uid=owner).build()


def on(*names: str, **nodes: NodeRejections) -> Scheduler:
    """Return a scheduler on nodes of 8 CPUs, some of which rejected pods of `red`."""
    state = cluster(a_node(name).cpu(8) for name in names)
    state.avoided = {"red": AvoidedNodes(nodes)}
    return Scheduler(state, POLICY, evicts=True)


def test_backoff_excludes_the_node_for_its_owner_only() -> None:
    scheduler = on("n1", "n2", n1=RESTS)
    assert scheduler.schedule(of("red", "a")).node == "n2"
    assert scheduler.schedule(of("blue", "b")).node == "n1"


def test_rejection_has_kubelet_reason_and_end_of_the_backoff() -> None:
    scheduler = on("n1", n1=RESTS)
    assert scheduler.schedule(of("red", "a")).node is None
    found = diagnose(scheduler, of("red", "a"))
    assert found.verdict is Verdict.NOT_NOW
    assert [(reason.code, reason.plugin, reason.nodes) for reason in found.reasons] == [
        ("KubeletRefused", "admission", 1)
    ]
    rejected = "kubelet of n1 rejected 2 pods of this owner: TopologyAffinityError"
    assert f"{rejected}; the next attempt is at 10:31" in found.summary


def test_one_pod_is_tried_after_the_backoff_and_the_next_once_it_runs() -> None:
    scheduler = on("n1", n1=TRIED)
    assert scheduler.schedule(of("red", "a")).node == "n1"
    assert scheduler.schedule(of("red", "b")).node is None
    assert (
        "another pod of the same owner, default/a, is tried on this node first"
        in diagnose(scheduler, of("red", "b")).summary
    )
    rejections = NodeRejections(
        2, "TopologyAffinityError", "10:31 UTC", backs_off=False, running=frozenset({"default/a"})
    )
    scheduler.state.avoided = {"red": AvoidedNodes({"n1": rejections})}
    assert scheduler.schedule(of("red", "b")).node == "n1"


def test_owner_rejected_by_all_nodes_is_in_backoff() -> None:
    scheduler = on("n1", "n2")
    scheduler.state.avoided = {
        "red": AvoidedNodes({}, everywhere=NodeRejections(5, "OutOfcpu", "10:40 UTC", backs_off=True))
    }
    assert scheduler.schedule(of("red", "a")).node is None
    found = diagnose(scheduler, of("red", "a"))
    assert (found.verdict, found.reasons[0].nodes) == (Verdict.NOT_NOW, 2)
    rejected = "kubelets of the cluster rejected 5 pods of this owner: OutOfcpu"
    assert f"{rejected}; the next attempt is at 10:40" in found.summary


def test_rejections_of_several_nodes_are_summarised() -> None:
    names = [f"n{i}" for i in range(9)]
    scheduler = on(*names, **dict.fromkeys(names, RESTS))
    (reason,) = diagnose(scheduler, of("red", "a")).reasons
    assert (reason.nodes, reason.message) == (
        9,
        "kubelets of 9 nodes (n0, n1, n2, n3, ...) rejected pods of this owner",
    )


def test_no_pod_is_evicted_from_a_rejecting_node() -> None:
    policy = compile_policy(BUILTIN["hetsched"], REGISTRY, implied=True)
    state = cluster([a_node("n1").cpu(8)], [a_pod("low").cpu(8).having(node_name="n1").build()])
    high = a_pod("high").cpu(8).having(controller_uid="red", priority=1000).build()
    assert Scheduler(state.fork(), policy, evicts=True).schedule(high).node == "n1"
    state.avoided = {"red": AvoidedNodes({"n1": RESTS})}
    assert Scheduler(state, policy, evicts=True).schedule(high).node is None
    assert list(state.placed_pods) == ["default/low"]


def test_batch_respects_the_backoff_like_single_pods() -> None:
    pods = [of(owner, f"{owner}-{n}") for n in range(6) for owner in ("red", "blue")]
    single, batched = on("n1", "n2", n1=TRIED, n2=RESTS), on("n1", "n2", n1=TRIED, n2=RESTS)
    expected = [single.schedule(pod).node for pod in pods]
    assert expected[::2] == ["n1", *[None] * 5]
    assert expected[1::2] == ["n1"] * 6
    found = BatchScheduler(batched, expected=10**9, shortest=1).schedule(pods)
    assert [outcome.node for outcome in found] == expected
    assert batched.state.digest() == single.state.digest()


@pytest.mark.parametrize("avoided", [{}, {"red": AvoidedNodes({"n1": RESTS})}])
def test_backoff_does_not_change_capacity_and_digest(avoided: dict[str, AvoidedNodes]) -> None:
    scheduler = on("n1", "n2")
    before = scheduler.state.digest()
    scheduler.state.avoided = avoided
    answer = what_if(scheduler.state, POLICY, [of("blue", "b")], evaluated_at="2026-11-21T10:00:00Z")
    assert (scheduler.state.digest(), answer.placements[0].node) == (before, "n1")


def test_plugin_is_not_added_twice() -> None:
    names = [plugin.name for plugin in compile_policy(BUILTIN["hetsched"], REGISTRY, implied=True).plugins]
    assert names.count("admission") == 1
    assert compile_policy(BUILTIN["hetsched"], REGISTRY).spec == BUILTIN["hetsched"]
