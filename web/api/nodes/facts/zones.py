"""The NUMA zones of a node, the owners of their CPUs, and the actual CPUs of containers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.allocation import ZoneGrant
from hetsched.contracts.objects.kubelet_options import unmodelled
from hetsched.contracts.objects.node_report import NumaReport, NumaZone
from hetsched.contracts.units import CPU, format_amount
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.numa.reported_zones import availability
from hetsched.engine.numa.zones_at_risk import ZoneAtRisk
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation
from hetsched.placement.queries.zones import single_node_state
from web.api.documents import Document

from .origin import Origin, origin, quantities, source_of, stated


class ZoneFacts(Document, frozen=True):
    """One NUMA zone; `cpus` is null if its source reports amounts but no CPU ids.

    `offlineCapacity` is the capacity that online workloads do not use, or null if it is not reported. `short` is the
    amount by which the capacity is smaller than the reservations, or null if it is not. No new pods are placed in a
    short zone, and `atRisk` names the pods that hold its CPUs. `used` is the reserved CPU, or null if unknown;
    `useUnknown` of the node then gives the reason. `staticMemory` is the memory, by kind, that the kubelet's static
    memory manager may assign, and `staticMemoryFree` its part that is not assigned; both are null if unknown.
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
    used: str | None = None
    static_memory: dict[str, str] | None = None
    static_memory_free: dict[str, str] | None = None


class PinFacts(Document, frozen=True):
    """Container managed by the agent, with its assigned and actual CPUs.

    `by` is the component that pins it; `drift` describes the difference, or is empty if there is none.
    """

    pod: str
    container: str
    predicted: str
    actual: str | None
    by: str
    drift: str


class NumaFacts(Document, frozen=True):
    """The zones of a node and the configuration of its kubelet.

    `lostCpus` are CPUs that are missing from the latest report. `pins` is null if no agent pins containers.
    `unknownOptions` are kubelet options that hetsched's prediction of kubelet admission does not model, or that depend
    on facts that no source reports.
    `kubeletCpus` are CPUs that the kubelet allocated to pods unknown to hetsched. `useUnknown` is the reason why the
    use of the zones is unknown.
    """

    origin: Origin
    cpu_manager_policy: str | None
    topology_manager_policy: str | None
    topology_manager_scope: str | None
    reserved_cpus: str | None
    zones: list[ZoneFacts] | None
    lost_cpus: str | None = None
    pins: list[PinFacts] | None = None
    cpu_manager_options: dict[str, str] = {}
    topology_manager_options: dict[str, str] = {}
    unknown_options: list[str] = []
    kubelet_cpus: str | None = None
    use_unknown: str | None = None
    memory_manager_policy: str | None = None


USE_UNKNOWN = "no pod has reserved zones on this node, and no source reports available zone resources"


