"""A stream of work leaves as many rows after two days as after one; rows that are still in use stay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.apps import apps

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import apply_changes, cancel, release, retention
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, ForgottenDecision, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from workers import schedule, sweep

pytestmark = pytest.mark.django_db
ROUNDS, HOURS = 9, 7  # a day is no multiple of a round: rounds of different speed delete the same rows


@pytest.fixture
def rounds(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Advance seven hours between rounds; finished work is kept for eight hours, summaries for a day."""
    settings.HETSCHED_KEEP_FINISHED_HOURS, settings.HETSCHED_KEEP_SUMMARIES_DAYS = HOURS + 1, 1
    monkeypatch.setattr(retention, "LATEST", 1)
    began = datetime(2026, 11, 1, tzinfo=UTC)

    def passing() -> Iterator[int]:
        for number in range(ROUNDS):
            with time_machine.travel(began + timedelta(hours=HOURS * number), tick=True):
                yield number

    return passing()


def rows() -> dict[str, int]:
    return {model._meta.db_table: model._default_manager.count() for model in apps.get_models()}


def work(cluster: Cluster, number: int) -> None:
    """Decide two pods: one runs and ends, and one never fits and is cancelled."""
    workload = submitted(cluster, a_pod(f"run-{number}"), a_pod(f"huge-{number}").cpu(500))
    schedule.run(cluster.pk)
    ran = workload.pods.order_by("id")[0]
    release(cluster.pk, [ran.pk], to=State.SUCCEEDED, reason="done")
    cancel(workload, actor=ALICE, reason="the other pod is not needed")


def add_foreign_pods(cluster: Cluster, number: int) -> None:
    """Add and delete a pod that another scheduler placed."""
    spec = a_pod(f"theirs-{number}").having(uid=f"u{number}", node_name="m1").build()
    seen = ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="other", spec=spec, node_name="m1",
                       phase="Running")  # fmt: skip
    apply_changes(cluster.pk, Changes(pods=[seen]), epoch=1)
    apply_changes(cluster.pk, Changes(pods_gone=[spec.key], stopped={spec.uid}), epoch=1)


def test_row_counts_are_bounded(rounds: Iterator[int]) -> None:
    counted: list[dict[str, int]] = []
    for number in rounds:
        if number == 0:
            lab = a_cluster(a_node("n1"), name="lab")
            submitted(lab, a_pod("stays"))
            live = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
            Connection.objects.create(cluster=live, follower_epoch=1)
            apply_changes(live.pk, Changes(nodes=[a_node("m1").build()]), epoch=1)
        work(lab, number)
        add_foreign_pods(live, number)
        sweep.run()
        counted.append(rows())
    # After a day every deletable kind of row is being deleted; from then on deletions balance additions.
    settled = counted[-4]
    grown = {table for last in counted[-3:] for table, count in last.items() if count > settled[table]}
    assert grown == {"journal_auditentry"}
    assert settled["placement_pod"] < ROUNDS
    # A running pod keeps its reservation and its decision; a deleted one leaves a summary for a day.
    assert Reservation.objects.get(active=True).pod.name == "stays"
    assert Decision.objects.filter(pod__name="stays").count() == 1
    assert set(Pod.objects.filter(origin=Pod.IMPORTED).values_list("name", flat=True)) == {"theirs-7", "theirs-8"}
    summaries = list(ForgottenDecision.objects.values_list("summary", flat=True))
    assert summaries
    assert all("run-" in text or "huge-" in text for text in summaries)
    assert AuditEntry.objects.filter(action="workload.submit").count() == ROUNDS + 1
    assert check_invariants() == []


@pytest.mark.parametrize(
    ("kept", "reasons", "nodes"), [("verdict", False, 0), ("reasons", True, 0), ("nodes", True, 3), ("matrix", True, 5)]
)
def test_retention_of_decision_details_is_a_setting(settings: Any, kept: str, reasons: bool, nodes: int) -> None:
    settings.HETSCHED_KEEP_WITH_DECISION = kept
    settings.HETSCHED_TOP_NODES = {"nodes": 3, "matrix": 1_000_000}.get(kept, 0)  # as the settings compute it
    cluster = a_cluster(*(a_node(f"n{number}") for number in range(5)))
    submitted(cluster, a_pod("p"), a_pod("huge").cpu(500))
    schedule.run(cluster.pk)
    placed, refused = Decision.objects.order_by("verdict").reverse()
    assert (placed.verdict, placed.node_name != "", len(placed.top)) == ("placed", True, nodes)
    assert (refused.verdict, bool(refused.reasons)) == ("never-fits", reasons)
    assert "never fits" in refused.summary
