"""Choose the NUMA zones of a pod's CPUs and the devices of its resource claims in one decision.

The kubelet aligns CPUs with the devices of device plugins. It does not align them with the devices of resource claims:
the scheduler has chosen these before, without the zones of the CPUs.
Rule: a choice of zones aligns a pod if all its claims can get devices that are near these zones, or whose zone is
unknown. Of the aligned choices, the pod gets the first one with the fewest zones:
    hetsched selects the zones    the choices are those of `zone_demand`, at most one for each zone and the crossing
    the kubelet pins the CPUs     the only choice is the predicted assignment of the kubelet
    any other pod                 there is no choice, and all devices are equal
Devices of allocated claims remain as they are, so only a choice with their zones aligns the pod. Devices that several
nodes can access and requests with admin access do not count.
Source: Kubernetes documentation, "Dynamic Resource Allocation", limitations; KEP-4381.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation, DeviceGrant
from hetsched.contracts.objects.devices import ResourceClaim
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.devices.extended_resources import as_resource_claim, claim_on
from hetsched.engine.cluster.devices.search import NodeDevices
from hetsched.engine.cluster.devices.usage import DeviceUsage
from hetsched.engine.framework.request import Request, StateKey

from .kubelet_admission import KubeletAdmission
from .zone_demand import Share, ZoneDemand

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


class CpuZones(NamedTuple):
    """Inputs of the zones of a pod's CPUs: its demand of zones, and the prediction of its kubelets' admission."""

    demand: ZoneDemand | None
    admission: KubeletAdmission | None


CPU_ZONES: StateKey[CpuZones] = StateKey("cpu-zones")


class ZoneChoice(NamedTuple):
    """Zones from which a pod may get its CPUs; `shares` is empty if the kubelet selects the CPUs."""

    zones: tuple[int, ...]
    shares: list[Share]


class OpenClaims(NamedTuple):
    """Claims of a pod that need devices, and the devices (indexes) of its allocated claims."""

    claims: Sequence[ResourceClaim]
    allocated: Sequence[int]


class AlignedDevices(NamedTuple):
    choice: ZoneChoice
    grants: list[DeviceGrant]


def zone_choices(cpus: CpuZones, node: Window) -> Iterator[ZoneChoice]:
    """Yield the choices of zones on the only node of a window, the best one first; none if no zones are chosen."""
    demand, admission = cpus
    aligned: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    if admission is not None:
        _, verdicts = admission.verdicts(node)
        aligned = verdicts[0].aligned if verdicts else ()
        _, assigned = admission.assignments(node)
        if assigned and not assigned[0].reason:
            predicted = tuple(zone for zone, count in enumerate(assigned[0].cpus) if count)
    if demand is not None and demand.bound[node.static("topology_setup")[0]]:
        preferred = zone_mask(aligned, node) if aligned else demand.near(node)[:, 0]
        for shares in demand.choices(node, preferred):
            yield ZoneChoice(tuple(share.position for share in shares), shares)
    elif predicted or aligned:
        yield ZoneChoice(predicted or aligned, [])


def zone_mask(positions: Iterable[int], node: Window) -> Bools:
    """Return the (Z,) mask of the zones at these positions."""
    chosen: Bools = np.zeros(node.columns.layout.zones, np.bool_)
    chosen[list(positions)] = True
    return chosen


def open_claims(request: Request, state: ClusterState, row: int) -> OpenClaims:
    """Return the claims of a pod on a row, divided into those that need devices and the devices of the allocated ones.

    The claim for extended resources that devices serve on the row is the last one.
    """
    needed: list[ResourceClaim] = []
    allocated: list[int] = []
    for use in request.shape.devices:
        claim = state.devices.known.claims.get(f"{request.pod.namespace}/{use.claim}")
        if claim is None:
            continue
        if claim.allocated is None:
            needed.append(claim)
        else:
            found = (state.devices.places.get(each.device) for each in claim.allocated if not each.admin)
            allocated += [place for place in found if place is not None]
    extended = claim_on(request.pod, state.devices.known, state, row)
    if extended is not None:
        needed.append(as_resource_claim(request.pod.namespace, extended))
    return OpenClaims(needed, allocated)


def align(
    cpus: CpuZones, claims: OpenClaims, row: int, state: ClusterState, usage: DeviceUsage
) -> AlignedDevices | None:
    """Return the first choice of zones that aligns a pod on a row with its devices, or None if there is none."""
    devices = state.devices
    there = devices.by_node(state, (row,)).get(row, NodeDevices())
    zones = _zones_of_devices(row, [*there.places, *claims.allocated], state)
    if not any(zone is not None for zone in zones.values()):
        return None
    node = Window(state.columns, np.array([row], np.intp))
    for choice in sorted(zone_choices(cpus, node), key=lambda choice: len(choice.zones)):
        remote = [place for place, zone in zones.items() if zone is not None and zone not in choice.zones]
        if set(remote).isdisjoint(claims.allocated):
            grants = devices.allocate(claims.claims, there, usage, remote)
            if not isinstance(grants, str):
                return AlignedDevices(choice, grants)
    return None


def needs_alignment(cpus: CpuZones, claims: OpenClaims, row: int, state: ClusterState) -> bool:
    """Return whether the zones of a pod's CPUs on a row, and the zone of a device of the row, are known."""
    there = state.devices.by_node(state, (row,)).get(row, NodeDevices())
    places = (*there.places, *claims.allocated)
    if all(zone is None for zone in _zones_of_devices(row, places, state).values()):
        return False
    return next(zone_choices(cpus, Window(state.columns, np.array([row], np.intp))), None) is not None


