"""Requeueing of rejected pods: the event or timeout after which a pod without a node is tried again.

If every change caused a retry of all rejected pods, new pods would have to wait. If an event were missed, the pod would
stay pending forever.
A decision that rejects a pod registers the events that may make the pod schedulable
(`engine.framework.queueing_hints`). `requeue_pods` records events in the transaction in which they happen and queues
the pods registered for them. If a pod is being decided on an earlier state when the event occurs, it stays in the queue
(`happened_since`). A pod that registered the event `TIME` is queued again after `RETRY_AFTER`. All other pods are
flushed to the queue after `FLUSH_AFTER`. If a flushed pod is then placed, its decision had registered the wrong events;
such pods are counted.
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint; kube-scheduler's flush of unschedulable pods.
Invariant: with or without faults, no pod is placed only because it was flushed (`hetsched_flushed_then_scheduled` is
0).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hetsched.contracts.waits import Event, WaitsFor, bits
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import write_columns
from hetsched.storage.hot_statements import QUEUE_PODS

from ..lifecycle import State
from ..models import Pod

RETRY_AFTER = timedelta(seconds=60)
FLUSH_AFTER = timedelta(minutes=5)
_REJECTED_STATES = (State.NOT_NOW.value, State.NEVER_FITS.value)


def requeue_pods(cluster: Cluster, events: Iterable[Event], *, at_once: bool = False, write: bool = True) -> int:
    """Record these events and queue the pods registered for any of them; return the number of pods.

    The caller must have locked the cluster with `advance`. If `at_once` is True, the pods skip their back-off. If
    `write` is False, the caller writes the column `event_revisions`.
    """
    happened = sorted(set(events))
    if not happened:
        return 0
    recorded = {**cluster.event_revisions, **{event.value: cluster.revision for event in happened}}
    if recorded != cluster.event_revisions:
        cluster.event_revisions = recorded
        if write:
            write_columns([cluster], ("event_revisions",))
    if at_once:
        return _rejected_pods(cluster.pk, happened).update(queued=True, flushed=False, not_before=None)
    return QUEUE_PODS(cluster=cluster.pk, states=_REJECTED_STATES, bits=bits(happened))


def happened_since(cluster: Cluster, waits: Iterable[WaitsFor], *, revision: int) -> bool:
    """Return True if an event registered by one of these hints happened after `revision`."""
    return any(cluster.event_revisions.get(event.value, 0) > revision for hint in waits for event in hint.events)


def requeue_timed_out_pods(cluster_id: int) -> None:
    """Requeue the pods that registered the event `TIME` after `RETRY_AFTER`, and all other pods after `FLUSH_AFTER`."""
    now = timezone.now()
    unschedulable = Pod.objects.filter(cluster_id=cluster_id, state__in=_REJECTED_STATES, queued=False)
    timed = _rejected_pods(cluster_id, [Event.TIME]).filter(
        Q(tried_at=None) | Q(tried_at__lt=now - RETRY_AFTER), queued=False
    )
    for rows, flushed in ((timed, False), (unschedulable.filter(tried_at__lt=now - FLUSH_AFTER), True)):
        if rows.exists():
            rows.update(queued=True, flushed=flushed)


def _rejected_pods(cluster_id: int, events: Iterable[Event]) -> QuerySet[Pod]:
    """Return the rejected pods registered for one of these events."""
    rows = Pod.objects.filter(cluster_id=cluster_id, state__in=_REJECTED_STATES)
    return rows.alias(helped=F("helped_by").bitand(bits(events))).exclude(helped=0)
