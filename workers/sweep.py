"""Recover work whose messages were lost, and delete expired data.

The sweep finds the work of every lost message: due pods that no process schedules, unbound placements, unsent events,
and unreported states. It also requeues pods that have been unschedulable for too long, and deletes old data: finished
workloads, idempotency keys, events, counters of failed logins, and sessions. Repeated or concurrent runs are harmless.
A failure in one part or one cluster does not block the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from celery import shared_task
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from hetsched.access.limits import delete_full_buckets
from hetsched.access.login import delete_expired_failures
from hetsched.access.sessions import delete_ended_sessions
from hetsched.inventory.agent_messages import apply_samples
from hetsched.inventory.fact_review import end_overrides
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.sample_expiry import expire_samples
from hetsched.inventory.staleness import report_staleness
from hetsched.journal import publish
from hetsched.placement import dispatch
from hetsched.placement.actions import (
    delete_ended_foreign_pods,
    delete_finished_workloads,
    delete_former_reservations,
    delete_summaries,
    end_holds,
    prune_holds,
    write_placement_effects,
)
from hetsched.placement.actions.evictions import due_evictions, overdue_nominations
from hetsched.placement.actions.gangs import has_incomplete_gangs, settle_incomplete_gangs
from hetsched.placement.actions.image_platforms import due_images, prune_images
from hetsched.placement.actions.kubelet_rejections import prune_rejections, requeue_after_backoff
from hetsched.placement.actions.live_submissions import due_objects
from hetsched.placement.actions.rebalance_state import has_running_plan, prune_plans
from hetsched.placement.actions.shadow_decisions import has_pending_comparisons, prune_comparisons
from hetsched.placement.actions.terminating_pods import RELEASED_AT_ONCE, release_orphaned_pods
from hetsched.placement.models import IdempotencyKey, Pod
from hetsched.placement.notifications.deliveries import due_hosts, fail_old_deliveries, prune_deliveries
from hetsched.placement.queries.placement_effects import oldest_without_effects
from hetsched.placement.scheduling_queue.active_queue import active_pods
from hetsched.placement.scheduling_queue.unschedulable_pods import requeue_timed_out_pods
from hetsched.policies.models import PolicyObject
from hetsched.scheduling.binding_cycle import has_unbound_pods
from hetsched.scheduling.leases import leading

from .report import unreported, unreported_policies

KEYS_KEPT = timedelta(hours=48)
EFFECTS_LATE = timedelta(seconds=10)  # the informer process writes them within `bindings_in_flight.BACKLOG_SECONDS`
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.SWEEP)
def run() -> dict[str, int]:
    """Wake tasks that have work, send unsent events and delete old data; return counts."""
    found = {"woken": 0, "relayed": _run_step(publish.relay) or 0, "pruned": _run_step(publish.prune) or 0}
    now = timezone.now()
    for cluster in Cluster.objects.all():
        for step in _cluster_steps(cluster, now):
            _run_step(step)
        for task, is_wanted in _wake_conditions(cluster):
            if _run_step(is_wanted):
                dispatch.wake(cluster.pk, task)
                found["woken"] += task == dispatch.SCHEDULE
        for step in _deletion_steps(cluster.pk, now):
            _run_step(step)
    for step in _shared_steps(now):
        _run_step(step)
    return found


def _run_step(step: Callable[[], Any]) -> Any:
    """Run one part of the sweep and log its failure. Raises: only if the database is unavailable."""
    try:
        return step()
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("sweep step failed", part=getattr(step, "func", step).__qualname__)
        return None


def _cluster_steps(cluster: Cluster, now: datetime) -> Iterator[Callable[[], object]]:
    yield partial(requeue_timed_out_pods, cluster.pk)
    yield partial(end_overrides, cluster.pk)
    yield partial(apply_samples, cluster.pk)
    yield partial(expire_samples, cluster.pk)
    yield partial(requeue_after_backoff, cluster.pk, now)
    yield partial(_release_orphaned_pods, cluster.pk)
    yield partial(end_holds, cluster.pk)
    yield partial(_settle_gangs, cluster.pk)
    if cluster.kind == ClusterKind.KUBERNETES:
        yield partial(report_staleness, cluster.pk)
    if cluster.effects_due_since is not None:
        yield partial(_write_late_effects, cluster, now)


def _write_late_effects(cluster: Cluster, now: datetime) -> None:
    """Write the effects of placements if the process that placed the pods has not: it may have ended."""
    since = oldest_without_effects().get(cluster.name)
    if since is not None and since < now - EFFECTS_LATE:
        write_placement_effects(cluster.pk)


def _wake_conditions(cluster: Cluster) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each kind of task with a function that checks whether the cluster has work for it."""
    yield dispatch.SCHEDULE, partial(_is_left_waiting, cluster.pk)
    if cluster.kind == ClusterKind.KUBERNETES:
        yield dispatch.REPORT, partial(_has_reports, cluster.pk)
    yield dispatch.CREATE, due_objects(cluster.pk).exists
    yield dispatch.EVICT, partial(_has_due_evictions, cluster.pk)
    yield dispatch.REBALANCE, partial(has_running_plan, cluster.pk)
    yield dispatch.SHADOW, partial(has_pending_comparisons, cluster.pk)
    yield dispatch.IMAGES, due_images(cluster.pk).exists
    yield dispatch.BIND, partial(has_unbound_pods, cluster)


def _deletion_steps(cluster_id: int, now: datetime) -> Iterator[Callable[[], object]]:
    before = now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS)
    yield partial(prune_comparisons, cluster_id)
    yield partial(prune_images, cluster_id)
    yield partial(prune_rejections, cluster_id, before=before)
    yield partial(prune_plans, cluster_id, before=before)
    yield partial(delete_finished_workloads, cluster_id, finished_before=before)
    yield partial(prune_holds, cluster_id, before=before)
    yield partial(delete_ended_foreign_pods, cluster_id, finished_before=before)
    yield partial(delete_former_reservations, cluster_id, released_before=before)


def _shared_steps(now: datetime) -> Iterator[Callable[[], object]]:
    yield _wake_deliveries
    yield partial(fail_old_deliveries, now)
    yield partial(prune_deliveries, ended_before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
    yield IdempotencyKey.objects.filter(created_at__lt=now - KEYS_KEPT).delete
    yield partial(delete_summaries, decided_before=now - timedelta(days=settings.HETSCHED_KEEP_SUMMARIES_DAYS))
    yield partial(delete_expired_failures, now)
    yield delete_full_buckets
    yield partial(delete_ended_sessions, now)


def _is_left_waiting(cluster_id: int) -> bool:
    return active_pods(cluster_id).exists() and not leading.is_held(cluster_id)


def _release_orphaned_pods(cluster_id: int) -> None:
    while release_orphaned_pods(cluster_id) == RELEASED_AT_ONCE:
        pass


def _settle_gangs(cluster_id: int) -> None:
    if has_incomplete_gangs(cluster_id):
        settle_incomplete_gangs(cluster_id)


def _has_due_evictions(cluster_id: int) -> bool:
    return due_evictions(cluster_id).exists() or overdue_nominations(cluster_id).exists()


def _wake_deliveries() -> None:
    for host in due_hosts():
        dispatch.wake(host, dispatch.CALLBACK)


def _has_reports(cluster_id: int) -> bool:
    if PolicyObject.objects.filter(unreported_policies(cluster_id)).exists():
        return True
    return Pod.objects.filter(unreported(cluster_id)).exists()
