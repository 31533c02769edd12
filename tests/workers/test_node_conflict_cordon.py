"""If decisions keep conflicting with the ledger's rows of a node, the node is cordoned."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hetsched.inventory.actions import uncordon
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import reservation_conflicts
from hetsched.placement.actions.reservation_conflicts import record_reservation_conflicts
from hetsched.placement.models import Decision, Pod, RejectedCommit, Reservation
from hetsched.placement.queries.invariants import check_invariants
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, placed, submitted
from workers import schedule

pytestmark = pytest.mark.django_db


def node(name: str = "n1") -> Node:
    return Node.objects.get(name=name)


def test_repeated_conflicts_cordon_the_node() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"))
    for _ in range(reservation_conflicts.MOST - 1):
        assert record_reservation_conflicts(cluster.pk, [node().pk]) == []
    assert not node().unschedulable
    assert record_reservation_conflicts(cluster.pk, [node().pk, node("n2").pk]) == ["n1"]
    assert (node().unschedulable, node("n2").unschedulable) == (True, False)
    entry = AuditEntry.objects.get(action="node.cordon")
    assert entry.reason == "cordoned: 20 reservations on the node failed with a conflict within 5 minutes"
    uncordon(Cluster.objects.get(), "n1", actor=ALICE, reason="looked at")
    assert record_reservation_conflicts(cluster.pk, [node().pk]) == []  # the count restarts


def test_old_conflicts_are_not_counted() -> None:
    cluster = a_cluster(a_node("n1"))
    for _ in range(reservation_conflicts.MOST - 1):
        record_reservation_conflicts(cluster.pk, [node().pk])
    RejectedCommit.objects.update(created_at=timezone.now() - reservation_conflicts.WITHIN - timedelta(seconds=1))
    assert record_reservation_conflicts(cluster.pk, [node().pk]) == []
    assert RejectedCommit.objects.count() == 1


def test_seeded_conflict_cordons_the_node_and_pods_go_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_conflicts, "MOST", 4)
    # Rows that the scheduler does not see hold a GPU of each of two nodes.
    cluster = a_cluster(a_node("n1").gpus(1), a_node("n2").gpus(2), a_node("n3").cpu(64))
    placed(cluster, "n3", a_pod("holds"))
    unseen = Reservation.objects.get(pod__name="holds")
    for name in ("n1", "n2"):
        unseen.cards.create(node=node(name), card_index=0, milli=1000, memory_mib=0, exclusive=True)
    submitted(cluster, *(a_pod(f"p{number}").gpu(1) for number in range(8)))
    for _ in range(6):
        Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
        schedule.run(cluster.pk)
    refused = [
        decision
        for decision in Decision.objects.all()
        if any(reason.code == "LedgerRefused" for reason in decision.reasons)
    ]
    assert refused
    assert {node("n1").unschedulable, node("n2").unschedulable} == {True}
    counted = RejectedCommit.objects.count()
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    schedule.run(cluster.pk)
    assert RejectedCommit.objects.count() == counted  # the scheduler does not try them any more
    assert {violation.id for violation in check_invariants()} <= {"I3", "I8"}  # the rows that the test created
