"""Nominated pods of a live cluster: claimed evictions, ended victims, and the next decision of the nominated pod."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.actions.evictions import CLAIM, claim_evictions, mark_refused, mark_requested
from hetsched.placement.models import Decision, Eviction, Nomination, Pod, Preemption
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling.leases import leading
from hetsched.scheduling.scheduling_loop import SchedulingLoop
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import BindingHost, a_live_cluster, acquire_lease

pytestmark = pytest.mark.django_db
NODES = ("n1", "n2", "n3")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with three nodes of 8 CPUs, each full of four running pods of 2 CPUs and priority 0."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    running = [observed(a_pod(f"low-{node}-{n}").cpu(2), node=node) for node in NODES for n in range(4)]
    seen(made, nodes=[a_node(name).build() for name in NODES], pods=running)
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def observed(pod: PodBuilder, node: str = "") -> ObservedPod:
    spec = pod.build()
    spec = pod.having(uid=f"uid-{spec.name}", node_name=node).build()
    phase = "Running" if node else ""
    return ObservedPod(
        "default", spec.name, spec.uid, scheduler_name="hetsched", node_name=node, phase=phase, spec=spec
    )


def decide(cluster: Cluster) -> dict[str, str]:
    """Decide the due pods; return the verdict of each."""
    lease = acquire_lease(cluster)
    results = SchedulingLoop(BindingHost(), cluster.pk, "live", 200).iterate(lease).results
    leading.release(lease)
    assert check_invariants(Cluster.objects.get(pk=cluster.pk)) == []
    return {result.waiting.spec.name: result.verdict.value for result in results}


def nominate(cluster: Cluster, *names: str) -> None:
    """Nominate pods of 4 CPUs and priority 100; each needs two victims."""
    seen(cluster, pods=[observed(a_pod(name).cpu(4).having(priority=100)) for name in names])
    assert decide(cluster) == dict.fromkeys(names, "not-now")


def victims_of(name: str) -> list[str]:
    rows = Eviction.objects.filter(nomination__pod__name=name, nomination__active=True)
    return list(rows.order_by("id").values_list("victim__name", flat=True))


def end(cluster: Cluster, *names: str) -> None:
    """Report these pods as deleted after their containers had stopped."""
    seen(cluster, pods_gone=[f"default/{name}" for name in names], stopped={f"uid-{name}" for name in names})


def test_each_victim_is_evicted_for_one_pod_only(cluster: Cluster) -> None:
    nominate(cluster, "high-0", "high-1", "high-2")
    victims = [victims_of(f"high-{n}") for n in range(3)]
    assert [len(names) for names in victims] == [2, 2, 2]
    assert len({name for names in victims for name in names}) == 6
    entries = AuditEntry.objects.filter(action="pod.preempt")
    assert sorted(entries.values_list("object_name", "reason")) == sorted(
        (f"default/{name}", f"Selected for preemption by default/high-{n}")
        for n, names in enumerate(victims)
        for name in names
    )


def test_pod_is_due_once_its_last_victim_ended(cluster: Cluster) -> None:
    nominate(cluster, "high")
    first, last = victims_of("high")
    mark_requested([one for group in claim_evictions(cluster.pk, 10) for one in group])
    end(cluster, first)
    assert decide(cluster) == {}
    end(cluster, last)
    assert decide(cluster) == {"high": "placed"}
    assert Decision.objects.filter(pod_name="high").count() == 2
    preemptions = Preemption.objects.order_by("victim__name").values_list("victim__name", "name", "victim__message")
    assert list(preemptions) == [(name, "high", "Preempted by default/high") for name in sorted((first, last))]


def test_pod_with_a_remaining_victim_is_placed_where_capacity_is_released(cluster: Cluster) -> None:
    nominate(cluster, "high")
    first, _ = victims_of("high")
    node = Nomination.objects.get(active=True).node.name
    other = next(name for name in NODES if name != node)
    end(cluster, first)
    end(cluster, f"low-{other}-0", f"low-{other}-1")
    Pod.objects.filter(name="high").update(not_before=timezone.now() - timedelta(seconds=1))  # its back-off is over
    assert decide(cluster) == {"high": "placed"}
    assert Pod.objects.get(name="high").node == cluster.nodes.get(name=other)
    assert not Nomination.objects.filter(active=True).exists()


def test_claimed_evictions_are_not_claimed_again_before_the_claim_expires(cluster: Cluster) -> None:
    nominate(cluster, "high-0", "high-1", "high-2")
    claimed = claim_evictions(cluster.pk, 2)
    assert [[one.victim.name for one in group] for group in claimed] == [victims_of("high-0"), victims_of("high-1")]
    assert [[one.victim.name for one in group] for group in claim_evictions(cluster.pk, 2)] == [victims_of("high-2")]
    assert claim_evictions(cluster.pk, 2) == []
    Eviction.objects.update(not_before=timezone.now() - timedelta(microseconds=1))
    again = claim_evictions(cluster.pk, 10)
    assert [one.eviction.attempts for group in again for one in group] == [2] * 6
    claimed_until = Eviction.objects.values_list("not_before", flat=True)
    assert all(until is not None and until > timezone.now() + CLAIM / 2 for until in claimed_until)


def test_retry_while_victims_remain_adds_no_decision(cluster: Cluster) -> None:
    nominate(cluster, "high")
    first, _ = victims_of("high")
    end(cluster, first)
    Pod.objects.filter(name="high").update(queued=True, not_before=timezone.now() - timedelta(seconds=1))
    assert decide(cluster) == {"high": "not-now"}
    (decision,) = Decision.objects.filter(pod_name="high")
    assert decision.reasons[0].code == "PreemptionPending"
    assert Pod.objects.get(name="high").attempts == 2


def test_pod_of_higher_priority_ends_the_nomination_that_it_displaces(cluster: Cluster) -> None:
    nominate(cluster, "high-0", "high-1", "high-2")
    seen(cluster, pods=[observed(a_pod("urgent").cpu(8).having(priority=1000))])
    assert decide(cluster) == {"urgent": "not-now"}
    node = Nomination.objects.get(pod__name="urgent", active=True).node
    displaced = Nomination.objects.get(node=node, active=False)
    assert displaced.pod.name.startswith("high-")
    assert displaced.end_reason == "default/urgent needs the resources"
    assert displaced.pod.queued
    assert Nomination.objects.filter(active=True).count() == 3


def test_refused_evictions_are_named_if_no_other_victims_help(cluster: Cluster) -> None:
    nominate(cluster, "high")
    for _ in range(12):  # each of the 12 running pods is refused at most once
        claimed = claim_evictions(cluster.pk, 1)
        if not claimed:
            break
        mark_refused(cluster.pk, claimed[0][0], "the budget allows no eviction")
        assert decide(cluster) == {"high": "not-now"}
    refused = set(Eviction.objects.filter(state=Eviction.REFUSED).values_list("victim__name", flat=True))
    assert len(refused) == 9  # three pods on each node: the fourth alone does not release enough
    assert not Nomination.objects.filter(active=True).exists()
    reasons = Decision.objects.filter(pod_name="high").latest("id").reasons
    named = {str(reason.message) for reason in reasons if reason.code == "PreemptionRefused"}
    assert named == {f"default/{name} was not evicted: the budget allows no eviction" for name in refused}


def test_nominated_pod_waits_next_to_a_nominated_pod_of_lower_priority(cluster: Cluster) -> None:
    # The nodes are full of nominated pods and victims, so the last pod needs all other pods of its node as victims.
    nominate(cluster, "high-0", "high-1", "high-2")
    before = set(Nomination.objects.filter(active=True).values_list("id", flat=True))
    seen(cluster, pods=[observed(a_pod("mid").cpu(4).having(priority=50))])
    assert decide(cluster) == {"mid": "not-now"}
    Pod.objects.filter(name__startswith="high").update(queued=True, not_before=None)
    assert decide(cluster) == dict.fromkeys(("high-0", "high-1", "high-2"), "not-now")
    assert before < set(Nomination.objects.filter(active=True).values_list("id", flat=True))
