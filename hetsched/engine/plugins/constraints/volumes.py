"""Place a pod where its volumes are usable or can be created.

Rule: every bound claim of the pod has a volume that the node can use. Every claim that waits for the first consumer can
get a volume on the node (see `engine.cluster.volumes`). No other pod uses a ReadWriteOncePod claim of the pod. No
storage driver exceeds its limit on the node:
    attached volumes + new volumes of this pod <= limit of the driver
Reserve chooses a free volume for each waiting claim on the selected node. The volume remains reserved until the binding
of the claim is written.
Source: kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits plugins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import EMPTY, Allocation, VolumeGrant
from hetsched.contracts.objects.storage import PersistentVolume
from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.units import format_amount
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import UNLIMITED, Bools, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.cluster.volumes import (
    Attachment,
    PendingClaim,
    choose,
    nodes_of_selected_volume,
    nodes_of_volume,
    provisionable_nodes,
)
from hetsched.engine.framework.compiled_terms import LoopReserve
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[_PreparedVolumes] = StateKey("volumes")

Refused = tuple[Refusal, Bools]


class _PreparedVolumes(NamedTuple):
    """Prepared claims of a pod: refusals with masks (N,) of the refused nodes, and claims that wait for a volume."""

    refused: list[Refused]
    waiting: list[PendingClaim]


@plugin(
    "volumes",
    summary="Claimed volumes must be usable or provisionable on the node.",
    scope=Scope.CLUSTER,
    helped_by=frozenset(
        {
            Event.NODE_ADDED,
            Event.NODE_CAPACITY,
            Event.NODE_LABELS,
            Event.STORAGE_CHANGED,
            Event.POD_RELEASED,
            Event.POD_PLACED,
        }
    ),
)
class Volumes:
    compiled_reserve = LoopReserve.NOTHING

    def handles(self, shape: Shape) -> bool:
        return bool(shape.claims)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        if not request.shape.claims:
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
        names = [use.name for use in request.shape.claims]
        if len(names) > 1:
            return Message("volumes for claims {names} on a feasible node", names=joined(", ", names))
        return Message("a volume for claim {name} on a feasible node", name=names[0])

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        if not request.shape.claims:
            return None
        found = _prepare_claims(request, state)
        if isinstance(found, Refusal):
            return found
        chosen = choose(state, found.waiting, row)
        if chosen is None:
            return Refusal("VolumeNotAvailable", Message("the matching volumes have been claimed for other pods"))
        held = state.volumes
        for use in request.shape.claims:  # add the volumes that other pods chose for a shared claim
            claim = held.claim(request.pod, use)
            if claim is not None and not claim.volume and use.name not in chosen:
                chosen[use.name] = held.volume_of(claim)
        grants = tuple(VolumeGrant(claim, volume) for claim, volume in sorted(chosen.items()) if volume)
        return Allocation(volumes=grants) if grants else None

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the volumes are released when the assumed pod is removed."""


def _prepare_claims(request: Request, state: ClusterState) -> _PreparedVolumes | Refusal:
    refused: list[Refused] = []
    waiting: list[PendingClaim] = []
    for use in request.shape.claims:
        found = state.volumes.resolve_claim(request.pod, use)
        if isinstance(found, Refusal):
            return found
        if isinstance(found, PersistentVolume):
            message = Message(
                "the node affinity of volume {volume} of claim {claim} does not match the node",
                volume=found.name,
                claim=use.name,
            )
            refused.append((Refusal("VolumeNodeConflict", message, (found.name,)), ~nodes_of_volume(state, found)))
        else:
            waiting.append(found)
            refused.append(_without(found, state))
        if others := state.volumes.other_users(request.pod, use):
            refused += _in_use(use.name, others, state)
    if len(waiting) > 1:
        refused.append(_together(waiting, refused, state))
    return _PreparedVolumes([*refused, *_full(request, state)], waiting)


def _without(waiting: PendingClaim, state: ClusterState) -> Refused:
    """Return the refusal for the nodes on which a waiting claim can get no volume, with their (N,) mask."""
    claim = waiting.claim
    selected = nodes_of_selected_volume(state, claim)
    if selected is not None and waiting.provisioner is not None:
        message = Message("a volume for claim {claim} is being provisioned for another node", claim=claim.name)
        return Refusal("VolumeSelectedElsewhere", message, (claim.name,)), ~selected
    fits = provisionable_nodes(state, waiting).copy()
    for volume in waiting.volumes:
        fits |= nodes_of_volume(state, volume)
    size = format_amount("memory", claim.asks.request_bytes)
    message = Message(
        "no volume of {amount} for claim {claim} is available or can be provisioned on this node",
        amount=size,
        claim=claim.name,
    )
    return Refusal("VolumeNotAvailable", message, (claim.name,)), ~fits


def _in_use(name: str, rows: set[int], state: ClusterState) -> list[Refused]:
    """Return refusals of all nodes for a claim in use; on `rows`, where its user runs, preemption can help."""
    there: Bools = np.zeros(len(state.reports), np.bool_)
    there[list(rows)] = True
    message = Message("claim {claim} allows only one pod, and another pod uses it", claim=name)
    return [
        (Refusal("VolumeInUse", message, (name,), resolvable=True), there),
        (Refusal("VolumeInUse", message, (name,)), ~there),
    ]


def _together(waiting: list[PendingClaim], refused: list[Refused], state: ClusterState) -> Refused:
    """Return the refusal for nodes with a volume for each claim, but too few for all claims, with their mask (N,)."""
    remaining: Bools = ~np.logical_or.reduce([rows for _, rows in refused])
    short: Bools = np.zeros(len(state.reports), np.bool_)
    for row in np.flatnonzero(remaining).tolist():
        short[row] = choose(state, waiting, row) is None
    return Refusal("VolumeNotAvailable", Message("there are too few volumes for all claims of the pod")), short


def _full(request: Request, state: ClusterState) -> Iterator[tuple[Refusal, Bools]]:
    """Yield, for each driver with new attachments, the refusal and the (N,) mask of nodes whose limit they exceed."""
    new: dict[str, set[Attachment]] = {}
    for what in state.volumes.attachments(request.pod, EMPTY):
        new.setdefault(what[0], set()).add(what)
    for driver, wanted in sorted(new.items()):
        limits = state.once(("attach-limits", driver), lambda driver=driver: _limits(driver, state))  # type: ignore[misc]
        if (limits == UNLIMITED).all():
            continue
        attached: Ints = np.zeros(len(state.reports), np.int64)
        added: Ints = np.full(len(state.reports), len(wanted), np.int64)
        for what, rows in state.volumes.attached.items():
            if what[0] == driver:
                attached[list(rows)] += 1
                if what in wanted:
                    added[list(rows)] -= 1
        message = Message("no more volumes of {driver} can be attached to the node", driver=driver)
        refusal = Refusal("VolumeLimitExceeded", message, (driver,), resolvable=True)
        yield refusal, (added > 0) & (attached + added > limits)


def _limits(driver: str, state: ClusterState) -> Ints:
    return np.array([report.attach_limits.get(driver, UNLIMITED) for report in state.reports], np.int64)
