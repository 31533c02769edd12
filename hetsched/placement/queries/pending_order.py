"""Pending order of a cluster: the due pods in the order in which they are tried, and when the other pods are tried.

A pending pod is in one of five queue states.
    due        the next batches try it, in the order of the cluster's default policy (`forecast`)
    back-off   it was tried, and is tried again at `not_before`
    images     it is tried when its images are read, or at `images_until`
    resting    it was rejected and waits for a registered event or for the periodic flush
    gated      scheduling gates hold it back
Only due pods have a position. The other pods are ordered by the time of their next try, with unknown times last, and
then by priority and age. A pod that never fits is in one of these states too and is tried again when the cluster
changes; it is shown separately from the pods that wait for capacity.
The forecast lists the due pods in the order in which the next batches try them, if every pod is placed and no other pod
arrives. A pod in back-off, or waiting for an event, is not included.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Case, CharField, Count, F, Q, Value, When
from django.utils import timezone

from hetsched.contracts.waits import Event, WaitsFor, bits
from hetsched.inventory.node_loads import current_columns
from hetsched.placement.lifecycle import QUEUED, State
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.active_queue import PendingPod, first_active_pods
from hetsched.placement.scheduling_queue.decision_time import namespaces_over_share
from hetsched.placement.scheduling_queue.unschedulable_pods import FLUSH_AFTER, RETRY_AFTER
from hetsched.storage.batches import batched

MOST_FORECAST = 1000  # pods whose positions are computed for a reader who sees only some of them
_TIMED = bits([Event.TIME])
_COLUMNS = (
    "id", "namespace", "name", "workload_id", "policy", "policy_rule", "priority", "gang", "state", "attempts",
    "not_before", "images_until", "tried_at", "waits_for", "helped_by", "message", "created_at", "decision_id",
)  # fmt: skip


class QueueState(enum.StrEnum):
    DUE = "due"
    BACK_OFF = "back-off"
    IMAGES = "images"
    RESTING = "resting"
    GATED = "gated"


class QueueEntry(msgspec.Struct, frozen=True):
    """Entry of the pending order: one pending pod with its position and the time of its next try.

    The pod with `position` 1 is tried next; None means that the pod has no position yet. `again_at` is the time of the
    next try; None means that the pod is tried again after a relevant change.
    """

    pod_id: int
    key: str
    namespace: str
    workload_id: str | None
    policy: str
    policy_rule: str
    priority: int
    gang: str | None
    state: str
    attempts: int
    queue_state: QueueState
    position: int | None
    again_at: datetime | None
    tried_at: datetime | None
    waits_for: tuple[WaitsFor, ...]
    message: str
    created_at: datetime
    decision_id: int | None


def queue_states(cluster_id: int) -> tuple[dict[QueueState, int], int]:
    """Count the pending pods of a cluster.

    Return the number of pods in each queue state, without pods that never fit, and the number of pods that never fit.
    """
    counted = dict.fromkeys(QueueState, 0)
    never = 0
    rows = _pending(cluster_id, timezone.now()).order_by().values_list("queue_state", "state").annotate(n=Count("id"))
    for queue_state, state, count in rows:
        if state == State.NEVER_FITS.value:
            never += count
        else:
            counted[QueueState(queue_state)] += count
    return counted, never


def list_queue(
    cluster_id: int,
    limit: int,
    *,
    only: QueueState | None = None,
    never: bool | None = None,
    namespaces: Collection[str] | None = None,
) -> list[QueueEntry]:
    """Return the first `limit` pending pods: of all queue states, or only of the state `only`.

    If `never` is set, only pods that never fit are returned (True), or only the other pods (False). With `namespaces`,
    only pods of these namespaces are returned, with their positions among all pods; due pods behind the first
    `MOST_FORECAST` pods of the cluster then have no position.
    """
    now = timezone.now()
    rows = _pending(cluster_id, now)
    if never is not None:
        rows = rows.filter(state=State.NEVER_FITS.value) if never else rows.exclude(state=State.NEVER_FITS.value)
    if namespaces is not None:
        rows = rows.filter(namespace__in=namespaces)
    found: list[QueueEntry] = []
    if only in (None, QueueState.DUE):
        found = _due_entries(cluster_id, rows, limit, is_limited=namespaces is not None)
    if only is not QueueState.DUE and len(found) < limit:
        rest = rows.exclude(queue_state=QueueState.DUE) if only is None else rows.filter(queue_state=only)
        rest = rest.order_by(F("not_before").asc(nulls_last=True), "-priority", "id").values(*_COLUMNS, "queue_state")
        later = [_queue_entry(row, QueueState(row["queue_state"]), None) for row in rest[: limit - len(found)]]
        found += sorted(later, key=lambda entry: (entry.again_at is None, entry.again_at or now))
    return found


def _due_entries(cluster_id: int, rows: Any, limit: int, *, is_limited: bool) -> list[QueueEntry]:
    """Return the entries of the first `limit` due pods among `rows`; `is_limited` is True if pods of the cluster are
    missing in `rows`.
    """
    first = forecast(cluster_id, MOST_FORECAST if is_limited else limit)
    order = {pod.pod_id: place for place, pod in enumerate(first, 1)}
    found = [
        _queue_entry(row, QueueState.DUE, order[row["id"]])
        for some in batched(list(order))
        for row in rows.filter(pk__in=some).values(*_COLUMNS)
    ]
    found.sort(key=lambda entry: entry.position or 0)
    if is_limited and len(found) < limit:
        behind = rows.filter(queue_state=QueueState.DUE).exclude(pk__in=[entry.pod_id for entry in found])
        behind = behind.order_by("-priority", "id").values(*_COLUMNS)[: limit - len(found)]
        found += [_queue_entry(row, QueueState.DUE, None) for row in behind]
    return found[:limit]


def forecast(cluster_id: int, limit: int) -> list[PendingPod]:
    """Return the first `limit` pods in the order in which they will be tried."""
    copy = cache_of(cluster_id)
    with copy.locked_snapshot() as loaded:
        policy = copy.default_policy()
        pods = first_active_pods(cluster_id, policy, limit)
        if policy is None:
            return pods[:limit]
        by_key = {pod.spec.key: pod for pod in pods}
        behind = namespaces_over_share(current_columns(cluster_id).decision_time, timezone.now().timestamp())
        order = policy.forecast([pod.spec for pod in pods], loaded.state, behind)
    return [by_key[spec.key] for spec in order][:limit]


def _pending(cluster_id: int, now: datetime) -> Any:
    """Return the pending pods, annotated with their queue state."""
    waiting = Pod.objects.filter(cluster_id=cluster_id, state__in=[state.value for state in QUEUED])
    return waiting.annotate(
        queue_state=Case(
            When(Pod.due(now), then=Value(QueueState.DUE.value)),
            When(Q(queued=True, images_until__gt=now), then=Value(QueueState.IMAGES.value)),
            When(queued=True, then=Value(QueueState.BACK_OFF.value)),
            When(state=State.PENDING.value, then=Value(QueueState.GATED.value)),
            default=Value(QueueState.RESTING.value),
            output_field=CharField(),
        )
    )


def _queue_entry(row: dict[str, Any], queue_state: QueueState, position: int | None) -> QueueEntry:
    return QueueEntry(
        pod_id=row["id"],
        key=f"{row['namespace']}/{row['name']}",
        namespace=row["namespace"],
        workload_id=row["workload_id"],
        policy=row["policy"],
        policy_rule=row["policy_rule"],
        priority=row["priority"],
        gang=f"{row['namespace']}/{row['gang']}" if row["gang"] else None,
        state=row["state"],
        attempts=row["attempts"],
        queue_state=queue_state,
        position=position,
        again_at=_next_try(row, queue_state),
        tried_at=row["tried_at"],
        waits_for=row["waits_for"],
        message=row["message"],
        created_at=row["created_at"],
        decision_id=row["decision_id"],
    )


def _next_try(row: dict[str, Any], queue_state: QueueState) -> datetime | None:
    """Return the time by which a pod is tried again, or None if it is unknown, as for a pod that never fits."""
    if row["state"] == State.NEVER_FITS:
        return None
    if queue_state is QueueState.BACK_OFF:
        return row["not_before"]
    if queue_state is QueueState.IMAGES:
        return row["images_until"]
    if queue_state is QueueState.RESTING and row["tried_at"] is not None:
        return row["tried_at"] + (RETRY_AFTER if row["helped_by"] & _TIMED else FLUSH_AFTER)
    return None
