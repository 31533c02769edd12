"""The NUMA zones of a node, who holds their CPUs, and where containers really are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from hetsched.contracts.node_report import NumaZone
from hetsched.contracts.units import CPU, format_amount
from hetsched.engine.numa.zones import ZoneAtRisk
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation
from web.api.documents import Document

from .origin import Origin, origin, quantities, source_of, stated


class ZoneFacts(Document, frozen=True):
    """One NUMA zone; `cpus` is null where the zone is only counted.

    `offlineCapacity` is what online workloads leave of it, null where nobody said. `short` is by how much it has less
    than it granted, null where it does not; then it takes nothing more, and `atRisk` names the pods that hold it.
    """

    name: str
    cpus: str | None
    siblings: str | None
    capacity: dict[str, str]
    allocatable: dict[str, str]
    costs: dict[str, int]
    offline_capacity: str | None
    short: str | None
    at_risk: list[str]
    held: list[dict[str, Any]]


class PinFacts(Document, frozen=True):
    """A container that the agent looks after: the CPUs it was granted and those it has.

    `by` is who pins; `drift` says how the two differ, empty where they do not.
    """

    pod: str
    container: str
    predicted: str
    actual: str | None
    by: str
    drift: str


class NumaFacts(Document, frozen=True):
    """The zones of a node and how its kubelet is set up; null where nobody reported any.

    `lostCpus` were there and are reported no more; `pins` is null where no agent looks after containers.
    """

    origin: Origin
    cpu_manager_policy: str | None
    topology_manager_policy: str | None
    topology_manager_scope: str | None
    reserved_cpus: str | None
    zones: list[ZoneFacts] | None
    lost_cpus: str | None = None
    pins: list[PinFacts] | None = None


def numa_facts(
    node: Node, held: Iterable[Reservation], now: datetime, *, at_risk: Iterable[ZoneAtRisk] = ()
) -> NumaFacts:
    """Return the node's zones; `at_risk` are those that granted more than they have.

    Of the pods at risk those are named that are among `held`, which the asker may see.
    """
    held = list(held)
    seen = {reservation.pod.key for reservation in held}
    short = {zone.zone: zone._replace(pods=tuple(pod for pod in zone.pods if pod in seen)) for zone in at_risk}
    numa = node.report.numa
    if numa is None:
        return NumaFacts(origin(node, now), None, None, None, None, None, pins=pins(node, held))
    holders: dict[str, list[dict[str, Any]]] = {}
    for reservation in held:
        for grant in reservation.allocation.zones:
            holders.setdefault(grant.name, []).append({"pod": reservation.pod.key, **msgspec.to_builtins(grant)})
    return NumaFacts(
        origin=origin(node, now, source=source_of(node, "numa")),
        cpu_manager_policy=numa.cpu_manager_policy,
        topology_manager_policy=numa.topology_manager_policy,
        topology_manager_scope=numa.topology_manager_scope,
        reserved_cpus=numa.reserved_cpus,
        zones=[_zone(zone, holders.get(zone.name, []), short.get(zone.name)) for zone in numa.zones],
        lost_cpus=numa.lost_cpus,
        pins=pins(node, held),
    )


def pins(node: Node, held: Iterable[Reservation]) -> list[PinFacts] | None:
    """Return where the containers of the pods among `held` are, None where no agent looks after them."""
    row = stated(node)
    if row is None or row.pinned is None:
        return None
    keys = {reservation.pod.uid: reservation.pod.key for reservation in held}
    return [
        PinFacts(keys[one.pod_uid], one.container, one.predicted, one.actual, one.by, one.drift)
        for one in row.pinned
        if one.pod_uid in keys
    ]


def _zone(zone: NumaZone, held: list[dict[str, Any]], short: ZoneAtRisk | None) -> ZoneFacts:
    offline = zone.offline_capacity_millis
    return ZoneFacts(
        name=zone.name,
        cpus=zone.cpus,
        siblings=zone.siblings,
        capacity=quantities(zone.capacity),
        allocatable=quantities(zone.allocatable),
        costs=zone.costs,
        offline_capacity=None if offline is None else format_amount(CPU, offline),
        short=None if short is None else format_amount(CPU, short.short_millis),
        at_risk=[] if short is None else list(short.pods),
        held=held,
    )
