"""When a pod that found no node is tried again.

Problem: trying all of them after every change costs the batches that new pods need; an event that is missed leaves a
pod waiting for ever.
Rule: a decision that refuses says which kinds of change may help (`engine.hints`). `stir` notes what happened, in the
transaction in which it happens, and queues the pods that wait for it; whoever was being decided meanwhile, on a state
from before, stays in the queue (`missed`). What waits for time alone is queued again after `LOOK_AGAIN`. Everything
else is flushed after `FLUSH`: a pod that is placed then waited for the wrong thing, and that is counted.
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint; kube-scheduler's flush of unschedulable pods.
Invariant: in calm and in trouble no pod is placed because it was flushed (`hetsched_flushed_then_scheduled` is 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import F, IntegerField, Q, QuerySet
from django.utils import timezone

from hetsched.contracts.waits import Event, WaitsFor, bits
from hetsched.inventory.ledger import write_columns
from hetsched.inventory.models import Cluster
from hetsched.storage.prepared_queries import Given, PreparedUpdate

from .lifecycle import LISTED, State
from .models import Pod

LOOK_AGAIN = timedelta(seconds=60)
FLUSH = timedelta(minutes=5)
_REFUSED = (State.NOT_NOW.value, State.NEVER_FITS.value)


def stir(cluster: Cluster, events: Iterable[Event], *, at_once: bool = False, write: bool = True) -> int:
    """Queue the pods that one of these changes may help, and note the changes; return how many pods there were.

    The cluster is locked by `advance`. `at_once`: their back-off is over. `write` False: the caller writes `stirred`.
    """
    happened = sorted(set(events))
    if not happened:
        return 0
    noted = {**cluster.stirred, **{event.value: cluster.revision for event in happened}}
    if noted != cluster.stirred:
        cluster.stirred = noted
        if write:
            write_columns([cluster], ("stirred",))
    if at_once:
        return _refused(cluster.pk, happened).update(queued=True, flushed=False, not_before=None)
    return _QUEUE(cluster=cluster.pk, bits=bits(happened))


def missed(cluster: Cluster, waits: Iterable[WaitsFor], *, revision: int) -> bool:
    """Tell whether something of what is waited for happened after `revision`."""
    return any(cluster.stirred.get(event.value, 0) > revision for one in waits for event in one.events)


def look_again(cluster_id: int) -> None:
    """Queue what waited for long enough: for time, or in case that an event was missed."""
    now = timezone.now()
    resting = Pod.objects.filter(cluster_id=cluster_id, state__in=_REFUSED, queued=False)
    timed = _refused(cluster_id, [Event.TIME]).filter(Q(tried_at=None) | Q(tried_at__lt=now - LOOK_AGAIN), queued=False)
    for rows, flushed in ((timed, False), (resting.filter(tried_at__lt=now - FLUSH), True)):
        if rows.exists():
            rows.update(queued=True, flushed=flushed)


def _refused(cluster_id: int, events: Iterable[Event]) -> QuerySet[Pod]:
    """Return the refused pods that wait for one of these."""
    return _helped(cluster_id, bits(events))


def _helped(cluster_id: Any, by: Any) -> QuerySet[Pod]:
    rows = Pod.objects.filter(cluster_id=cluster_id, state__in=_REFUSED).filter(state__in=LISTED)
    return rows.alias(helped=F("helped_by").bitand(by)).exclude(helped=0)


_QUEUE = PreparedUpdate(
    lambda: _helped(Given("cluster"), Given("bits", IntegerField())).filter(Q(queued=False) | Q(flushed=True)),
    queued=True,
    flushed=False,
)
