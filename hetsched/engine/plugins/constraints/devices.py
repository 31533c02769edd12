"""Allocate the devices of a pod's resource claims, on a node where they are free.

Rule: a node fits if it can use the devices of every allocated claim of the pod, and if its free devices satisfy all
open claims of the pod at the same time (see `engine.cluster.devices.search`). Reserve chooses the devices on the
selected node. They remain reserved for the pod until they are written into the claims. Extended resources of the pod
that devices serve on a node are one more open claim there (see `engine.cluster.devices.extended_resources`). If the
status of the pod names a claim for them, because a binding failed after it was written, the pod does not fit nodes on
which device plugins serve all its resources: their kubelets ask no device plugin for the resources that the status
names.
If the policy has `numa-fit`, the devices are chosen together with the NUMA zones of the pod's CPUs (see
`engine.numa.device_zones`): near these zones if possible. With `zones` "require", other nodes do not fit.
Source: kube-scheduler's DynamicResources plugin; Kubernetes documentation, "Dynamic Resource Allocation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import Allocation, DeviceGrant
from hetsched.contracts.objects.devices import ResourceClaim
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.devices.extended_resources import claim_on, served_nodes, served_resources
from hetsched.engine.cluster.devices.search import NodeDevices
from hetsched.engine.cluster.devices.usage import DeviceUsage
from hetsched.engine.cluster.selectors import nodes_of_terms
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import LoopReserve
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.numa.device_zones import CpuZones, align, needs_alignment, open_claims, zone_of_device

_PREPARED: StateKey[_PreparedClaims] = StateKey("devices")

Refused = tuple[Refusal, Bools]


class DevicesParams(Params, frozen=True):
    """Alignment of devices with CPUs."""

    zones: Annotated[
        Literal["prefer", "require"],
        msgspec.Meta(
            title="Devices in the zones of the CPUs",
            description="Prefer or require devices of resource claims in the NUMA zones of the pod's CPUs.",
        ),
    ] = "prefer"


class SelectsCpuZones(Protocol):
    """Plugin that selects the NUMA zones of a pod's CPUs."""

    def cpu_zones(self, request: Request, state: ClusterState) -> CpuZones:
        """Return the inputs of the zones of a pod's CPUs."""


class _PreparedClaims(NamedTuple):
    """Prepared claims of a pod: refusals with masks (N,) of the refused nodes.

    `names` are the names of all claims, and of the extended resources (`resources`) that devices may serve.
    """

    refused: list[Refused]
    names: str
    resources: tuple[str, ...]


class _Need(NamedTuple):
    """Open claims of a pod on some nodes (N,), with the names of the pod's claims and extended resources.

    `extended` is true if devices serve extended resources on these nodes.
    """

    nodes: Bools
    claims: list[ResourceClaim]
    names: tuple[str, ...]
    extended: bool

    @property
    def refusals(self) -> tuple[Refusal, Refusal, Refusal]:
        """The refusals of nodes with too few free devices, with tainted devices, and of a stopped search."""
        names = ", ".join(self.names)
        if self.extended:
            few = Message("no free devices for {names}", names=names)
            tainted = Message("the devices for {names} have taints that are not tolerated", names=names)
            stopped = Message(
                "the search for free devices for {names} reached the maximum number of steps", names=names
            )
        else:
            few = Message("no free devices for claim {names}", names=names)
            tainted = Message(
                "the devices for claim {names} have taints that its requests do not tolerate", names=names
            )
            stopped = Message(
                "the search for free devices for claim {names} reached the maximum number of steps", names=names
            )
        return (
            Refusal("DevicesNotAvailable", few, self.names),
            Refusal("DevicesTainted", tainted, self.names),
            Refusal("DevicesUndecided", stopped, unknown=True),
        )


