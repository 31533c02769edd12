"""Reconciliation of GPU reservations with the device allocations that kubelets report.

If another device plugin assigns the GPUs of a node, the GPUs in a reservation are only advice: the pod may use other
GPUs, and hetsched could then assign these GPUs to a second pod.
The allocations that an agent reads from its kubelet are compared with the reservations on the node. If a pod runs on
other GPUs than reserved, its reservation moves to the GPUs in use (`device_moves`): the reservation ends and a new one
begins in the same transaction, so that scheduler caches pick up the change. An inconsistent report changes no
reservation: it is written to the audit trail, and shown on the pages of the pods and their node until it is resolved.
An unchanged report writes nothing.
Invariants: those of `device_moves`; the unique indexes still apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import GpuCard
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.inventory.models import Node
from hetsched.inventory.node_loads import Conflict, advance
from hetsched.journal.audit import SYSTEM
from hetsched.journal.audit import record as audit
from hetsched.placement.device_moves import GpuHolder, Grants, Moves, plan_moves
from hetsched.placement.models import DevicePluginAllocation, Pod, Reservation
from hetsched.placement.models.reservations import OTHER_CARDS
from hetsched.placement.reservation_ledger import ReservedPod
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction

# pod uid -> container -> resource -> device ids
Devices = Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]
_TRIES = 3


class DeviceChanges(msgspec.Struct, frozen=True):
    """The outcome of a report: keys of the pods whose reservation moved to other GPUs, and problem texts by pod key."""

    moved: tuple[str, ...] = ()
    problems: dict[str, str] = {}


def reconcile_devices(
    cluster_id: int,
    node_name: str,
    devices: Devices,
    *,
    advisory: bool,
    uuids: Mapping[str, str] | None = None,
) -> DeviceChanges:
    """Move the GPU reservations of a node's pods to the devices that its kubelet reports.

    `advisory` is True if another device plugin assigns the GPUs.
    `uuids` maps device ids that are not UUIDs, such as the PCI addresses of AMD's device plugin, to GPU UUIDs.
    If concurrent writers keep moving pods of the node, nothing is written until the next report.
    """
    for _ in range(_TRIES):
        with suppress(Conflict):
            return _reconcile(cluster_id, node_name, devices, advisory, uuids or {})
    return DeviceChanges()


def _reconcile(
    cluster_id: int,
    node_name: str,
    devices: Devices,
    advisory: bool,
    uuids: Mapping[str, str],
) -> DeviceChanges:
    """Run one attempt of `reconcile_devices`. Raises: Conflict."""
    node = Node.objects.filter(cluster_id=cluster_id, name=node_name).first()
    if node is None:
        return DeviceChanges()
    seen = _ObservedDevices(node, devices, uuids)
    if seen.is_known(advisory):
        return DeviceChanges(problems=seen.problems)
    try:
        with write_transaction():
            change = ClusterTransaction(advance(cluster_id))
            seen = _ObservedDevices(Node.objects.get(pk=node.pk), devices, uuids)  # read again under the lock
            moved = _move(change, seen)
            _record_devices(change, seen, advisory)
            change.touch(seen.pods.values())
            if moved:
                change.requeue()
            change.close()
    except IntegrityError as error:
        raise Conflict(f"cluster {cluster_id}: {error}") from error
    if moved:
        dispatch.wake(cluster_id)
    return DeviceChanges(tuple(moved), seen.problems)


class _ObservedDevices:
    """The pods with GPUs on one node, and the GPUs that the kubelet allocated to them."""

    def __init__(self, node: Node, devices: Devices, uuids: Mapping[str, str]) -> None:
        reservations = Reservation.objects.filter(node=node, active=True).select_related("pod").defer("pod__spec")
        self.held = {
            reservation.pod.key: reservation
            for reservation in reservations.order_by("id")
            if reservation.allocation.gpus
        }
        self.pods = {key: reservation.pod for key, reservation in self.held.items()}
        self.node = node
        cards = {card.index: card for card in node.report.gpus or cards_of(node.report)}
        unclear: dict[str, str] = {}
        holders = []
        self.has: dict[str, tuple[int, ...] | None] = {}
        for key, reservation in self.held.items():
            ids = _ids(devices.get(reservation.pod.uid, {}) if reservation.pod.uid else {})
            self.has[key] = _cards([uuids.get(one, one) for one in ids], cards)
            if ids and self.has[key] is None:
                unclear[key] = Message(
                    "the kubelet allocated {text}, which is not a whole GPU reported by this node",
                    text=joined(", ", ids),
                )
            # A pod with unidentifiable devices keeps its reserved GPUs; only a pod without any allocation may be moved.
            stays = tuple(grant.index for grant in reservation.allocation.gpus) if key in unclear else None
            holders.append(GpuHolder(key, reservation.allocation.gpus, stays or self.has[key]))
        self.moves: Moves = plan_moves(holders, cards)
        self.problems = {**self.moves.problems, **unclear}

    def is_known(self, advisory: bool) -> bool:
        """Return True if the stored rows already match this report."""
        if self.moves.grants:
            return False
        rows = {
            row.pod_id: row
            for row in DevicePluginAllocation.objects.filter(pod__in=[pod.pk for pod in self.pods.values()])
        }
        for key, reservation in self.held.items():
            row = rows.get(reservation.pod_id)
            if row is None or (row.reservation, row.advisory, row.cards, row.problem) != (
                reservation.pk, advisory, self.has[key], self.problems.get(key, "")
            ):  # fmt: skip
                return False
        return True


def _ids(containers: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    return sorted({one for given in containers.values() for name in GPU_RESOURCES for one in given.get(name, ())})


def _cards(ids: Sequence[str], cards: Mapping[int, GpuCard]) -> tuple[int, ...] | None:
    """Return the indices of the GPUs with these device ids or replica ids, or None if an id is unknown."""
    by_uuid = {card.uuid: card.index for card in cards.values() if card.uuid}
    found = {by_uuid.get(one.partition("::")[0]) for one in ids}
    known = {index for index in found if index is not None}
    return tuple(sorted(known)) if ids and len(known) == len(found) else None


def _move(change: ClusterTransaction, seen: _ObservedDevices) -> list[str]:
    """Move reservations to other GPUs; all old reservations end before the first new reservation begins."""
    moved = [key for key in seen.held if key in seen.moves.grants]
    specs = {pod.pk: pod.spec for pod in Pod.objects.filter(pk__in=[seen.pods[key].pk for key in moved]).only("spec")}
    change.free([seen.pods[key] for key in moved], OTHER_CARDS)
    reserved_pods = []
    for key in moved:
        pod = seen.pods[key]
        allocation = _with_gpus(seen.held[key].allocation, seen.moves.grants[key])
        Pod.objects.filter(pk=pod.pk).update(allocation=allocation)
        changed = seen.held[key].spec
        reserved_pods.append(
            ReservedPod(pod.pk, seen.node.pk, changed or specs[pod.pk], allocation, changed=changed is not None)
        )
    change.reserve(reserved_pods, change.cluster.leader_epoch)
    return moved


def _with_gpus(allocation: Allocation, grants: Grants) -> Allocation:
    return msgspec.structs.replace(allocation, gpus=grants)


def _record_devices(change: ClusterTransaction, seen: _ObservedDevices, advisory: bool) -> None:
    """Write the devices allocated to each pod, together with its reserved GPUs."""
    now = timezone.now()
    rows = {
        row.pod_id: row for row in DevicePluginAllocation.objects.filter(pod__in=[pod.pk for pod in seen.pods.values()])
    }
    active = Reservation.objects.filter(pod__in=[pod.pk for pod in seen.pods.values()], active=True)
    present = dict(active.values_list("pod_id", "id"))
    news = {
        key: why for key, why in seen.problems.items() if why != getattr(rows.get(seen.pods[key].pk), "problem", "")
    }
    if news:
        about = (seen.node._meta.model_name or "", f"{change.cluster.name}/{seen.node.name}")
        audit(actor=SYSTEM.name, role=SYSTEM.role, action="node.cards", obj=about, details=news)
    for key, reservation in seen.held.items():
        row = rows.get(reservation.pod_id)
        # After a move, keep `granted`, the GPUs that the decision chose. If the pod was rescheduled, the row belongs
        # to an earlier reservation, so use the GPUs of the new one.
        granted = row.granted if row is not None and row.reservation == reservation.pk else reservation.allocation.gpus
        DevicePluginAllocation.objects.update_or_create(
            pod_id=reservation.pod_id,
            defaults={
                "node": seen.node,
                "reservation": present[reservation.pod_id],
                "advisory": advisory,
                "granted": granted,
                "cards": seen.has[key],
                "problem": seen.problems.get(key, ""),
                "seen_at": now,
            },
        )