def chosen_zones(cpus: CpuZones, request: Request, row: int, state: ClusterState) -> ZoneChoice | None:
    """Return the zones of a pod's CPUs on a row: those near its devices if possible, else the best choice, or None."""
    if state.devices.known.devices and state.devices.needed(request.pod):
        aligned = align(cpus, open_claims(request, state, row), row, state, state.devices.usage(request.pod))
        if aligned is not None:
            return aligned.choice
    return next(zone_choices(cpus, Window(state.columns, np.array([row], np.intp))), None)


def _zones_of_devices(row: int, places: Iterable[int], state: ClusterState) -> dict[int, int | None]:
    """Return the position of the zone near each device: None if it is unknown, -1 if the zone has no CPUs."""
    facts, found = state.zones.nodes.get(row), {}
    numa = state.reports[row].numa
    known = len(numa.zones) if numa is not None else 0
    for place in places:
        number = state.devices.numa[place]
        position = None if number is None or facts is None else facts.position(str(number))
        found[place] = -1 if position is None and number is not None and number < known else position
    return found


def zone_of_device(row: int, place: int, state: ClusterState) -> str | None:
    """Return the name of the zone near a device, or None if it is unknown."""
    position = _zones_of_devices(row, (place,), state)[place]
    return None if position is None or position < 0 else state.zones.nodes[row].names[position]


def alignments(allocation: Allocation) -> Iterator[Message]:
    """Yield, for each claim with devices near known zones, whether these are the zones of the pod's CPUs."""
    cpus = sorted({zone.name for zone in allocation.zones or allocation.predicted})
    by_claim: dict[str, set[str]] = {}
    for grant in allocation.devices:
        if grant.zone is not None and not grant.admin:
            by_claim.setdefault(grant.claim, set()).add(grant.zone)
    if not cpus:
        return
    for claim, zones in by_claim.items():
        found, own = ", ".join(sorted(zones)), ", ".join(cpus)
        if zones <= set(cpus):
            yield Message("the devices of claim {claim} and the CPUs are in NUMA zone {zones}", claim=claim, zones=own)
        else:
            yield Message(
                "the devices of claim {claim} are in NUMA zone {zones}, the CPUs in {others}",
                claim=claim, zones=found, others=own,
            )  # fmt: skip
