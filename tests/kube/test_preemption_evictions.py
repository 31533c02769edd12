"""Preemption on a real API server: victims are evicted, budgets are respected, no capacity is released early.

Real here: evictions, budgets and their rejections, graceful deletion. Not here: the controller that counts healthy
pods, so tests write the status of budgets; and kubelets, so a test deletes evicted pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import BUDGETS, PODS
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.models import Cluster, Node, Sync
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement import dispatch
from hetsched.placement.actions import evictions
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Eviction, Nomination, Pod, Reservation
from hetsched.placement.queries.decision_matrix import matrix_of
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.actions import activate, save_draft
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.faults import refusal, replies
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from tests.kube.test_pod_lifecycle import events_of
from workers import evict, report, schedule, sweep

MERGE = "application/merge-patch+json"
pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster, plane: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of 8 CPUs."""
    for worker in (binding_cycle, evict, report):
        monkeypatch.setattr(worker, "api_of", lambda _: api)
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    yield follower
    follower.ended.set()
    plane.call("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets")


def decide(follower: Informer) -> int:
    """Decide and bind all due pods, with the informer's current state."""
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    follower._write_sync()
    done = schedule.run(follower.lease.cluster_id)
    binding_cycle.run(follower.lease.cluster_id)
    return done


def running(api: Api, follower: Informer, *names: str, **spec: Any) -> None:
    """Run pods with our scheduler name, each with 4 CPUs by default."""
    for name in names:
        make_pod(api, name, **{"cpu": "4", **spec})
    eventually(follower, lambda: set(names) <= states().keys())
    decide(follower)
    for name in names:
        run_on(api, name)
    eventually(follower, lambda: all(states()[name] == "running" for name in names))


def run_on(api: Api, name: str, *, ready: str = "False") -> None:
    path = PODS.path(namespace="default", name=name, part="status")
    conditions = [{"type": "Ready", "status": ready}]
    body = json.dumps({"status": {"phase": "Running", "conditions": conditions}}).encode()
    api.send("PATCH", path, body, content=MERGE)


def urgent(
    api: Api, follower: Informer, name: str = "urgent", *, cpu: str = "4", class_name: str = "system-node-critical"
) -> None:
    """Create a pod with a higher priority than all others, and decide it."""
    make_pod(api, name, cpu=cpu, priorityClassName=class_name)
    eventually(follower, lambda: name in states())
    decide(follower)


def kubelet_ends(api: Api, name: str) -> None:
    """End a pod that is being deleted, as its kubelet would: set its phase, then delete it."""
    path = PODS.path(namespace="default", name=name, part="status")
    api.send("PATCH", path, json.dumps({"status": {"phase": "Failed"}}).encode(), content=MERGE)
    api.send("DELETE", PODS.path(namespace="default", name=name), query={"gracePeriodSeconds": "0"})


def is_finished(name: str) -> bool:
    return states()[name] in ("failed", "cancelled")  # its end and its deletion may arrive as one event


def budget(api: Api, name: str, app: str, *, allowed: int, healthy: int = 0, current: int = 1) -> None:
    """Create a budget for pods labelled `app`: allowed disruptions, desired healthy pods and current ones."""
    selector = {"matchLabels": {"app": app}}
    make(api, BUDGETS, name, "default", spec={"selector": selector, "minAvailable": 1})
    status = {
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": healthy,
        "expectedPods": current,
    }  # fmt: skip
    path = BUDGETS.path(namespace="default", name=name, part="status")
    api.send("PATCH", path, json.dumps({"status": status}).encode(), content=MERGE)


def is_leaving(api: Api, name: str) -> bool:
    return "deletionTimestamp" in pod_of(api, name)["metadata"]


def nominated(api: Api, name: str = "urgent") -> str:
    found: str = pod_of(api, name)["status"].get("nominatedNodeName", "")
    return found


def consistent(cluster: Cluster) -> None:
    assert check_invariants() == []
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        rebuilt = load_state(cluster.pk)
        assert snapshot.state.digest() == rebuilt.state.digest()
        assert (snapshot.state.columns.load == rebuilt.state.columns.load).all()
        assert snapshot.nominees == rebuilt.nominees


