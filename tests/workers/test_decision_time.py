"""Namespaces share decision time: pods that are expensive to decide are queued behind those of other namespaces."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy, by_decision_time
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import current_columns
from hetsched.placement.models import Pod
from hetsched.placement.queries.pending_order import forecast
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue import active_queue
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.placement.scheduling_queue.decision_time import (
    FREE_SECONDS,
    MEAN_LIFE_SECONDS,
    add_used_seconds,
    namespaces_over_share,
)
from hetsched.policies.actions import activate, save_draft
from hetsched.scheduling import scheduling_cycle, scheduling_loop, worker_host
from hetsched.scheduling.bindings_in_flight import BindingsInFlight
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.results import explanations
from hetsched.scheduling.worker_host import run
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted

SLOW = "hostile"


class Clock:
    """A clock that only decisions advance: a decision for a namespace takes the time in `costs`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.costs = {SLOW: 1.5}

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make decisions for one namespace take 1.5 s each, by the clock that limits batches."""
    found = Clock()
    monkeypatch.setattr(scheduling_cycle, "time", SimpleNamespace(monotonic=found, perf_counter=found))
    monkeypatch.setattr(worker_host, "time", SimpleNamespace(monotonic=found, sleep=lambda seconds: None))
    monkeypatch.setattr(active_queue, "time", SimpleNamespace(monotonic=found))
    really = Scheduler.schedule

    def slowly(self: Scheduler, pod: Any, **how: Any) -> Outcome:
        found.now += found.costs.get(pod.namespace, 0.001)
        return really(self, pod, **how)

    monkeypatch.setattr(Scheduler, "schedule", slowly)
    monkeypatch.setattr(worker_host.dispatch, "send", lambda row_id, task: None)
    return found


@pytest.fixture
def cluster(db: None) -> Cluster:
    return a_cluster(a_node("n1").cpu(64))


def ordered_by(*plugins: str) -> None:
    spec = PolicySpec("hetsched", tuple(PluginUse(name) for name in (*plugins, "resource-fit")))
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="test")


def fill(cluster: Cluster, namespace: str, count: int, **of: Any) -> None:
    submitted(cluster, *(a_pod(f"p{number}", namespace).cpu("100m") for number in range(count)), **of)


def decided() -> list[str]:
    """Return the namespaces of decided pods, in the order of their decisions."""
    return list(Pod.objects.exclude(decision_id=None).order_by("decision_id").values_list("namespace", flat=True))


@pytest.mark.parametrize("plugin", ["priority-sort", "qos-sort", "fair-share"])
def test_batch_ends_when_a_namespace_used_its_share_and_others_wait(
    cluster: Cluster, clock: Clock, plugin: str
) -> None:
    """Regression: pods of another namespace waited until the time limit of the batch, 2.5 s."""
    ordered_by(plugin)
    clock.costs = {SLOW: 0.3}
    fill(cluster, SLOW, 36)
    fill(cluster, "good", 1)
    run(cluster.pk)
    assert decided().index("good") <= 5


@pytest.mark.parametrize("plugin", ["priority-sort", "gang-sort", "qos-sort", "fair-share"])
def test_plain_pod_waits_for_at_most_one_expensive_batch(cluster: Cluster, clock: Clock, plugin: str) -> None:
    """Regression: 36 expensive pods were all decided before the later pod of another namespace."""
    ordered_by(plugin)
    fill(cluster, SLOW, 36)
    fill(cluster, "good", 1)
    run(cluster.pk)
    # A batch ends after 2.5 s, so after two expensive pods.
    assert decided().index("good") <= 2
    for _ in range(36):
        run(cluster.pk)
    assert decided().count(SLOW) == 36


def test_pod_of_the_namespace_with_less_time_is_next(cluster: Cluster, clock: Clock) -> None:
    ordered_by("priority-sort")
    fill(cluster, SLOW, 1)
    run(cluster.pk)
    submitted(cluster, a_pod("again", SLOW))
    submitted(cluster, a_pod("after", "good"))
    assert [pod.spec.namespace for pod in forecast(cluster.pk, 10)] == ["good", SLOW]
    run(cluster.pk)
    assert decided()[-2:] == ["good", SLOW]


def test_decayed_decision_time_restores_the_order(cluster: Cluster, clock: Clock) -> None:
    ordered_by("priority-sort")
    fill(cluster, SLOW, 1)
    run(cluster.pk)
    now = timezone.now()
    kept = current_columns(cluster.pk).decision_time
    assert namespaces_over_share(kept, now.timestamp())[SLOW] == pytest.approx(1.5, abs=0.1)
    assert namespaces_over_share(kept, (now + timedelta(seconds=MEAN_LIFE_SECONDS)).timestamp()) == {}


def test_priority_precedes_decision_time(cluster: Cluster, clock: Clock) -> None:
    ordered_by("priority-sort")
    fill(cluster, SLOW, 2)
    run(cluster.pk)
    submitted(cluster, a_pod("plain", "good"))
    submitted(cluster, a_pod("urgent", SLOW), priority=5)
    run(cluster.pk)
    assert decided()[-2:] == [SLOW, "good"]


def test_used_time_is_stored_for_the_next_leader(cluster: Cluster, clock: Clock) -> None:
    """The used time is stored with the cluster, so another leader continues with it."""
    ordered_by("priority-sort")
    fill(cluster, SLOW, 1)
    run(cluster.pk)
    cache_of(cluster.pk).invalidate()
    cache_of(cluster.pk).decision_seconds.clear()
    kept = Cluster.objects.get(pk=cluster.pk).decision_time
    assert list(kept) == [SLOW]
    assert kept[SLOW][0] == pytest.approx(1.5, abs=0.01)


def test_diagnosis_of_a_released_reservation_is_charged(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the members of a gang that were reserved before another found no node were diagnosed for free."""
    ordered_by("gang-sort", "node-affinity", "gang")
    clock.costs = {SLOW: 0.0}
    diagnosed: list[str] = []
    really = explanations.diagnose

    def slowly(scheduler: Scheduler, pod: Any) -> Any:
        clock.now += 2.0
        diagnosed.append(pod.name)
        return really(scheduler, pod)

    monkeypatch.setattr(explanations, "diagnose", slowly)
    with_node, without = a_pod("with-node", SLOW).gang("g", 2), a_pod("without", SLOW).gang("g", 2)
    submitted(cluster, with_node, without.on_nodes_with(disk="ssd"))
    run(cluster.pk)
    assert diagnosed == ["without", "with-node"]
    kept = Cluster.objects.get(pk=cluster.pk).decision_time
    assert kept[SLOW][0] == pytest.approx(2.0 * len(diagnosed), abs=0.1)


