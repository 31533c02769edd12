"""Recovery of gangs in a live cluster after some of their bindings were rejected, so that all members run or none.

The rules apply after the binding of a member was rejected, or the member was deleted, bound by another scheduler, or
sent back to the queue before it was bound. If the gang's minimum of members still hold their resources, the missing
member is scheduled again. Otherwise:
    placed members                        go back to the queue, with the reason
    members that are bound or being bound stay for the gang's own timeout, or `PATIENCE` if it has none, while the
                                          missing members are scheduled again
    after that time                       bound members are evicted; their controllers recreate them and the gang
                                          starts again as a whole. A member without a controller stays, because
                                          nothing would recreate it, and its message says so
The row of a gang is deleted when the gang is complete or none of its members holds resources any more.
Invariant: a gang that is below its minimum because a member was not bound either becomes complete or leaves its nodes,
except for members without a controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from hetsched.contracts.message import Message
from hetsched.inventory.node_loads import advance
from hetsched.storage.snapshot_read import database_now
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from ..lifecycle import HOLDING, State
from ..models import Eviction, PartiallyBoundGang, Pod
from .change import BACK_IN_QUEUE, ClusterTransaction

PATIENCE = timedelta(minutes=10)
LEAST_PATIENCE = timedelta(minutes=1)
_HOLDING = [state.value for state in HOLDING]


def recover_gangs(cluster_id: int, missing: Iterable[int], reason: str) -> None:
    """Apply the recovery rules to the gangs of these pods after their bindings failed."""
    pods = Pod.objects.filter(cluster_id=cluster_id, pk__in=list(missing)).exclude(gang="")
    if not pods:
        return
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        recover_gangs_of(change, pods.order_by("id"), reason)
        change.close()
        dispatch.wake(cluster_id)


def recover_gangs_of(change: ClusterTransaction, missing: Iterable[Pod], reason: str) -> None:
    """Apply the recovery rules to the gangs of these pods, which are not bound and will not be."""
    members = [pod for pod in missing if pod.gang]
    absent = {pod.pk for pod in members}
    for pod in {(pod.namespace, pod.gang): pod for pod in members}.values():
        _recover_gang(change, pod, absent, reason)


def _recover_gang(change: ClusterTransaction, missing: Pod, absent: set[int], reason: str) -> None:
    gang = missing.spec.gang
    members = _members(change.cluster.pk, missing.namespace, missing.gang)
    holding = [pod for pod in members if pod.pk not in absent]
    if gang is None or not holding or len(holding) >= gang.min_available:
        return
    key = f"{missing.namespace}/{missing.gang}"
    message = Message("gang {key}: {name} could not be bound: {detail}", key=key, name=missing.name, detail=reason)
    unbound = [pod for pod in holding if pod.state == State.PLACED]
    if unbound:
        change.free(unbound, Message("not all pods of the gang could be bound"))
        change.move(unbound, State.PENDING, **BACK_IN_QUEUE, message=message)
        change.requeue()
    if len(unbound) < len(holding):
        seconds = PATIENCE.total_seconds() if gang.timeout_seconds is None else gang.timeout_seconds
        PartiallyBoundGang.objects.get_or_create(
            cluster=change.cluster, namespace=missing.namespace, gang=missing.gang,
            defaults={
                "least": gang.min_available, "since": change.database_now, "reason": message,
                "patience_seconds": int(max(seconds, LEAST_PATIENCE.total_seconds())),
            },
        )  # fmt: skip


def has_incomplete_gangs(cluster_id: int) -> bool:
    """Return True if gangs of a cluster are recorded as incomplete."""
    return PartiallyBoundGang.objects.filter(cluster_id=cluster_id).exists()


def settle_incomplete_gangs(cluster_id: int) -> int:
    """Delete the rows of complete and empty gangs, and evict overdue gangs; return how many gangs were evicted."""
    taken_back = 0
    for gang in PartiallyBoundGang.objects.filter(cluster_id=cluster_id).order_by("id"):
        over = database_now() >= gang.since + timedelta(seconds=gang.patience_seconds)
        if _is_incomplete(gang, _members(cluster_id, gang.namespace, gang.gang)) and not over:
            continue
        with write_transaction():
            change = ClusterTransaction(advance(cluster_id))
            holding = _members(cluster_id, gang.namespace, gang.gang)
            is_incomplete = _is_incomplete(gang, holding)
            if is_incomplete and not over:
                continue  # the gang has lost a member since the first check
            if is_incomplete:
                _evict_members(change, gang, holding)
                taken_back += 1
            gang.delete()
            change.close()
    return taken_back


def _is_incomplete(gang: PartiallyBoundGang, holding: list[Pod]) -> bool:
    return 0 < len(holding) < gang.least


def _evict_members(change: ClusterTransaction, gang: PartiallyBoundGang, holding: list[Pod]) -> None:
    leaving = [pod for pod in holding if pod.spec.controller]
    staying = [pod.pk for pod in holding if not pod.spec.controller]
    message = Message("Binding reverted: {detail}", detail=gang.reason)
    rows = (Eviction(cluster=change.cluster, victim=pod, reason=message) for pod in leaving)
    Eviction.objects.bulk_create(rows)
    alone = Message(
        "the pod is not evicted and waits for its incomplete gang, because no controller would recreate it: {detail}",
        detail=gang.reason,
    )
    Pod.objects.filter(pk__in=staying).update(message=alone)
    change.touch(holding)
    if leaving:
        dispatch.wake(change.cluster.pk, dispatch.EVICT)


def _members(cluster_id: int, namespace: str, gang: str) -> list[Pod]:
    """Return the members of a gang that hold resources."""
    rows = Pod.objects.filter(cluster_id=cluster_id, namespace=namespace, gang=gang, state__in=_HOLDING)
    return list(rows.order_by("id"))
