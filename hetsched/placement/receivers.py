"""Signal receivers of placement: requeue pending pods immediately when inventory or policies change.

Receivers run inside the transaction of the change, so pods are requeued if and only if it commits. The activation of a
policy version locks every cluster first. A batch that was decided under the previous version is either committed
before, so that its rejected pods are requeued here, or `record` rejects the batch.
"""

from __future__ import annotations

from typing import Any

from hetsched.contracts.waits import INVENTORY, Event
from hetsched.inventory.models import Cluster
from hetsched.inventory.signals import inventory_changed
from hetsched.policies.signals import policy_activated

from . import dispatch
from .lifecycle import State
from .models import Pod
from .scheduling_queue.unschedulable_pods import requeue_pods

_MAY_FIT_NOW = (State.NOT_NOW.value, State.NEVER_FITS.value)


def connect() -> None:
    """Connect the receivers; called once, when the app is ready."""
    inventory_changed.connect(_inventory_changed, dispatch_uid=__name__)
    policy_activated.connect(_policy_activated, dispatch_uid=__name__)


def _inventory_changed(cluster: Cluster, events: frozenset[Event] = INVENTORY, **_: Any) -> None:
    if requeue_pods(cluster, events, at_once=True):
        dispatch.wake(cluster.pk)


def _policy_activated(name: str, **_: Any) -> None:
    if not Pod.objects.filter(policy=name).exists():
        return
    list(Cluster.objects.select_for_update().order_by("id").values_list("pk"))
    waiting = Pod.objects.filter(policy=name, state__in=_MAY_FIT_NOW)
    clusters = list(waiting.order_by().values_list("cluster_id", flat=True).distinct())
    _requeue_pods(policy=name)
    for cluster_id in clusters:
        dispatch.wake(cluster_id)


def _requeue_pods(**which: Any) -> int:
    waiting = Pod.objects.filter(state__in=_MAY_FIT_NOW, **which)
    return waiting.update(queued=True, not_before=None, flushed=False)
