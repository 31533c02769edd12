"""The reservation ledger: rows of reservations with their GPUs, CPUs and devices.

Rows are inserted in bulk and ended in bulk. The partial unique indexes permit one holder for each whole GPU and each
exclusive CPU. An index cannot check a sum, so the shares of each GPU are added up after the insert, which fails if they
exceed the whole GPU. A reservation is ended exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from django.db import IntegrityError
from django.db.models import Model

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, MEMORY, mib_rounded_up
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import Load, write_loads
from hetsched.policies.effective import active_specs
from hetsched.storage import bulk_rows
from hetsched.storage.batches import batched
from hetsched.storage.hot_statements import ACTIVE_RESERVATIONS
from hetsched.storage.statements import fetch

from .models import Reservation, ReservedCard, ReservedCpu, ReservedDevice

EXCLUSIVE_CPU_POLICIES = frozenset({"exclusive", "immovable", "static"})
_WHOLE_CARD_MILLI = 1000


class ReservedPod(msgspec.Struct, frozen=True):
    """A pod and its allocation on a node; `changed` is True if `spec` differs from the spec at the decision."""

    pod_id: int
    node_id: int
    spec: PodSpec
    allocation: Allocation
    changed: bool = False

    @property
    def gpu_milli(self) -> int:
        return self.allocation.gpu_milli


class ReservationRows(NamedTuple):
    """Unsaved rows of reservations, with their GPUs, exclusive CPUs and devices."""

    reservations: list[Reservation]
    cards: list[ReservedCard]
    cpus: list[ReservedCpu]
    devices: list[ReservedDevice]

    def insert(self, *before: Sequence[Model]) -> None:
        """Insert the rows in their order, after the rows `before` that they refer to.

        Raises: IntegrityError if a resource is reserved already, or the shares of a GPU would exceed the whole GPU
        (1000 thousandths).
        """
        bulk_rows.insert_together(*before, *self)
        _refuse_overfull_cards(sorted({card.node_id for card in self.cards}))


def build(cluster: Cluster, reserved_pods: Sequence[ReservedPod], epoch: int, now: datetime) -> ReservationRows:
    """Build the rows of reservations that begin at the cluster's current revision, in the given order."""
    reservations = [
        bulk_rows.new(
            Reservation,
            pod_id=reserved.pod_id,
            node_id=reserved.node_id,
            cluster_id=cluster.pk,
            requests=dict(reserved.spec.shape.requests),
            allocation=reserved.allocation,
            spec=reserved.spec if reserved.changed else None,
            revision=cluster.revision,
            leader_epoch=epoch,
            created_at=now,
        )
        for reserved in reserved_pods
    ]
    pairs = list(zip(reservations, reserved_pods, strict=True))
    cards = [card for pair in pairs for card in _cards(*pair)]
    cpus = [cpu for pair in pairs for cpu in _cpus(*pair)]
    return ReservationRows(reservations, cards, cpus, [device for pair in pairs for device in _devices(cluster, *pair)])


def insert(cluster: Cluster, reserved_pods: Sequence[ReservedPod], epoch: int, now: datetime) -> list[Reservation]:
    """Build and insert reservations. Raises: IntegrityError as in `ReservationRows.insert`."""
    rows = build(cluster, reserved_pods, epoch, now)
    rows.insert()
    return rows.reservations


def _cards(reservation: Reservation, reserved: ReservedPod) -> list[ReservedCard]:
    return [
        ReservedCard(
            reservation=reservation,
            node_id=reserved.node_id,
            card_index=card.index,
            card_uuid=card.uuid or "",
            milli=card.milli,
            memory_mib=card.memory_mib,
            exclusive=card.milli >= _WHOLE_CARD_MILLI,
        )
        for card in reserved.allocation.gpus
    ]


def _cpus(reservation: Reservation, reserved: ReservedPod) -> list[ReservedCpu]:
    if reserved.allocation.cpu_policy not in EXCLUSIVE_CPU_POLICIES:
        return []  # shared CPUs of a zone have no exclusive holder
    return [
        ReservedCpu(reservation=reservation, node_id=reserved.node_id, cpu=cpu, exclusive=True)
        for zone in reserved.allocation.zones
        for cpu in sorted(parse_cpuset(zone.cpus or ""))
    ]


def _devices(cluster: Cluster, reservation: Reservation, reserved: ReservedPod) -> list[ReservedDevice]:
    return [
        ReservedDevice(
            reservation=reservation,
            cluster=cluster,
            claim=grant.claim,
            driver=grant.device.driver,
            pool=grant.device.pool,
            device=grant.device.name,
        )
        for grant in reserved.allocation.devices
        if not grant.admin and grant.consumed is None  # an index cannot check shares of a device
    ]