def test_time_of_a_lost_batch_is_charged_with_the_next(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered_by("priority-sort")
    fill(cluster, SLOW, 1)
    really, lost = scheduling_loop.record, []

    def losing(*given: Any, **named: Any) -> int:
        if not lost:
            lost.append(True)
            raise scheduling_loop.Conflict("another was faster")
        return really(*given, **named)

    monkeypatch.setattr(scheduling_loop, "record", losing)
    run(cluster.pk)
    assert Cluster.objects.get(pk=cluster.pk).decision_time[SLOW][0] == pytest.approx(3.0, abs=0.01)


def default_policy(cluster: Cluster) -> Policy | None:
    with cache_of(cluster.pk).locked_snapshot():
        return cache_of(cluster.pk).default_policy()


def test_flood_shares_batches_under_any_queue_order(cluster: Cluster) -> None:
    ordered_by("qos-sort")
    fill(cluster, "flood", 30)
    fill(cluster, "good", 2)
    policy = default_policy(cluster)
    found = [pod.spec.namespace for pod in first_active_pods(cluster.pk, policy, 10)]
    assert found.count("good") == 2


@pytest.fixture
def read(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make each pod take 10 ms to read; return the namespaces of the pods that were read."""
    found: list[str] = []
    really = active_queue.PendingPod

    def slowly(*row: Any) -> active_queue.PendingPod:
        clock.now += 0.01
        pod = really(*row)
        found.append(pod.spec.namespace)
        return pod

    monkeypatch.setattr(active_queue, "PendingPod", slowly)
    return found


@pytest.mark.parametrize("plugin", ["priority-sort", "qos-sort", "fair-share"])
def test_large_pods_are_read_for_a_bounded_time(cluster: Cluster, read: list[str], plugin: str) -> None:
    """Regression: each batch of a few pods read all 500 pods of 250 KiB, and other namespaces waited for seconds."""
    ordered_by(plugin)
    fill(cluster, SLOW, 200)
    fill(cluster, "good", 1)
    policy = default_policy(cluster)
    found = [pod.spec.namespace for pod in first_active_pods(cluster.pk, policy, 500)]
    assert found.count("good") == 1
    assert 25 <= found.count(SLOW) < 110
    assert len(read) == len(found)  # each once


def fill_gangs(cluster: Cluster, namespace: str, count: int, members: int) -> None:
    """Submit gangs of which only the first member is due."""
    for number in range(count):
        gang = f"g{number}"
        submitted(cluster, *(a_pod(f"{gang}-{one}", namespace).gang(gang, members) for one in range(members)))
    Pod.objects.exclude(name__endswith="-0").update(queued=False)


def gangs_of(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Return how many members of each gang the next batch has."""
    policy = default_policy(cluster)
    pods = [pod.spec for pod in first_active_pods(cluster.pk, policy, 500)]
    return Counter((pod.namespace, pod.gang.name) for pod in pods if pod.gang is not None)


@pytest.mark.parametrize("plugin", ["gang-sort", "qos-sort", "fair-share"])
def test_gangs_are_read_whole_for_a_bounded_time(cluster: Cluster, read: list[str], plugin: str) -> None:
    """Regression: 30 due members of gangs read all 600 members, and other namespaces waited for that."""
    ordered_by(plugin)
    fill_gangs(cluster, SLOW, 30, 20)
    fill_gangs(cluster, "good", 2, 3)
    found = gangs_of(cluster)
    assert found["good", "g0"] == found["good", "g1"] == 3
    assert {members for (namespace, _), members in found.items() if namespace == SLOW} == {20}
    assert len(read) <= 32 + 50 + 20 + 25


def test_sort_keys_are_read_for_a_bounded_time_per_batch(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: under another queue order, the first batch read the requests of all pending pods."""
    ordered_by("qos-sort")
    fill(cluster, SLOW, 200)
    fill(cluster, "good", 2)
    submitted(cluster, a_pod("urgent", SLOW), priority=5)
    policy = default_policy(cluster)
    assert policy is not None
    keyed: list[str] = []
    really = policy.sort_key

    def slowly(pod: Any) -> Any:
        clock.now += 0.01
        keyed.append(pod.key)
        return really(pod)

    monkeypatch.setattr(policy, "sort_key", slowly)
    names = [pod.spec.key for pod in first_active_pods(cluster.pk, policy, 500)]
    # 25 keys take 0.25 s: after three parts 0.5 s are over. The urgent pod and those of the other namespace are read.
    assert len(keyed) == len(names) == 75
    assert {"good/p0", "good/p1", f"{SLOW}/urgent"} <= set(names)
    for _ in range(2):
        first_active_pods(cluster.pk, policy, 500)
    assert len(keyed) == len(set(keyed)) == 203


@pytest.mark.parametrize("plugin", ["gang-sort", "qos-sort", "fair-share"])
def test_time_of_reading_is_charged_by_the_size_of_the_pods(cluster: Cluster, read: list[str], plugin: str) -> None:
    """Regression: reading 30 gangs of large pods took half a second of each batch and was charged to no namespace."""
    ordered_by(plugin)
    fill_gangs(cluster, "good", 2, 2)
    fill_gangs(cluster, SLOW, 2, 10)
    for pod in Pod.objects.filter(namespace=SLOW):
        pod.spec = msgspec.structs.replace(pod.spec, labels={f"k{number}": "v" * 60 for number in range(100)})
        pod.save(update_fields=["spec"])
    spent: dict[str, float] = {}
    pods = first_active_pods(cluster.pk, default_policy(cluster), 500, spent)
    assert Counter(pod.spec.namespace for pod in pods) == {SLOW: 20, "good": 4}
    assert sum(spent.values()) == pytest.approx(24 * 0.01)
    assert spent["good"] < 0.02 < 0.2 < spent[SLOW]


def test_time_of_reading_is_stored_with_the_cluster(cluster: Cluster, read: list[str]) -> None:
    ordered_by("gang-sort")
    fill_gangs(cluster, "gangs", 1, 10)
    run(cluster.pk)
    assert Cluster.objects.get().decision_time["gangs"][0] >= 0.1


def test_gangs_are_read_by_priority_and_decision_time(cluster: Cluster, read: list[str]) -> None:
    ordered_by("gang-sort")
    fill_gangs(cluster, SLOW, 2, 30)
    fill_gangs(cluster, "good", 1, 30)
    assert list(gangs_of(cluster)) == [(SLOW, "g0"), ("good", "g0")]
    Cluster.objects.update(decision_time={SLOW: (5.0, timezone.now().timestamp())})
    fill_gangs(cluster, "later", 1, 30)
    assert set(gangs_of(cluster)) == {("good", "g0"), ("later", "g0")}
    Pod.objects.filter(namespace=SLOW, gang="g1").update(priority=7)
    for pod in Pod.objects.filter(namespace=SLOW, gang="g1"):
        pod.spec = msgspec.structs.replace(pod.spec, priority=7)
        pod.save(update_fields=["spec"])
    assert set(gangs_of(cluster)) == {(SLOW, "g1"), ("good", "g0")}


def test_first_gang_is_read_regardless_of_its_size(cluster: Cluster, read: list[str]) -> None:
    ordered_by("gang-sort")
    fill_gangs(cluster, SLOW, 1, 120)
    fill_gangs(cluster, "good", 1, 3)
    assert gangs_of(cluster) == {(SLOW, "g0"): 120}
    Pod.objects.filter(namespace=SLOW).update(queued=False)
    assert gangs_of(cluster) == {("good", "g0"): 3}


# -- the queue order --------------------------------------------------------------------------------------------------


def order(behind: dict[str, float], *pods: Any) -> list[str]:
    return [pod.name for group in by_decision_time([pod.build() for pod in pods], behind) for pod in group]


def test_order_within_and_between_other_namespaces_is_stable() -> None:
    pods = [a_pod("s1", "slow"), a_pod("a", "x"), a_pod("s2", "slow"), a_pod("b", "y"), a_pod("w1", "worse")]
    assert order({"slow": 2.0, "worse": 9.0}, *pods) == ["a", "b", "s1", "s2", "w1"]
    assert order({}, *pods) == ["s1", "a", "s2", "b", "w1"]


def test_gang_stays_together_at_its_first_member() -> None:
    gang = [a_pod("g1", "slow").gang("g", 2), a_pod("g2", "slow").gang("g", 2).priority(7)]
    pods = [*gang, a_pod("a", "x").priority(7), a_pod("b", "x")]
    assert order({"slow": 2.0}, *pods) == ["a", "g2", "g1", "b"]


def test_time_decays_and_small_amounts_are_dropped() -> None:
    kept = add_used_seconds({"old": (2.0, 0.0), "tiny": (0.06, 0.0)}, {"new": 0.5, "old": 1.0}, MEAN_LIFE_SECONDS)
    assert kept == {"new": (0.5, 60.0), "old": (pytest.approx(2.0 / 2.71828 + 1.0, abs=0.001), 60.0)}
    assert kept["old"][0] > FREE_SECONDS


# -- the time limit of a task -----------------------------------------------------------------------------------------


def test_task_ends_after_its_time_and_the_next_continues(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task leaves its worker after a few seconds, however many pods are due, so canaries are served."""
    sent: list[tuple[int | str, str]] = []
    monkeypatch.setattr(worker_host.dispatch, "send", lambda row_id, task: sent.append((row_id, task)))
    ordered_by("priority-sort")
    fill(cluster, SLOW, 36)
    run(cluster.pk)
    assert 1 < len(decided()) < 12
    assert sent == [(cluster.pk, worker_host.dispatch.SCHEDULE)]
    began, turns = clock.now, 0
    while len(decided()) < 36:
        run(cluster.pk)
        turns += 1
    longest = worker_host.TURN_SECONDS + scheduling_loop.LONGEST_BATCH_SECONDS + clock.costs[SLOW]
    assert (clock.now - began) / turns < longest


# -- the live path ---------------------------------------------------------------------------------------------------


def test_live_cluster_loop_shares_decision_time(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that runs the informer of a live cluster uses the same batches of the same queue."""
    ordered_by("priority-sort")
    fill(cluster, SLOW, 36)
    fill(cluster, "good", 1)
    monkeypatch.setattr(BindingsInFlight, "start", lambda self, lease, placed: None)
    nothing: Any = None
    live = InformerHost(cluster, nothing)
    try:
        for _ in range(2):
            live.mark_due()
            live.iterate()
    finally:
        live.close()
    assert decided().count(SLOW) <= 4
    assert decided().index("good") <= 2