@plugin(
    "devices",
    summary=(
        "A node must have the devices of the pod's allocated resource claims, and free devices for its other claims."
    ),
    params=DevicesParams,
    scope=Scope.CLUSTER,
    helped_by=frozenset(
        {Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS, Event.NAMES_CHANGED, Event.STORAGE_CHANGED,
         Event.POD_RELEASED, Event.POD_PLACED, Event.POD_CHANGED, Event.DEVICE_CLASS}
    ),
)  # fmt: skip
class Devices:
    params: DevicesParams
    peers: Mapping[str, SelectsCpuZones] = {}
    compiled_reserve = LoopReserve.NOTHING

    def handles(self, shape: Shape) -> bool:
        return bool(shape.devices)

    def handled_pods(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        return state.devices.needed

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        if not state.devices.needed(request.pod):
            return SKIP
        found = _prepare_claims(request, state)
        if isinstance(found, Refusal):
            return found
        if self.params.zones == "require":
            found.refused.extend(self._misaligned(request, state, found))
        request.memo[_PREPARED] = found
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.ones(nodes.n, np.bool_)
        for _, rows in request.memo[_PREPARED].refused:
            fits &= ~nodes.pick(rows)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        for refusal, rows in request.memo[_PREPARED].refused:
            yield refusal, nodes.pick(rows)

    def waits(self, request: Request) -> Message:
        names = [use.claim or use.name for use in request.shape.devices]
        prepared = request.memo.get(_PREPARED)  # None if a claim was refused
        if prepared is not None and prepared.resources:
            return Message("free devices for {names}", names=joined(", ", [*names, *prepared.resources]))
        if len(names) > 1:
            return Message("free devices for claims {names}", names=joined(", ", names))
        return Message("free devices for claim {name}", name=names[0] if names else request.pod.extended_claim)

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        if not state.devices.needed(request.pod):
            return None
        found = _prepare_claims(request, state, only=row)
        if isinstance(found, Refusal):
            return found
        cpus = self._cpu_zones(request, state)
        claims, usage = open_claims(request, state, row), state.devices.usage(request.pod)
        aligned = None if cpus is None else align(cpus, claims, row, state, usage)
        if aligned is None and self.params.zones == "require" and cpus and needs_alignment(cpus, claims, row, state):
            return _not_aligned(found.names)
        if not claims.claims:
            return None
        node = state.devices.by_node(state, (row,)).get(row, NodeDevices())
        grants = aligned.grants if aligned else state.devices.allocate(claims.claims, node, usage)
        if isinstance(grants, str):
            return Refusal("DevicesNotAvailable", Message("the devices have been allocated to other pods"))
        devices = tuple(_with_zone(grant, row, state) for grant in grants)
        extended = claim_on(request.pod, state.devices.known, state, row)
        return Allocation(devices=devices, extended=extended or msgspec.UNSET)

    def _cpu_zones(self, request: Request, state: ClusterState) -> CpuZones | None:
        """Return the inputs of the zones of a pod's CPUs, or None if the policy does not select zones."""
        selector = self.peers.get("numa-fit")
        return None if selector is None else selector.cpu_zones(request, state)

    def _misaligned(self, request: Request, state: ClusterState, found: _PreparedClaims) -> Iterator[Refused]:
        """Yield the refusal of the nodes that have devices for the pod, but not near the zones of its CPUs."""
        cpus = self._cpu_zones(request, state)
        if cpus is None or (cpus.demand is None and cpus.admission is None):
            return
        usage = state.devices.usage(request.pod)
        excluded = np.logical_or.reduce([rows for _, rows in found.refused]) if found.refused else np.False_
        misaligned: Bools = np.zeros(len(state.reports), np.bool_)
        for row in np.flatnonzero(~np.broadcast_to(excluded, misaligned.shape)).tolist():
            claims = open_claims(request, state, row)
            if align(cpus, claims, row, state, usage) is None:
                misaligned[row] = needs_alignment(cpus, claims, row, state)
        yield _not_aligned(found.names), misaligned

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the devices are released when the assumed pod is removed."""


def _with_zone(grant: DeviceGrant, row: int, state: ClusterState) -> DeviceGrant:
    zone = zone_of_device(row, state.devices.places[grant.device], state)
    return grant if zone is None else msgspec.structs.replace(grant, zone=zone)


def _not_aligned(names: str) -> Refusal:
    message = Message("the free devices for claim {names} are not in the NUMA zones of the pod's CPUs", names=names)
    return Refusal("DevicesNotAligned", message, tuple(names.split(", ")))


def _named(claim: str) -> Refusal:
    message = Message(
        "the status of the pod names claim {claim} for its extended resources, so no device plugin can serve them; "
        "recreate the pod to use a device plugin",
        claim=claim,
    )
    return Refusal("ExtendedClaimNamed", message, (claim,))


def _prepare_claims(request: Request, state: ClusterState, only: int | None = None) -> _PreparedClaims | Refusal:
    """Return the prepared claims of a pod, or a refusal if a claim cannot be used.

    With `only` (the row of one node), the search for nodes without enough free devices is skipped.
    """
    refused: list[Refused] = []
    still_open: list[ResourceClaim] = []
    for use in request.shape.devices:
        found = state.devices.resolve_claim(request.pod, use)
        if isinstance(found, Refusal):
            return found
        if found.allocated is None:
            still_open.append(found)
        elif found.node_terms is not None:
            message = Message("the devices of claim {claim} are on another node", claim=found.name)
            away = ~nodes_of_terms(state, found.node_terms)
            refused.append((Refusal("DevicesElsewhere", message, (found.name,), verdict=None), away))
    resources = tuple(served_resources(request.shape, state.devices.known))
    if only is None:
        usage = state.devices.usage(request.pod)
        named = request.pod.extended_claim
        for group in served_nodes(request.pod, state.devices.known, state):
            claims = [*still_open, group.claim] if group.claim is not None else still_open
            if group.claim is None and named:
                refused.append((_named(named), group.nodes))
            problem = None if group.claim is None else state.devices.claim_problem(group.claim)
            if problem is not None:
                refused.append((msgspec.structs.replace(problem, verdict=None), group.nodes))
            elif claims:
                names = (*(claim.name for claim in still_open), *group.resources)
                refused += _without(_Need(group.nodes, claims, names, bool(group.resources)), usage, state)
    every = ", ".join((*(use.claim for use in request.shape.devices), *resources))
    return _PreparedClaims(refused, every, resources)


def _without(need: _Need, usage: DeviceUsage, state: ClusterState) -> list[Refused]:
    """Return refusals of the nodes that cannot serve all open claims of a pod, or whose search was stopped."""
    # Claims without requests need no devices.
    few = need.nodes & isinstance(state.devices.allocate(need.claims, NodeDevices(), usage), str)
    tainted: Bools = np.zeros(len(state.reports), np.bool_)
    stopped: Bools = np.zeros(len(state.reports), np.bool_)
    for row, found in state.devices.searches(need.claims, state, usage).items():
        if need.nodes[row]:
            few[row], tainted[row], stopped[row] = found == "few", found == "taints", found == "search"
    return list(zip(need.refusals, (few, tainted, stopped), strict=True))