def _refuse_overfull_cards(node_ids: Sequence[int]) -> None:
    """Raise IntegrityError if the shares of a GPU exceed 1000 thousandths in total; no index can check a sum."""
    for some in batched(node_ids):
        marks = ", ".join(["%s"] * len(some))
        overfull = fetch(
            f"SELECT node_id, card_index FROM {ReservedCard._meta.db_table} "  # noqa: S608
            f"WHERE active AND node_id IN ({marks}) "
            f"GROUP BY node_id, card_index HAVING SUM(milli) > {_WHOLE_CARD_MILLI} LIMIT 1",
            some,
        )
        for node_id, card in overfull:
            raise IntegrityError(f"card {card} of node {node_id} would be allocated more than once")


_PARTS: tuple[tuple[type[ReservedCard | ReservedCpu | ReservedDevice], Callable[[Allocation], bool]], ...] = (
    (ReservedCard, lambda allocation: bool(allocation.gpus)),
    (ReservedCpu, lambda allocation: allocation.cpu_policy in EXCLUSIVE_CPU_POLICIES),
    (ReservedDevice, lambda allocation: bool(allocation.devices)),
)


def end(pod_ids: Sequence[int], cluster: Cluster, reason: str, now: datetime) -> list[Reservation]:
    """End these pods' reservations at the cluster's current revision; return the reservations with the pods' names."""
    reservations: list[Reservation] = ACTIVE_RESERVATIONS(pods=pod_ids)
    for reservation in reservations:
        reservation.active, reservation.released_revision, reservation.released_at = False, cluster.revision, now
        reservation.release_reason = reason[:60]
    bulk_rows.update(reservations, ("active", "released_revision", "released_at", "release_reason"))
    # Update the tables only for reservations with GPUs, exclusive CPUs or devices; most reservations have none.
    for model, has in _PARTS:
        for ids in batched([reservation.pk for reservation in reservations if has(reservation.allocation)]):
            model.objects.filter(reservation_id__in=ids).update(active=False)
    return reservations


def resized(allocation: Allocation, before: PodSpec, now: PodSpec, *, with_memory: bool = False) -> Allocation:
    """Return an allocation whose zone shares add up to the new request; exclusive CPUs stay unchanged.

    `with_memory` is True if the pod's policy counts memory by zone; zone shares of 0 MiB then mean that the request was
    0.
    """
    if not allocation.zones or allocation.cpu_policy in EXCLUSIVE_CPU_POLICIES:
        return allocation
    cpu = _rescaled([zone.cpu_millis for zone in allocation.zones], before.shape.request(CPU), now.shape.request(CPU))
    memory = [zone.memory_mib for zone in allocation.zones]
    if with_memory or any(memory):
        mib = [mib_rounded_up(pod.shape.request(MEMORY)) for pod in (before, now)]
        memory = _rescaled(memory, *mib)
    shares = zip(allocation.zones, cpu, memory, strict=True)
    zones = tuple(msgspec.structs.replace(zone, cpu_millis=c, memory_mib=m) for zone, c, m in shares)
    return msgspec.structs.replace(allocation, zones=zones)


def counts_zone_memory(policy: str) -> bool:
    """Return True if the active version of a policy counts memory by zone."""
    spec = active_specs({policy}).get(policy)
    try:
        return spec is not None and compile_policy(spec, load_registry()).counts_zone_memory
    except InputError:
        return False  # a plugin of the policy is not installed any more


def _rescaled(shares: list[int], before: int, now: int) -> list[int]:
    """Scale shares in proportion from one request to another; divide equally if nothing was requested before."""
    total = sum(shares)
    if not total and before:
        return shares  # this resource was not counted by zone before
    asked = -(-total * now // before) if before else now
    weights, of_all = (shares, total) if total else ([1] * len(shares), len(shares))
    ends = [asked * sum(weights[: place + 1]) // of_all for place in range(len(shares))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def loads_of(cluster: Cluster) -> dict[int, Load]:
    """Return the load of every node of the cluster, summed from its active reservations."""
    loads: dict[int, Load] = {}
    reservations = Reservation.objects.filter(cluster=cluster, active=True)
    for node_id, requests, allocation in reservations.values_list("node_id", "requests", "allocation").iterator(2000):
        load = loads.setdefault(node_id, Load())
        load.add(requests, allocation.gpu_milli)
    return loads


def rewrite_loads(cluster: Cluster) -> None:
    """Recompute the load columns of all nodes after an import; the caller then updates the cluster's totals."""
    loads = loads_of(cluster)
    nodes = list(cluster.nodes.defer("report"))
    for node in nodes:
        load = loads.get(node.pk, Load())
        node.requested, node.pods, node.gpu_milli_used = load.requests, load.pods, load.gpu_milli
    write_loads(nodes)