def test_victim_is_evicted_and_its_capacity_reserved_until_deletion(
    api: Api, cluster: Cluster, followed: Informer
) -> None:
    running(api, followed, "low", "other", terminationGracePeriodSeconds=120)
    urgent(api, followed)
    assert states() == {"low": "running", "other": "running", "urgent": "not-now"}
    decision = Decision.objects.filter(pod_name="urgent").latest("id")
    assert (decision.nominated_node, decision.node_name) == ("n1", "")
    (victim,) = [eviction.pod.partition("/")[2] for eviction in decision.evictions]
    stays = ({"low", "other"} - {victim}).pop()
    assert decision.reasons[0].code == "PreemptionPending"
    assert [(row.name, row.feasible) for row in matrix_of(decision)] == [("n1", True)]
    consistent(cluster)

    assert evict.run(cluster.pk) == 1
    assert (is_leaving(api, victim), is_leaving(api, stays)) == (True, False)
    assert pod_of(api, victim)["metadata"]["deletionGracePeriodSeconds"] == 120  # its own grace period
    report.run(cluster.pk)
    assert nominated(api) == "n1"
    (condition,) = [item for item in pod_of(api, "urgent")["status"]["conditions"] if item["type"] == "PodScheduled"]
    assert f"after the deletion of default/{victim} (priority 0)" in condition["message"]

    # It is terminating and keeps its resources. A pod as small as the gap that it will leave must not be placed there.
    make_pod(api, "late", cpu="4")
    eventually(followed, lambda: "late" in states())
    for _ in range(2):
        decide(followed)
        assert (states()[victim], states()["urgent"], states()["late"]) == ("running", "not-now", "not-now")
        assert Reservation.objects.filter(active=True).count() == 2
    assert Nomination.objects.count() == 1
    consistent(cluster)

    kubelet_ends(api, victim)
    eventually(followed, lambda: is_finished(victim))
    assert Pod.objects.get(name=victim).message == "Preempted by default/urgent"
    consistent(cluster)
    Pod.objects.filter(name="late").update(queued=True, not_before=None)
    assert decide(followed) == 2
    assert (states()["urgent"], states()["late"]) == ("bound", "not-now")
    assert pod_of(api, "urgent")["spec"]["nodeName"] == "n1"
    assert not Nomination.objects.filter(active=True).exists()
    consistent(cluster)


def test_victim_gets_the_preemptor_and_the_reason(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed)
    evict.run(cluster.pk)
    (condition,) = [item for item in pod_of(api, "low")["status"]["conditions"] if item["type"] == "DisruptionTarget"]
    sentence = "Preempted by default/urgent (priority 2000001000), which needs resources on n1; this pod has priority 0"
    assert (condition["reason"], condition["message"]) == ("PreemptionByScheduler", f"hetsched: {sentence}")
    assert ("Preempted", sentence) in events_of(api, "low")
    entry = AuditEntry.objects.get(action="pod.preempt")
    assert (entry.object_name, entry.reason) == ("default/low", "Selected for preemption by default/urgent")


def test_victim_gets_the_reason_even_if_later_evictions_fail(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(api, followed, "low", cpu="8", terminationGracePeriodSeconds=120)
    urgent(api, followed)

    def claim_evictions(cluster_id: int, most_groups: int) -> list[list[evictions.ClaimedEviction]]:
        if groups := evictions.claim_evictions(cluster_id, most_groups):
            return groups
        raise RuntimeError("database is not available")

    monkeypatch.setattr(evict, "claim_evictions", claim_evictions)
    monkeypatch.setattr(evict, "GROUPS_AT_ONCE", 1)
    with pytest.raises(RuntimeError):
        evict.run(cluster.pk)
    assert is_leaving(api, "low")
    assert "Preempted" in [reason for reason, _ in events_of(api, "low")]


def test_pods_without_a_budget_violation_leave_first(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "guarded", labels={"app": "guarded"})
    running(api, followed, "low")
    budget(api, "guard", "guarded", allowed=0, healthy=1)
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.budgets))
    urgent(api, followed)
    assert evict.run(cluster.pk) == 1
    assert (is_leaving(api, "low"), is_leaving(api, "guarded")) == (True, False)


