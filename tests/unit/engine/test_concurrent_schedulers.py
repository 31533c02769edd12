"""Concurrent schedulers decide on copies and commit to one state without conflicting allocations."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hetsched.contracts.objects.cluster import ElasticQuota
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.simulation.optimistic import Branch
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, rebuilt

POLICY = policy_of(
    "node-ready", "resource-fit", "gpu-fit", "pod-affinity", "least-allocated", "gang", "preemption"
)  # fmt: skip


def truth_of(*nodes: NodeBuilder, running: tuple[PodBuilder, ...] = ()) -> ClusterState:
    return ClusterState([node.build() for node in nodes], [pod.build() for pod in running])


def decided(truth: ClusterState, *pods: PodBuilder) -> tuple[Branch, list[Outcome]]:
    branch = Branch(truth, POLICY, evicts=True)
    return branch, branch.decide([pod.build() for pod in pods])


def keys(pods: list[PodSpec]) -> list[str]:
    return [pod.name for pod in pods]


def test_one_of_two_pods_gets_the_last_gpu() -> None:
    truth = truth_of(a_node("a").gpus(1), a_node("b").gpus(1).cpu(1))
    first, ours = decided(truth, a_pod("ours").gpu())
    second, theirs = decided(truth, a_pod("theirs").gpu())
    assert (ours[0].node, theirs[0].node) == ("a", "a")
    assert first.commit(truth, ours) == []
    conflicts = second.commit(truth, theirs)
    assert keys(conflicts) == ["theirs"]
    assert set(truth.placed_pods) == {"default/ours"}
    again, outcomes = decided(truth, a_pod("theirs").gpu())
    assert again.commit(truth, outcomes) == []
    assert truth.placed_pods["default/theirs"].row == truth.row_of["b"]


def test_placements_on_other_nodes_are_kept() -> None:
    truth = truth_of(a_node("a").cpu(4), a_node("b").cpu(2))
    first, ours = decided(truth, a_pod("large").cpu(4))
    second, theirs = decided(truth, a_pod("one").cpu(4), a_pod("two").cpu(2))
    assert first.commit(truth, ours) == []
    assert keys(second.commit(truth, theirs)) == ["one"]
    assert set(truth.placed_pods) == {"default/large", "default/two"}


def test_rules_between_pods_are_checked_again_at_commit() -> None:
    # Both go to different nodes, yet in one zone, which the first refuses to share.
    zone = {"topology.kubernetes.io/zone": "z"}
    truth = truth_of(a_node("a").labelled(zone).cpu(1), a_node("b").labelled(zone).cpu(2))
    first, ours = decided(truth, a_pod("shy").cpu(2).away_from("topology.kubernetes.io/zone", app="loud"))
    second, theirs = decided(truth, a_pod("loud").cpu(1).labelled(app="loud"))
    theirs[0].node, theirs[0].row = "a", truth.row_of["a"]
    assert first.commit(truth, ours) == []
    assert keys(second.commit(truth, theirs)) == ["loud"]


def test_gang_is_committed_whole_or_not_at_all() -> None:
    truth = truth_of(a_node("a").cpu(2), a_node("b").cpu(2))
    gang = [a_pod(f"m{i}").cpu(2).gang("team", 2) for i in range(2)]
    first, ours = decided(truth, a_pod("single").cpu(2))
    second, theirs = decided(truth, *gang)
    assert {outcome.node for outcome in theirs} == {"a", "b"}
    assert first.commit(truth, ours) == []
    assert sorted(keys(second.commit(truth, theirs))) == ["m0", "m1"]
    assert set(truth.placed_pods) == {"default/single"}


def test_member_is_not_committed_after_its_gang_was_preempted() -> None:
    running = tuple(a_pod(f"m{i}").cpu(1).gang("team", 2).running_on("s") for i in range(2))
    truth = truth_of(a_node("a").cpu(1), a_node("s").cpu(2), running=running)
    first, ours = decided(truth, a_pod("urgent").cpu(2).priority(1))
    second, theirs = decided(truth, a_pod("m2").cpu(1).gang("team", 2))
    assert (ours[0].node, theirs[0].node) == ("s", "a")
    assert first.commit(truth, ours) == []
    assert keys(second.commit(truth, theirs)) == ["m2"]
    assert set(truth.placed_pods) == {"default/urgent"}


def test_two_preemptors_do_not_share_freed_capacity() -> None:
    truth = truth_of(a_node("a").cpu(2), running=(a_pod("low").cpu(2).running_on("a"),))
    first, ours = decided(truth, a_pod("x").cpu(2).priority(1))
    second, theirs = decided(truth, a_pod("y").cpu(2).priority(1))
    assert first.commit(truth, ours) == []
    assert keys(second.commit(truth, theirs)) == ["y"]
    assert set(truth.placed_pods) == {"default/x"}


def test_inventory_change_rejects_earlier_decisions() -> None:
    truth = truth_of(a_node("a"), a_node("b"))
    branch, outcomes = decided(truth, a_pod("p"))
    truth.apply_report(a_node("a").cordoned().build())
    assert keys(branch.commit(truth, outcomes)) == ["p"]
    assert not truth.placed_pods


def test_placement_that_assumed_a_rejected_eviction_is_decided_again() -> None:
    # On the branch "urgent" preempts the gang on a and s, so "late" gets card 0 of a, which a member held. On the main
    # state s changed, so the gang stays, with card 0.
    first = a_pod("m0").cpu(3).gpu().gang("team", 2).running_on("a")
    second = a_pod("m1").cpu(1).gang("team", 2).running_on("s")
    truth = truth_of(a_node("a").cpu(4).gpus(2), a_node("s").cpu(2), running=(first, second))
    other, elsewhere = decided(truth, a_pod("elsewhere").cpu("500m"))
    branch, ours = decided(truth, a_pod("urgent").cpu(3).priority(1), a_pod("late").cpu(1).gpu())
    assert [outcome.node for outcome in ours] == ["a", "a"]
    assert [card.index for card in ours[1].allocation.gpus] == [0]
    assert other.commit(truth, elsewhere) == []
    assert keys(branch.commit(truth, ours)) == ["urgent", "late"]
    assert set(truth.placed_pods) == {"default/m0", "default/m1", "default/elsewhere"}


def test_victim_of_an_evicted_preemptor_belongs_to_the_last_preemptor() -> None:
    # "a" borrows all 2 CPUs that "b" is guaranteed: a/high preempts a/low, then b/own preempts a/high.
    quotas = (ElasticQuota("a", "none"), ElasticQuota("b", "two", min=(("cpu", 2000),)))
    low = a_pod("low", "a").cpu(2).gpu().running_on("n").build()
    truth = ClusterState([a_node("n").cpu(2).gpus(2).build()], [low], quotas=quotas)
    branch = Branch(truth, policy_of("resource-fit", "gpu-fit", "quota", "preemption"), evicts=True)
    waiting = [a_pod("high", "a").cpu(2).priority(1).build(), a_pod("own", "b").cpu(2).gpu().build()]
    outcomes = branch.decide(waiting)
    assert [outcome.node for outcome in outcomes] == [None, "n"]
    assert branch.commit(truth, outcomes) == []
    assert set(truth.placed_pods) == {"b/own"}


@pytest.mark.parametrize("workers", [2, 4])
def test_threads_place_every_pod_once_without_overcommit(workers: int) -> None:
    truth = truth_of(*(a_node(f"n{i}").cpu(4).gpus(i % 2) for i in range(8)))
    lock = threading.Lock()
    conflicts = [0] * workers

    def work(number: int) -> None:
        waiting = [_pod(number, i).build() for i in range(6)]
        for _ in range(50):
            with lock:
                branch = Branch(truth, POLICY)
            outcomes = branch.decide(waiting)  # no pod waits for another one here
            with lock:
                waiting = branch.commit(truth, outcomes)
            conflicts[number] += len(waiting)
            if not waiting:
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(truth.placed_pods) == 6 * workers
    assert all(free >= 0 for free in _free(truth))
    assert rebuilt(truth).digest() == truth.digest()


def _pod(number: int, position: int) -> PodBuilder:
    pod = a_pod(f"w{number}-{position}").cpu(1)
    return pod.gpu(1, milli=500) if position == 0 else pod


def _free(state: ClusterState) -> Iterator[int]:
    field = state.columns.field
    yield from (field("allocatable") - field("requested"))[:2].ravel().tolist()
    yield from field("card_milli_free").ravel().tolist()
