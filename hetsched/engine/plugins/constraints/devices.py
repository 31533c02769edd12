"""Allocate the devices of a pod's resource claims, on a node where they are free.

Rule: a node fits if it can use the devices of every allocated claim of the pod, and if its free devices satisfy all
open claims of the pod at the same time (see `engine.cluster.devices`). Reserve chooses the devices on the selected
node. They remain reserved for the pod until they are written into the claims.
Source: kube-scheduler's DynamicResources plugin; Kubernetes documentation, "Dynamic Resource Allocation".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.devices import ResourceClaim
from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.selectors import nodes_of_terms
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import LoopReserve
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[_PreparedClaims] = StateKey("devices")

Refused = tuple[Refusal, Bools]


class _PreparedClaims(NamedTuple):
    """Prepared claims of a pod: refusals with masks (N,) of the refused nodes, and the claims without an allocation."""

    refused: list[Refused]
    open: list[ResourceClaim]


@plugin(
    "devices",
    summary=(
        "A node must have the devices of the pod's allocated resource claims, and free devices for its other claims."
    ),
    scope=Scope.CLUSTER,
    helped_by=frozenset(
        {Event.NODE_ADDED, Event.NODE_LABELS, Event.NAMES_CHANGED, Event.STORAGE_CHANGED, Event.POD_RELEASED,
         Event.POD_PLACED, Event.POD_CHANGED}
    ),
)  # fmt: skip
class Devices:
    compiled_reserve = LoopReserve.NOTHING

    def handles(self, shape: Shape) -> bool:
        return bool(shape.devices)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        if not request.shape.devices:
            return SKIP
        found = _prepare_claims(request, state)
        if isinstance(found, Refusal):
            return found
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
        if len(names) > 1:
            return Message("free devices for claims {names}", names=joined(", ", names))
        return Message("free devices for claim {name}", name=names[0])

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        if not request.shape.devices:
            return None
        found = _prepare_claims(request, state, only=row)
        if isinstance(found, Refusal):
            return found
        if not found.open:
            return None
        places = state.devices.by_node(state, (row,)).get(row, [])
        grants = state.devices.allocate(found.open, places, state.devices.usage())
        if isinstance(grants, str):
            return Refusal("DevicesNotAvailable", Message("the devices have been allocated to other pods"))
        return Allocation(devices=tuple(grants))

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the devices are released when the assumed pod is removed."""


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
    if still_open and only is None:
        refused += _without(still_open, state)
    return _PreparedClaims(refused, still_open)


def _without(claims: list[ResourceClaim], state: ClusterState) -> list[Refused]:
    """Return refusals of the nodes that cannot serve all open claims of a pod, or whose search was stopped."""
    usage = state.devices.usage()
    # Claims without requests need no devices.
    few: Bools = np.full(len(state.reports), isinstance(state.devices.allocate(claims, (), usage), str))
    tainted: Bools = np.zeros(len(state.reports), np.bool_)
    long: Bools = np.zeros(len(state.reports), np.bool_)
    for row, places in state.devices.by_node(state).items():
        found = state.devices.allocate(claims, places, usage)
        few[row], tainted[row], long[row] = found == "few", found == "taints", found == "search"
    names = ", ".join(claim.name for claim in claims)
    return [
        (
            Refusal(
                "DevicesNotAvailable",
                Message("no free devices for claim {names}", names=names),
                tuple(c.name for c in claims),
            ),
            few,
        ),
        (
            Refusal(
                "DevicesTainted",
                Message("the devices for claim {names} have taints that its requests do not tolerate", names=names),
                tuple(c.name for c in claims),
            ),
            tainted,
        ),
        (
            Refusal(
                "DevicesUndecided",
                Message(
                    "the search for free devices for claim {names} reached the maximum number of steps", names=names
                ),
                unknown=True,
            ),
            long,
        ),
    ]