def test_rejected_eviction_selects_another_victim(api: Api, cluster: Cluster, followed: Informer) -> None:
    # By the ledger the budget would allow it: only the API server knows that no pod may be evicted now.
    running(api, followed, "first")
    running(api, followed, "second", labels={"app": "guarded"})
    budget(api, "guard", "guarded", allowed=0)
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.budgets))
    urgent(api, followed)
    (chosen,) = Decision.objects.filter(pod_name="urgent").latest("id").evictions
    assert chosen.pod == "default/second"  # it runs for the shortest time, or is last by name
    assert evict.run(cluster.pk) == 0
    assert not is_leaving(api, "second")
    refused = Eviction.objects.get(state=Eviction.REFUSED)
    assert "disruption budget" in refused.message
    assert not Nomination.objects.filter(active=True).exists()
    consistent(cluster)
    decide(followed)
    assert evict.run(cluster.pk) == 1
    assert (is_leaving(api, "first"), is_leaving(api, "second")) == (True, False)


def test_protected_victim_is_not_evicted_again_immediately(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8", labels={"app": "guarded"})
    budget(api, "guard", "guarded", allowed=0)
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.budgets))
    urgent(api, followed)
    report.run(cluster.pk)
    assert nominated(api) == "n1"
    evict.run(cluster.pk)
    decide(followed)
    report.run(cluster.pk)
    assert nominated(api) == ""
    assert Decision.objects.filter(pod_name="urgent").latest("id").reasons[-1].code == "PreemptionRefused"
    assert (evict.run(cluster.pk), Nomination.objects.count()) == (0, 1)
    # After the pause, when the budget allows it, the same pod is evicted again, successfully.
    Eviction.objects.update(not_before=timezone.now() - timedelta(seconds=1))
    path = BUDGETS.path(namespace="default", name="guard", part="status")
    status = json.dumps({"status": {"disruptionsAllowed": 1}}).encode()
    api.send("PATCH", path, status, content=MERGE)
    decide(followed)
    assert evict.run(cluster.pk) == 1
    assert is_leaving(api, "low")


def test_no_victim_is_evicted_if_one_is_protected(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "free")
    running(api, followed, "guarded", labels={"app": "guarded"})
    budget(api, "guard", "guarded", allowed=0)
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.budgets))
    urgent(api, followed, cpu="8")
    assert Eviction.objects.count() == 2
    assert evict.run(cluster.pk) == 0
    assert not is_leaving(api, "free")
    assert sorted(Eviction.objects.values_list("state", flat=True)) == ["dropped", "refused"]


@pytest.mark.parametrize(("allowed", "leaving"), [(1, 0), (2, 2)])
def test_ready_victims_of_one_budget_are_charged_together(
    api: Api, cluster: Cluster, followed: Informer, allowed: int, leaving: int
) -> None:
    # Each dry run alone passes with one allowed disruption: it leaves the budget unchanged.
    running(api, followed, "a", "b", labels={"app": "guarded"})
    for name in ("a", "b"):
        run_on(api, name, ready="True")
    budget(api, "guard", "guarded", allowed=allowed, current=2)
    urgent(api, followed, cpu="8")
    assert Eviction.objects.count() == 2
    assert evict.run(cluster.pk) == leaving
    assert [is_leaving(api, name) for name in ("a", "b")] == [leaving > 0] * 2
    if not leaving:
        refused = Eviction.objects.get(state=Eviction.REFUSED)
        assert refused.message == "the disruption budget default/guard allows only 1 of the planned evictions"
        assert not Nomination.objects.filter(active=True).exists()


def test_deleted_nominated_pod_releases_its_nomination(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed)
    api.send("DELETE", PODS.path(namespace="default", name="urgent"), query={"gracePeriodSeconds": "0"})
    eventually(followed, lambda: states()["urgent"] == "cancelled")
    assert not Nomination.objects.filter(active=True).exists()
    assert evict.run(cluster.pk) == 0
    assert not is_leaving(api, "low")
    consistent(cluster)
    kubelet_ends(api, "low")
    make_pod(api, "next", cpu="8")
    eventually(followed, lambda: states().get("next") == "pending" and is_finished("low"))
    decide(followed)
    assert states()["next"] == "bound"


def test_free_capacity_elsewhere_replaces_the_eviction(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed)
    make_node(api, "n2")
    eventually(followed, lambda: Node.objects.count() == 2)
    decide(followed)
    assert states() == {"low": "running", "urgent": "bound"}
    assert pod_of(api, "urgent")["spec"]["nodeName"] == "n2"
    assert (evict.run(cluster.pk), is_leaving(api, "low")) == (0, False)
    consistent(cluster)