def numa_facts(
    node: Node, reservations: Iterable[Reservation], now: datetime, *, at_risk: Iterable[ZoneAtRisk] = ()
) -> NumaFacts:
    """Return the node's zones; `at_risk` are the zones with less capacity than their pods hold.

    Pods at risk are named only if they are among `reservations`, which the caller may see.
    """
    reservations = list(reservations)
    seen = {reservation.pod.key for reservation in reservations}
    short = {zone.zone: zone._replace(pods=tuple(pod for pod in zone.pods if pod in seen)) for zone in at_risk}
    numa = node.report.numa
    if numa is None:
        return NumaFacts(origin(node, now), None, None, None, None, None, pins=pins(node, reservations))
    holders: dict[str, list[dict[str, Any]]] = {}
    given = {key: grant for grant in numa.grants for key in (grant.name, grant.pod) if key and grant.cpus}
    for reservation in reservations:
        by_kubelet = given.get(reservation.pod.uid) or given.get(reservation.pod.key)
        own = reservation.allocation.zones if by_kubelet is None else _by_zone(parse_cpuset(by_kubelet.cpus), numa)
        for grant in own:
            holders.setdefault(grant.name, []).append({"pod": reservation.pod.key, **to_plain(grant)})
    state = single_node_state(node, reservations)
    used, memory = _used(node, reservations, state), _free_memory(state)
    shown = {key for one in reservations for key in (one.pod.uid, one.pod.key)}
    foreign = frozenset[int]().union(
        *(parse_cpuset(item.cpus) for item in numa.grants if item.foreign and not {item.pod, item.name} & shown)
    )
    return NumaFacts(
        origin=origin(node, now, source=source_of(node, "numa")),
        cpu_manager_policy=numa.cpu_manager_policy,
        topology_manager_policy=numa.topology_manager_policy,
        topology_manager_scope=numa.topology_manager_scope,
        reserved_cpus=numa.reserved_cpus,
        zones=[_zone(zone, holders.get(zone.name, []), short.get(zone.name), used, memory) for zone in numa.zones],
        lost_cpus=numa.lost_cpus,
        pins=pins(node, reservations),
        cpu_manager_options=numa.cpu_manager_options,
        topology_manager_options=numa.topology_manager_options,
        unknown_options=list(unmodelled(numa)),
        kubelet_cpus=format_cpuset(foreign) or None,
        use_unknown=USE_UNKNOWN if used is None and numa.zones else None,
        memory_manager_policy=numa.memory_manager_policy,
    )


def _by_zone(cpus: frozenset[int], numa: NumaReport) -> list[ZoneGrant]:
    """Return one grant per zone for the CPUs that the kubelet allocated to a pod."""
    parts = {zone.name: cpus & parse_cpuset(zone.cpus or "") for zone in numa.zones}
    return [ZoneGrant(name, format_cpuset(part), 1000 * len(part)) for name, part in parts.items() if part]


def _free_memory(state: ClusterState) -> dict[str, dict[str, int]]:
    """Return the bytes by zone and kind that the static memory manager has not assigned, {} if they are unknown."""
    facts, layout = state.zones.nodes.get(0), state.columns.layout
    if facts is None:
        return {}
    free = state.columns.field("static_memory_free")[:, 0]
    return {
        facts.names[at]: {kind: int(free[layout.memory[kind] * layout.zones + at]) for kind, _ in zone.allocatable}
        for at, zone in enumerate(facts.memory)
    }


def _used(node: Node, reservations: list[Reservation], state: ClusterState) -> dict[str, int] | None:
    """Return the used millicores by zone as the scheduler computes them, or None if the zones of some requested CPUs
    are unknown.
    """
    facts, columns = state.zones.nodes.get(0), state.columns
    tracked = any(
        reservation.allocation.zones or reservation.allocation.predicted for reservation in reservations
    ) or bool(state.zones.held or availability(node.report))
    if facts is None or (node.requested.get(CPU) and not tracked):
        return None
    effective, free = columns.field("zone_cpu")[:, 0], columns.field("zone_cpu_free")[:, 0]
    return {name: int(effective[at] - free[at]) for at, name in enumerate(facts.names)}


def pins(node: Node, reservations: Iterable[Reservation]) -> list[PinFacts] | None:
    """Return the assigned and actual CPUs of containers that the agent manages, for pods in `reservations`.

    Return None if no agent pins containers on this node.
    """
    row = stated(node)
    if row is None or row.pinned is None:
        return None
    keys = {reservation.pod.uid: reservation.pod.key for reservation in reservations}
    return [
        PinFacts(keys[item.pod_uid], item.container, item.predicted, item.actual, item.by, item.drift)
        for item in row.pinned
        if item.pod_uid in keys
    ]


def _zone(
    zone: NumaZone,
    held: list[dict[str, Any]],
    short: ZoneAtRisk | None,
    used: dict[str, int] | None,
    memory: dict[str, dict[str, int]],
) -> ZoneFacts:
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
        used=None if used is None or zone.name not in used else format_amount(CPU, used[zone.name]),
        static_memory=None if zone.assignable is None else quantities(zone.assignable),
        static_memory_free=quantities(memory[zone.name]) if zone.name in memory else None,
    )
