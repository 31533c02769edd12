"""Evictions by the worker: resources become free, victims are pending again, and all rows stay consistent."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hetsched.contracts.api.decision import Evicted, Verdict
from hetsched.contracts.message import as_message
from hetsched.contracts.objects.cluster import ClusterContent, ElasticQuota
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry
from hetsched.placement import cluster_snapshot as snapshots
from hetsched.placement.actions import Conflict, import_cluster, record
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from hetsched.placement.queries.decision_matrix import matrix_of
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.topics import snapshot
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.actions import activate, save_draft
from hetsched.scheduling import scheduling_cycle
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, placed, placing, submitted
from workers import bind, schedule

PLUGINS = ("node-ready", "quota", "resource-fit", "gpu-fit", "least-allocated", "preemption")
PREEMPTING = PolicySpec("hetsched", tuple(PluginUse(name) for name in PLUGINS))


def a_preempting_cluster(*nodes: NodeBuilder, running: tuple[PodBuilder, ...] = (), **more: Any) -> Cluster:
    cluster = a_cluster(*(nodes or (a_node("n1").cpu(2),)), running=running, **more)
    activate("hetsched", save_draft(PREEMPTING, actor=ALICE).version, actor=ALICE, reason="preempt")
    return cluster


def states() -> dict[str, str]:
    return dict(Pod.objects.values_list("name", "state"))


def consistent(cluster: Cluster) -> None:
    assert check_invariants() == []
    with cache_of(cluster.pk).locked_snapshot() as kept:
        rebuilt = load_state(cluster.pk).state
        assert kept.state.digest() == rebuilt.digest()
        assert (kept.state.columns.load == rebuilt.columns.load).all()


@pytest.mark.django_db
def test_victim_is_pending_again_and_names_its_preemptor() -> None:
    cluster = a_preempting_cluster()
    workload = submitted(cluster, a_pod("low").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    schedule.run(cluster.pk)
    assert states() == {"low": "not-now", "high": "placed"}
    decision = Decision.objects.get(pod_name="high")
    assert decision.evictions == (Evicted("default/low", "n1", 0),)
    assert "replacing default/low" in decision.summary
    ended = Reservation.objects.get(pod__name="low")
    assert (ended.active, ended.release_reason) == (False, "Preempted by default/high")
    entry = AuditEntry.objects.get(action="pod.preempt")
    assert (entry.object_name, entry.reason) == ("default/low", "Preempted by default/high")
    assert Workload.objects.get(pk=workload.pk).state == "not-now"
    assert [state for state, _ in Workload.objects.get(pk=workload.pk).history] == [
        "pending", "placed", "pending", "not-now"
    ]  # fmt: skip
    assert list(snapshot("node:fleet/n1").data["pods"]) == ["default/high"]
    consistent(cluster)


@pytest.mark.django_db
def test_victim_names_its_preemptor_until_its_next_decision(settings: Any) -> None:
    settings.HETSCHED_BATCH = 1
    cluster = a_preempting_cluster()
    submitted(cluster, a_pod("low").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    results = [_evicting(result, "default/low") for result in placing(cluster, "n1")]
    fresh = Cluster.objects.get()
    record(cluster.pk, results, revision=fresh.revision, epoch=fresh.leader_epoch, snapshot="")
    low = Pod.objects.get(name="low")
    assert (low.state, low.message, low.node, low.allocation) == ("pending", "Preempted by default/high", None, None)
    assert as_message(low.message).params == {"pods": "default/high"}
    consistent(cluster)


def _evicting(result: Any, *keys: str) -> Any:
    return msgspec.structs.replace(result, evicted=tuple(Evicted(key, "n1", 0) for key in keys), policy_version=2)


@pytest.mark.django_db
def test_deleted_victim_rolls_back_the_batch() -> None:
    cluster = a_preempting_cluster()
    submitted(cluster, a_pod("low").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    fresh = Cluster.objects.get()
    results = [_evicting(result, "default/low", "default/gone") for result in placing(cluster, "n1")]
    with pytest.raises(Conflict):
        record(cluster.pk, results, revision=fresh.revision, epoch=fresh.leader_epoch, snapshot="")
    assert states() == {"low": "placed", "high": "pending"}
    assert not AuditEntry.objects.filter(action="pod.preempt").exists()
    consistent(cluster)


@pytest.mark.django_db
def test_imported_victim_ends() -> None:
    cluster = a_preempting_cluster(running=(a_pod("foreign").cpu(2).running_on("n1"),))
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    schedule.run(cluster.pk)
    assert states() == {"foreign": "failed", "high": "placed"}
    assert Pod.objects.get(name="foreign").message == "Preempted by default/high"
    consistent(cluster)


@pytest.mark.django_db
def test_running_demo_pod_is_evicted_and_releases_its_gpus() -> None:
    cluster = a_preempting_cluster(a_node("n1").gpus(1), kind="demo")
    submitted(cluster, a_pod("low").gpu())
    schedule.run(cluster.pk)
    bind.run(cluster.pk)
    assert states() == {"low": "running"}
    submitted(cluster, a_pod("high").gpu().priority(1))
    schedule.run(cluster.pk)
    assert Pod.objects.get(name="low").node is None
    assert Pod.objects.get(name="high").allocation.gpus[0].index == 0
    consistent(cluster)


@pytest.mark.django_db
def test_candidates_of_a_preemptor_can_be_recomputed() -> None:
    cluster = a_preempting_cluster(a_node("n1").cpu(2), a_node("n2").cpu(1))
    submitted(cluster, a_pod("low").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    schedule.run(cluster.pk)
    decision = Decision.objects.get(pod_name="high")
    assert [(row.name, row.feasible) for row in matrix_of(decision)] == [("n1", True), ("n2", False)]


@pytest.mark.django_db
def test_candidates_are_named_where_eviction_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_EVICTING", frozenset())
    cluster = a_preempting_cluster()
    submitted(cluster, a_pod("low").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high").cpu(2).priority(10))
    schedule.run(cluster.pk)
    assert states() == {"low": "placed", "high": "not-now"}
    decision = Decision.objects.get(pod_name="high")
    assert decision.reasons[-1].code == "PreemptionPossible"
    assert "without default/low" in decision.reasons[-1].message
    consistent(cluster)


@pytest.mark.django_db
def test_team_reclaims_borrowed_resources_within_one_batch() -> None:
    # 8 CPUs, min 4 each: q1 borrows all, q2 reclaims 2 of its own in the same batch.
    quotas = tuple(ElasticQuota(name, name, (("cpu", 4000),)) for name in ("q1", "q2"))
    a_preempting_cluster()
    content = ClusterContent(nodes=(a_node("n1").cpu(8).build(),), quotas=quotas)
    cluster = import_cluster(content, name="teams", actor=ALICE)
    pods = [a_pod(f"b{i}", "q1").cpu(2) for i in range(4)]
    submitted(cluster, *pods, a_pod("claim", "q2").cpu(2))
    schedule.run(cluster.pk)
    assert states() == {"b0": "placed", "b1": "placed", "b2": "placed", "b3": "not-now", "claim": "placed"}
    refused = Decision.objects.filter(pod_name="b3").earliest("id")
    assert refused.reasons[0].code == "Preempted"
    assert refused.reasons[0].message == "preempted by q2/claim"
    assert Decision.objects.get(pod_name="claim").evictions == ()
    consistent(cluster)


@pytest.mark.django_db
def test_victim_of_an_evicted_preemptor_is_recorded_and_recomputed() -> None:
    # a/low borrows the 2 CPUs of "b"; in one batch a/high preempts it, then b/own preempts a/high.
    quotas = (ElasticQuota("a", "none"), ElasticQuota("b", "two", (("cpu", 2000),)))
    a_preempting_cluster()
    content = ClusterContent(nodes=(a_node("n1").cpu(2).build(),), quotas=quotas)
    cluster = import_cluster(content, name="teams", actor=ALICE)
    submitted(cluster, a_pod("low", "a").cpu(2))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("high", "a").cpu(2).priority(1), a_pod("own", "b").cpu(2))
    schedule.run(cluster.pk)
    assert Decision.objects.filter(pod_name="high").earliest("id").evictions == (Evicted("a/low", "n1", 0),)
    assert [(row.name, row.feasible) for row in matrix_of(Decision.objects.get(pod_name="own"))] == [("n1", True)]
    consistent(cluster)


@pytest.mark.django_db
def test_pod_rejected_by_the_rows_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1").gpus(2), a_node("n2").cpu(64).memory("256Gi"))
    placed(cluster, "n2", a_pod("holds"))
    # Rows that the scheduler does not see: a reservation of another node holds GPU 0 of n1.
    unseen = Reservation.objects.get(pod__name="holds")
    n1 = cluster.nodes.get(name="n1")
    unseen.cards.create(node=n1, card_index=0, milli=1000, memory_mib=0, exclusive=True)
    plain = [a_pod(f"p{number}").cpu("100m") for number in range(9)]
    submitted(cluster, *plain[:4], a_pod("odd").gpu(1), *plain[4:])
    schedule.run(cluster.pk)
    found = states()
    assert found.pop("odd") == "not-now"
    assert set(found.values()) == {"placed"}
    reason = Decision.objects.get(pod_name="odd").reasons[0]
    assert reason.code == "LedgerRefused"
    assert Decision.objects.get(pod_name="odd").verdict == Verdict.NOT_NOW
    assert Pod.objects.filter(name="odd").values_list("queued", "node").get() == (False, None)


def a_gang_cluster() -> Cluster:
    """Return a cluster of two nodes of 2 CPUs, each with a placed pod of 2 CPUs, under a policy with gangs."""
    plugins = tuple(PluginUse(name) for name in ("gang-sort", *PLUGINS, "gang"))
    cluster = a_preempting_cluster(a_node("n1").cpu(2), a_node("n2").cpu(2))
    spec = PolicySpec("hetsched", plugins)
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="gangs")
    submitted(cluster, a_pod("low-0").cpu(2), a_pod("low-1").cpu(2))
    schedule.run(cluster.pk)
    return cluster


def gang(count: int, least: int, cpu: int = 2) -> list[PodBuilder]:
    return [a_pod(f"g-{number}").cpu(cpu).priority(10).gang("g", least) for number in range(count)]


@pytest.mark.django_db
def test_gang_replaces_one_pod_for_each_member() -> None:
    cluster = a_gang_cluster()
    submitted(cluster, *gang(2, 2))
    schedule.run(cluster.pk)
    assert states() == {"low-0": "not-now", "low-1": "not-now", "g-0": "placed", "g-1": "placed"}
    evicted = [decision.evictions[0].pod for decision in Decision.objects.filter(pod_name__startswith="g-")]
    assert sorted(evicted) == ["default/low-0", "default/low-1"]
    consistent(cluster)


@pytest.mark.django_db
def test_gang_that_cannot_start_replaces_no_pod() -> None:
    cluster = a_gang_cluster()
    submitted(cluster, a_pod("kept").cpu(0).priority(20), *gang(3, 3))
    schedule.run(cluster.pk)
    found = states()
    assert {found[name] for name in ("low-0", "low-1", "kept")} == {"placed"}
    assert "placed" not in {found[f"g-{number}"] for number in range(3)}
    assert not AuditEntry.objects.filter(action="pod.preempt").exists()
    consistent(cluster)


@pytest.mark.django_db
def test_gang_beyond_its_timeout_replaces_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first member evicts a pod on trial; the second is not decided in time, so that the gang does not start.
    cluster = a_gang_cluster()
    submitted(cluster, *gang(2, 2))
    ticks = count(step=1000)
    monkeypatch.setattr(
        scheduling_cycle, "time", SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=lambda: 0.0)
    )
    schedule.run(cluster.pk)
    monkeypatch.undo()
    found = states()
    assert {found["low-0"], found["low-1"]} == {"placed"}
    assert {found["g-0"], found["g-1"]} == {"not-now"}
    assert not AuditEntry.objects.filter(action="pod.preempt").exists()
    consistent(cluster)
