"""Orphaned pods: rows that keep the resources of a deleted pod reserved while its containers may still run.

A pod that is force-deleted disappears from the API server immediately, but its containers end only when the kubelet can
stop them. If its CPUs or GPUs were assigned to another pod before then, that pod would share them with these
containers.
Kubelets report the end of a pod before the pod is deleted. An orphaned pod is created if the pod's containers ran
when it was last seen, or if its deletion was noticed only by its absence. It is a row named `NAME~UID`, which no user
can create, and holds the same resources on the same node. It is released once its node has been ready for the pod's
grace period, or for `HETSCHED_FORCED_HOLD_SECONDS` if that is less: the kubelet gives the containers that long to end.
All times are taken from the database's clock. After a reboot a node runs none of the earlier containers, so its
orphaned pods are released immediately. A deleted node can return under its name with all its containers still running.
If the node does not return within `ANOTHER_MACHINE`, its orphaned pods are released.
Source: kubernetes/kubernetes#141471, "Force Delete StatefulSet Pods"; kubelets report terminal phases since 1.27.
Invariant: at every commit either the pod or its orphaned pod holds the resources, never both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db.models import Q, QuerySet

from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import advance
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.models.holds import own_name
from hetsched.placement.queries.orphaned_pods import orphaned_pods
from hetsched.placement.reservation_ledger import ReservedPod
from hetsched.storage.batches import batched
from hetsched.storage.snapshot_read import database_now
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction
from .evictions import requeue_nominees_of_uids

ANOTHER_MACHINE = timedelta(hours=24)
# Many pods can be force-deleted together, for example with their nodes; an arriving pod waits for one release only.
RELEASED_AT_ONCE = 50
_STARTED = {State.BINDING, State.BOUND, State.RUNNING}  # states in which the pod's containers may have started


class TerminatingReservation(msgspec.Struct, frozen=True):
    """A reservation that is about to end although the containers of its pod may still run."""

    pod: Pod
    reservation: Reservation


def terminating_reservations(rows: Iterable[Pod]) -> list[TerminatingReservation]:
    """Return the reservations of the given pods whose containers may still run.

    The reservation of a pod without a grace period is left out if its node is ready.
    """
    found = [row.pk for row in rows if State(row.state) in _STARTED]
    reservations = []
    for some in batched(found):
        active = Reservation.objects.filter(pod_id__in=some, active=True).select_related("pod", "node")
        reservations += [
            TerminatingReservation(reservation.pod, reservation)
            for reservation in active.defer("node__report").order_by("id")
            if reservation_time(reservation.request) or not reservation.node.ready
        ]
    return reservations


def reservation_time(spec: PodSpec) -> timedelta:
    """Return how long the resources of a deleted pod stay reserved if its containers were not seen to end."""
    return timedelta(seconds=min(spec.grace_seconds, settings.HETSCHED_FORCED_HOLD_SECONDS))


def reserve_orphaned_pods(change: ClusterTransaction, reservations: Sequence[TerminatingReservation]) -> None:
    """Create an orphaned pod for each of these ended pods, and reserve the freed resources for it."""
    pods = [_orphaned_pod(change, reservation) for reservation in reservations]
    Pod.objects.bulk_create(pods, batch_size=500)
    reserved = [
        ReservedPod(pod.pk, reservation.reservation.node_id, pod.spec, reservation.reservation.allocation)
        for pod, reservation in zip(pods, reservations, strict=True)
    ]
    change.reserve(reserved, change.cluster.leader_epoch)


def _orphaned_pod(change: ClusterTransaction, reservation: TerminatingReservation) -> Pod:
    was, request = reservation.pod, reservation.reservation.request
    # Keep only the resources of the spec: an orphaned pod has no affinity, spread constraints or claims.
    shape = msgspec.structs.replace(
        request.shape, affinity=(), anti_affinity=(), preferred_affinity=(), spread=(), claims=()
    )
    name = own_name(was.name, was.uid)
    spec: PodSpec = msgspec.structs.replace(
        request, name=name, shape=shape, labels={}, gang=None, controller="", preemptible=False
    )
    pod = Pod.charged(
        change.cluster, spec, reservation.reservation.node_id, reservation.reservation.allocation, change.now
    )
    pod.origin, pod.not_before = Pod.REMNANT, change.database_now + reservation_time(spec)
    text = "{pod} was deleted before its containers ended; its resources stay reserved for its grace period"
    pod.message = Message(text, pod=was.key)
    return pod


def orphaned_pods_on(cluster: Cluster, nodes: Collection[str]) -> list[Pod]:
    """Return the orphaned pods on the nodes with these names."""
    rows = orphaned_pods(cluster.pk).filter(node__name__in=nodes)
    return list(rows.select_related("node").defer("spec", "node__report"))


def release_orphaned_pods(cluster_id: int, *, rewrite_after: timedelta = timedelta(0)) -> int:
    """Release orphaned pods whose reservation time is over, at most `RELEASED_AT_ONCE`; return how many.

    While the node is not ready, the reservation time is restarted repeatedly. To limit writes, a row is updated at most
    once per `rewrite_after`; this interval is added to the reservation time, so that no release is early.
    """
    rows = orphaned_pods(cluster_id)
    if not rows.exists():
        return 0
    now = database_now()
    is_given_up = Q(node__gone=True, created_at__lte=now - ANOTHER_MACHINE)
    unready = list(Node.objects.filter(cluster_id=cluster_id, ready=False).values_list("id", flat=True))
    if unready:
        _restart_reservations(rows.filter(node__in=unready).exclude(is_given_up), now, rewrite_after)
    due = rows.filter(Q(node__ready=True) | Q(node=None) | is_given_up, not_before__lte=now)
    if not due.exists():
        return 0
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        over = list(due.defer("spec").order_by("id")[:RELEASED_AT_ONCE])
        change.free(over, Message("the grace period of the pod's containers has expired"))
        change.move(over, State.CANCELLED, queued=False, finished_at=change.now)
        requeue_nominees_of_uids(change.cluster, [pod.uid for pod in over])
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return len(over)


def _restart_reservations(rows: QuerySet[Pod], now: datetime, rewrite_after: timedelta) -> None:
    """Restart the reservation times of orphaned pods whose nodes are not ready."""
    late: dict[timedelta, list[int]] = defaultdict(list)
    for pk, spec, until in rows.values_list("id", "spec", "not_before"):
        hold = reservation_time(spec)
        if until is None or until <= now + hold:
            late[hold].append(pk)
    for hold, ids in late.items():
        for some in batched(ids):
            Pod.objects.filter(pk__in=some).update(not_before=now + hold + rewrite_after)
