"""Deletion of finished workloads, pods and reservations after their retention period.

A finished workload is deleted with its pods, decisions, ended reservations and live topic. Ended pods that other
schedulers placed are deleted too, and so are the former reservations of running pods that changed in place. The audit
trail is kept, and so is the summary of each decision, so that permalinks keep working. The latest decisions are kept as
long as the feed shows them.
Deletion changes no active reservation, so the cluster's revision stays the same. A cached state that is older than a
deleted row cannot catch up from the remaining rows, so the cluster stores the latest revision of a deleted row
(`forgotten_revision`).
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Max

from hetsched.inventory.models import Cluster
from hetsched.journal.publish import delete_topics
from hetsched.placement.queries.topics import LATEST, workload_topic
from hetsched.storage.literals import literals
from hetsched.storage.write_lock import write_transaction

from ..models import Decision, ForgottenDecision, Pod, Reservation, Workload
from ..models.reservations import CONTINUED


def delete_finished_workloads(cluster_id: int, *, finished_before: datetime, limit: int = 200) -> int:
    """Delete workloads that finished before a time, the oldest first; return how many were deleted."""
    if not Workload.objects.filter(cluster_id=cluster_id, finished_at__lt=finished_before).exists():
        return 0
    shown = list(Decision.objects.order_by("-id").values_list("id", flat=True)[:LATEST])
    with write_transaction():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        old = Workload.objects.filter(cluster=cluster, finished_at__lt=finished_before)
        old = old.exclude(decisions__in=shown).order_by("finished_at")
        ids = list(old.values_list("id", flat=True)[:limit])
        ended = Reservation.objects.filter(pod__workload_id__in=ids).aggregate(last=Max("released_revision"))["last"]
        cluster.forgotten_revision = max(cluster.forgotten_revision, ended or 0)
        cluster.save(update_fields=["forgotten_revision"])
        Pod.objects.filter(workload_id__in=ids).update(decision=None)
        _write_summaries(ids)
        Workload.objects.filter(pk__in=ids).delete()
        delete_topics([workload_topic(workload_id) for workload_id in ids])
    return len(ids)


def delete_ended_foreign_pods(cluster_id: int, *, finished_before: datetime, limit: int = 1000) -> int:
    """Delete pods of other schedulers that ended before a time; return how many were deleted."""
    ended = Pod.objects.filter(cluster_id=cluster_id, workload=None, finished_at__lt=finished_before)
    if not ended.exists():
        return 0
    with write_transaction():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        reservations = Reservation.objects.filter(active=True).values("pod")
        ids = list(ended.exclude(pk__in=reservations).order_by("finished_at").values_list("id", flat=True)[:limit])
        last = Reservation.objects.filter(pod__in=ids).aggregate(last=Max("released_revision"))["last"]
        cluster.forgotten_revision = max(cluster.forgotten_revision, last or 0)
        cluster.save(update_fields=["forgotten_revision"])
        Pod.objects.filter(pk__in=ids).delete()
    return len(ids)


def delete_former_reservations(cluster_id: int, *, released_before: datetime, limit: int = 1000) -> int:
    """Delete reservations that another reservation of the same pod replaced before a time; return how many."""
    changed = Reservation.objects.filter(cluster=cluster_id, release_reason__in=literals(CONTINUED))
    if not changed.filter(released_at__lt=released_before).exists():
        return 0
    with write_transaction():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        rows = Reservation.objects.filter(
            cluster=cluster, release_reason__in=literals(CONTINUED), released_at__lt=released_before, active=False
        )
        found = dict(rows.order_by("released_at").values_list("id", "released_revision")[:limit])
        cluster.forgotten_revision = max(cluster.forgotten_revision, *(until or 0 for until in found.values()), 0)
        cluster.save(update_fields=["forgotten_revision"])
        Reservation.objects.filter(pk__in=found).delete()
    return len(found)


def _write_summaries(workload_ids: list[str]) -> None:
    fields = ("id", "cluster_id", "namespace", "verdict", "summary", "created_at")
    rows = Decision.objects.filter(workload_id__in=workload_ids).values(*fields)
    ForgottenDecision.objects.bulk_create([ForgottenDecision(**row) for row in rows], batch_size=500)


def delete_summaries(*, decided_before: datetime) -> None:
    """Delete the summaries of deleted decisions that were made before this time."""
    ForgottenDecision.objects.filter(created_at__lt=decided_before).delete()