def test_higher_priority_pod_replaces_the_nomination(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed, "second", cpu="8", class_name="system-cluster-critical")
    evict.run(cluster.pk)
    kubelet_ends(api, "low")
    eventually(followed, lambda: is_finished("low"))
    make_pod(api, "first", cpu="8", priorityClassName="system-node-critical")
    eventually(followed, lambda: "first" in states())
    decide(followed)
    assert (states()["second"], states()["first"]) == ("not-now", "bound")
    assert not Nomination.objects.filter(active=True).exists()
    consistent(cluster)
    report.run(cluster.pk)
    assert nominated(api, "second") == ""


def test_nomination_ends_if_victims_stay(api: Api, cluster: Cluster, followed: Informer, woken: list[Any]) -> None:
    running(api, followed, "one", "two")
    urgent(api, followed)
    evict.run(cluster.pk)
    victim = Eviction.objects.get().victim
    Nomination.objects.update(created_at=timezone.now() - evictions.PATIENCE - timedelta(seconds=1))
    sweep.run()
    assert (cluster.pk, dispatch.EVICT) in woken
    evict.run(cluster.pk)
    assert Pod.objects.get(pk=victim.pk).state == "running"  # it keeps its resources
    consistent(cluster)
    decide(followed)
    (other,) = {"one", "two"} - {victim.name}
    assert Nomination.objects.get(active=True).evictions.get().victim.name == other
    consistent(cluster)


def test_pods_of_other_schedulers_are_evicted_only_by_policy(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "theirs", cpu="8", schedulerName="default-scheduler", nodeName="n1")
    eventually(followed, lambda: states() == {"theirs": "running"})
    urgent(api, followed)
    assert not Nomination.objects.exists()
    plugins = (PluginUse("resource-fit"), PluginUse("preemption", params={"foreign": True}))
    version = save_draft(PolicySpec("hetsched", plugins), actor=SYSTEM).version
    activate("hetsched", version, actor=SYSTEM, reason="test")
    decide(followed)
    assert evict.run(cluster.pk) == 1
    kubelet_ends(api, "theirs")
    eventually(followed, lambda: is_finished("theirs"))
    decide(followed)
    assert states()["urgent"] == "bound"
    consistent(cluster)


@pytest.mark.parametrize("status", [0, 429, 503])
def test_eviction_with_an_unknown_result_is_repeated(
    api: Api, cluster: Cluster, followed: Informer, status: int
) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed)

    def respond(call: int, real: Any) -> Any:
        if call == 1:
            if status == 0:
                real()  # the call succeeded; its response was lost
            raise refusal(status)
        return real()

    with replies(api, to="/low/eviction", respond=respond):
        assert evict.run(cluster.pk) == 0
        assert evict.run(cluster.pk) == 0  # it backs off
        assert Nomination.objects.filter(active=True).exists()
        Eviction.objects.update(not_before=None)
        assert evict.run(cluster.pk) == 1
    assert is_leaving(api, "low")


def test_recreated_victim_is_not_evicted(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "low", cpu="8")
    urgent(api, followed)
    api.send("DELETE", PODS.path(namespace="default", name="low"), query={"gracePeriodSeconds": "0"})
    make_pod(api, "low", cpu="8")
    evict.run(cluster.pk)
    assert not is_leaving(api, "low")


def test_unbound_victim_is_requeued_without_an_eviction(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "low", cpu="8")
    eventually(followed, lambda: states() == {"low": "pending"})
    followed._write_sync()
    schedule.run(cluster.pk)
    make_pod(api, "urgent", cpu="4", priorityClassName="system-node-critical")
    eventually(followed, lambda: "urgent" in states())
    followed._write_sync()
    schedule.run(cluster.pk)
    assert evict.run(cluster.pk) == 1
    assert (states()["low"], Pod.objects.get(name="low").message) == ("pending", "Preempted by default/urgent")
    decide(followed)
    assert states() == {"low": "not-now", "urgent": "bound"}
    assert not is_leaving(api, "low")
    consistent(cluster)


def test_no_eviction_is_sent_while_the_cluster_is_out_of_sync(api: Api, cluster: Cluster, followed: Informer) -> None:
    running(api, followed, "a", "b")
    urgent(api, followed)
    Sync.objects.update(synced_at=None)  # another installation may hold the Lease
    with replies(api, to="/eviction", respond=lambda _, call: call()) as calls:
        assert evict.run(cluster.pk) == 0
        assert (calls, Eviction.objects.get().attempts) == ([], 0)
        followed._write_sync()
        assert evict.run(cluster.pk) == 1
    assert len(calls) == 1
