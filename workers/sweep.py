"""Find what messages lost.

Rule: every hint has this behind it: pods that are due while nobody leads, placements that nobody binds, events that
nobody sent, states that nobody told. It also looks again at pods that did not fit a minute ago and deletes what is
over: workloads that ended long ago, idempotency keys, events, counters of failed logins, sessions. Running it twice, or
on two machines at once, does no harm.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from celery import shared_task
from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from hetsched.access.login import forget_failures
from hetsched.inventory.hearing import take_samples
from hetsched.inventory.lease import leading
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.ruling import end_overrides
from hetsched.inventory.staleness import tell_watched
from hetsched.journal import publish
from hetsched.placement import dispatch
from hetsched.placement.actions import end_holds, forget_charged, forget_finished, forget_holds, forget_summaries
from hetsched.placement.actions.creating import due
from hetsched.placement.actions.evicting import due_evictions, late_nominations
from hetsched.placement.actions.gangs import half_bound, settle_half_gangs
from hetsched.placement.actions.imaging import due_images, forget_images
from hetsched.placement.actions.rebalancing import forget_plans, under_way
from hetsched.placement.actions.refusing import forget_rejections, wake_after_backoff
from hetsched.placement.actions.remaining import end_remnants
from hetsched.placement.actions.shadowing import due_shadows, forget_shadows
from hetsched.placement.deliveries import due_hosts, forget_deliveries, give_up_old
from hetsched.placement.models import IdempotencyKey, Pod
from hetsched.placement.queue import due_pods
from hetsched.placement.retrying import look_again
from hetsched.policies.models import PolicyObject

from .bind import unbound
from .tell import untold, untold_policies

KEYS_KEPT = timedelta(hours=48)
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.SWEEP)
def run() -> dict[str, int]:
    """Wake whoever has work, send what was not sent, forget what is old; return what was found."""
    found = {"woken": 0, "relayed": publish.relay(), "pruned": publish.prune()}
    now = timezone.now()
    for cluster in Cluster.objects.all():
        look_again(cluster.pk)
        end_overrides(cluster.pk)
        take_samples(cluster.pk)
        wake_after_backoff(cluster.pk, now)
        if due_pods(cluster.pk).exists() and not leading.is_held(cluster.pk):
            dispatch.wake(cluster.pk)
            found["woken"] += 1
        if cluster.kind == ClusterKind.KUBERNETES and _to_tell(cluster.pk):
            dispatch.wake(cluster.pk, dispatch.TELL)
        if due(cluster.pk).exists():
            dispatch.wake(cluster.pk, dispatch.CREATE)
        end_remnants(cluster.pk)
        end_holds(cluster.pk)
        if half_bound(cluster.pk):
            settle_half_gangs(cluster.pk)
        if due_evictions(cluster.pk).exists() or late_nominations(cluster.pk).exists():
            dispatch.wake(cluster.pk, dispatch.EVICT)
        if under_way(cluster.pk):
            dispatch.wake(cluster.pk, dispatch.REBALANCE)
        if cluster.kind == ClusterKind.KUBERNETES:
            tell_watched(cluster.pk)
        if due_shadows(cluster.pk):
            dispatch.wake(cluster.pk, dispatch.SHADOW)
        forget_shadows(cluster.pk)
        if due_images(cluster.pk).exists():
            dispatch.wake(cluster.pk, dispatch.IMAGES)
        forget_images(cluster.pk)
        if unbound(cluster):
            dispatch.wake(cluster.pk, dispatch.BIND)
        forget_rejections(cluster.pk, before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
        forget_plans(cluster.pk, before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
        forget_finished(cluster.pk, finished_before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
        forget_holds(cluster.pk, before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
        forget_charged(cluster.pk, finished_before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
    for host in due_hosts():
        dispatch.wake(host, dispatch.CALLBACK)
    give_up_old(now)
    forget_deliveries(ended_before=now - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS))
    IdempotencyKey.objects.filter(created_at__lt=now - KEYS_KEPT).delete()
    forget_summaries(decided_before=now - timedelta(days=settings.HETSCHED_KEEP_SUMMARIES_DAYS))
    forget_failures(now)
    Session.objects.filter(expire_date__lt=now).delete()
    return found


def _to_tell(cluster_id: int) -> bool:
    if PolicyObject.objects.filter(untold_policies(cluster_id)).exists():
        return True
    return Pod.objects.filter(untold(cluster_id)).exists()
