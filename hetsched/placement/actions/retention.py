"""Forget what ended long ago.

Rule: a finished workload goes with its pods, decisions, ended reservations and live topic, and so do pods that others
placed and that ended; the audit trail stays, and of each decision its summary, for the permalinks. The latest decisions
stay as long as the feed shows them. What is held does not change, so neither does the revision. Copies of the cluster's
state that are older than what was forgotten cannot catch up by it, so the cluster remembers up to which revision that
is.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Max

from hetsched.inventory.models import Cluster
from hetsched.journal.publish import forget
from hetsched.placement.queries.topics import LATEST, workload_topic

from ..models import Decision, ForgottenDecision, Pod, Reservation, Workload


def forget_finished(cluster_id: int, *, finished_before: datetime, limit: int = 200) -> int:
    """Delete workloads that finished before a time, the oldest first; return how many went."""
    if not Workload.objects.filter(cluster_id=cluster_id, finished_at__lt=finished_before).exists():
        return 0
    shown = list(Decision.objects.order_by("-id").values_list("id", flat=True)[:LATEST])
    with transaction.atomic():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        old = Workload.objects.filter(cluster=cluster, finished_at__lt=finished_before)
        old = old.exclude(decisions__in=shown).order_by("finished_at")
        ids = list(old.values_list("id", flat=True)[:limit])
        ended = Reservation.objects.filter(pod__workload_id__in=ids).aggregate(last=Max("released_revision"))["last"]
        cluster.forgotten_revision = max(cluster.forgotten_revision, ended or 0)
        cluster.save(update_fields=["forgotten_revision"])
        Pod.objects.filter(workload_id__in=ids).update(decision=None)
        _keep_summaries(ids)
        Workload.objects.filter(pk__in=ids).delete()
        forget([workload_topic(workload_id) for workload_id in ids])
    return len(ids)


def forget_charged(cluster_id: int, *, finished_before: datetime, limit: int = 1000) -> int:
    """Delete pods that others placed and that ended before a time; return how many went."""
    ended = Pod.objects.filter(cluster_id=cluster_id, workload=None, finished_at__lt=finished_before)
    if not ended.exists():
        return 0
    with transaction.atomic():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        held = Reservation.objects.filter(active=True).values("pod")
        ids = list(ended.exclude(pk__in=held).order_by("finished_at").values_list("id", flat=True)[:limit])
        last = Reservation.objects.filter(pod__in=ids).aggregate(last=Max("released_revision"))["last"]
        cluster.forgotten_revision = max(cluster.forgotten_revision, last or 0)
        cluster.save(update_fields=["forgotten_revision"])
        Pod.objects.filter(pk__in=ids).delete()
    return len(ids)


def _keep_summaries(workload_ids: list[str]) -> None:
    fields = ("id", "cluster_id", "namespace", "verdict", "summary", "created_at")
    rows = Decision.objects.filter(workload_id__in=workload_ids).values(*fields)
    ForgottenDecision.objects.bulk_create([ForgottenDecision(**row) for row in rows], batch_size=500)


def forget_summaries(*, decided_before: datetime) -> None:
    """Delete what was kept of decisions that are older than this."""
    ForgottenDecision.objects.filter(created_at__lt=decided_before).delete()
