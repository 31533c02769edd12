"""Transitions of pods after the decision: bind, start, reject, release, cancel, retry.

Every action locks the cluster first, so reservations and releases of one cluster are serialized. Only `release`,
`reject` and `cancel` free resources, in the transaction that ends the reservation; then the pending pods of the cluster
are requeued.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.db import IntegrityError

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.allowance import UNLIMITED, Allowance
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import ClusterKind
from hetsched.inventory.node_loads import advance
from hetsched.journal.audit import Actor
from hetsched.journal.audit import record as audit
from hetsched.storage.batches import batched
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from ..lifecycle import FINISHED, HOLDING, UNPLACED, State
from ..models import Hold, Pod, Workload
from ..quotas import check_ceiling
from ..scheduling_queue.backoff_queue import backoff
from .change import BACK_IN_QUEUE, ClusterTransaction
from .holds import end_hold_rows
from .live_submissions import request_deletion
from .submissions import check_priority

RETRIED = frozenset({State.NOT_NOW, State.NEVER_FITS, State.FAILED})


def begin_binding(cluster_id: int, pod_ids: Iterable[int]) -> int:
    """Mark these placements as being bound; return the revision of the commit.

    Raises: Conflict if a pod is not placed any more.
    """
    return _advance(cluster_id, pod_ids, State.BINDING)


def confirm(cluster_id: int, pod_ids: Iterable[int]) -> int:
    """Record that the cluster accepted these bindings; return the revision of the commit.

    Raises: Conflict.
    """
    return _advance(cluster_id, pod_ids, State.BOUND)


def start(cluster_id: int, pod_ids: Iterable[int]) -> int:
    """Record that these pods are running; return the revision of the commit.

    Raises: Conflict.
    """
    return _advance(cluster_id, pod_ids, State.RUNNING)


def _advance(cluster_id: int, pod_ids: Iterable[int], to: State) -> int:
    pods = sorted(set(pod_ids))
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        columns = {"started_at": change.now} if to is State.RUNNING else {}
        change.move_rows(pods, to, message="", **columns)
        change.close()
    return change.cluster.revision


def reject(cluster_id: int, pod_ids: Iterable[int], *, reason: str) -> list[Pod]:
    """Undo placements that the cluster rejected: the pods return to the queue and their resources are free.

    Each further rejection lengthens the back-off. A pod of another scheduler ends instead: that scheduler keeps the pod
    in its own queue and calls the extender again.
    Raises: Conflict.
    """
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        pods = _pods(cluster_id, pod_ids)
        change.free(pods, f"rejected: {reason}")
        asked = [pod for pod in pods if pod.origin == Pod.ASKED]
        for tries in sorted({pod.attempts for pod in pods}):
            some = [pod for pod in pods if pod.attempts == tries and pod not in asked]
            not_before = change.now + backoff(tries - 1) if tries > 1 else None
            again = {**BACK_IN_QUEUE, "attempts": tries, "not_before": not_before}
            change.move(some, State.PENDING, **again, message=reason)
        change.move(asked, State.CANCELLED, queued=False, finished_at=change.now, message=reason)
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return pods


def release(cluster_id: int, pod_ids: Iterable[int], *, to: State, reason: str, message: str = "") -> list[Pod]:
    """End stopped pods as succeeded or failed, and free exactly the resources that they held.

    The caller must have proof that the pods stopped.
    Raises: Conflict if a pod has no active reservation; ValueError if `to` is neither succeeded nor failed.
    """
    if to not in (State.SUCCEEDED, State.FAILED):
        raise ValueError(f"{to} is not a final state")
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        pods = _pods(cluster_id, pod_ids)
        change.free(pods, reason)
        change.move(pods, to, queued=False, finished_at=change.now, message=message)
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return pods


def cancel(workload: Workload, *, actor: Actor, reason: str) -> Workload:
    """End every unfinished pod of a workload and free its resources; do nothing if the workload has finished.

    In a live cluster the workload's objects are deleted there, and its pods end when the watch reports their end.
    Raises: InputError `ReasonMissing`, or `WorkloadNotOurs` if hetsched did not create the objects.
    """
    if workload.cluster.kind == ClusterKind.KUBERNETES:
        return request_deletion(workload, actor=actor, reason=reason)
    reason = require_reason(reason)
    with write_transaction():
        change = ClusterTransaction(advance(workload.cluster_id))
        pods = [pod for pod in _pods_of(workload) if pod.state not in FINISHED]
        change.free([pod for pod in pods if pod.state in HOLDING], "cancelled")
        change.move(pods, State.CANCELLED, queued=False, finished_at=change.now, message=verbatim(reason))
        end_hold_rows(
            change,
            Hold.objects.filter(workload=workload, state=Hold.CLAIMED),
            Hold.USED,
            Message("the submission that used the hold was cancelled"),
        )
        change.requeue()
        _audit(actor, "workload.cancel", workload, reason, {"pods": len(pods)})
        change.close()
        dispatch.wake(workload.cluster_id)
    return Workload.objects.get(pk=workload.pk)


def retry(workload: Workload, *, actor: Actor, reason: str, allowance: Allowance = UNLIMITED) -> Workload:
    """Schedule the rejected and failed pods of a workload again.

    `allowance` contains the highest priority that the caller may submit; it limits the priority of the pods.
    Raises: InputError `ReasonMissing`, `NothingToRetry`, `PriorityNotAllowed`, or `PodExists` if another pod uses a
    name.
    """
    reason = require_reason(reason)
    try:
        with write_transaction():
            change = ClusterTransaction(advance(workload.cluster_id))
            # A failed pod of a live cluster is final; its controller creates a replacement.
            tried = RETRIED - {State.FAILED} if workload.cluster.kind == ClusterKind.KUBERNETES else RETRIED
            pods = [pod for pod in _pods_of(workload) if pod.state in tried]
            if not pods:
                message = Message("workload {workload} has no rejected or failed pod", workload=workload.pk)
                raise InputError("NothingToRetry", message)
            check_ceiling(allowance, (), max(pod.priority for pod in pods))
            change.move(pods, State.PENDING, **BACK_IN_QUEUE, message="")
            _audit(actor, "workload.retry", workload, reason, {"pods": len(pods)})
            change.close()
            dispatch.wake(workload.cluster_id)
    except IntegrityError:
        message = Message("another pod now has the name of a pod of {workload}", workload=workload.pk)
        raise InputError("PodExists", message) from None
    return Workload.objects.get(pk=workload.pk)


def set_priority(
    workload: Workload, priority: int, *, actor: Actor, reason: str, allowance: Allowance = UNLIMITED
) -> Workload:
    """Set the priority of a workload's pending pods; the highest priority that the caller may submit is the limit.

    Raises: InputError `ReasonMissing`, `PriorityInvalid` or `PriorityNotAllowed`.
    """
    reason = require_reason(reason)
    check_priority(priority)
    check_ceiling(allowance, (), priority)
    with write_transaction():
        change = ClusterTransaction(advance(workload.cluster_id))
        # Change the specs too: a state loaded from these rows later must equal the state that a decision uses.
        waiting = [pod for pod in workload.pods.order_by("id") if pod.state in (State.PENDING, *UNPLACED)]
        for pod in waiting:
            pod.priority, pod.spec = priority, msgspec.structs.replace(pod.spec, priority=priority)
        Pod.objects.bulk_update(waiting, ["priority", "spec"], batch_size=100)
        change.end_nominations([pod.pk for pod in waiting], Message("the priority of the pod changed"))
        change.discard_decisions()
        Workload.objects.filter(pk=workload.pk).update(priority=priority)
        change.touch(waiting)
        change.touch_workload(workload.pk)
        _audit(actor, "workload.priority", workload, reason, {"priority": priority})
        change.close()
        dispatch.wake(workload.cluster_id)
    return Workload.objects.get(pk=workload.pk)


def _pods_of(workload: Workload) -> list[Pod]:
    return list(workload.pods.defer("spec").order_by("id"))


def _pods(cluster_id: int, pod_ids: Iterable[int]) -> list[Pod]:
    """Return the pods without their specs, in the order of their IDs."""
    rows = Pod.objects.filter(cluster=cluster_id).order_by("id").defer("spec")
    return [pod for some in batched(sorted(set(pod_ids))) for pod in rows.filter(pk__in=some)]


def _audit(actor: Actor, action: str, workload: Workload, reason: str, details: dict[str, int]) -> None:
    audit(actor=actor.name, role=actor.role, action=action, obj=workload, reason=reason, details=details)
