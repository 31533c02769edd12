"""Never assign more of a resource than a node has.

Rule: for every requested resource, requested + request <= allocatable, including extended resources. If the policy has
`gpu-fit`, that plugin checks GPU resources, because it knows each GPU of a node. If the policy has `devices`, that
plugin checks the extended resources that devices serve (see `engine.cluster.devices.extended_resources`).
Source: kube-scheduler's NodeResourcesFit plugin; requests follow Kubernetes' rules for init and sidecar containers
and pod overhead (see `adapters.objects.manifests`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.units import GPU_RESOURCES, format_amount
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Ints, Rows, Window
from hetsched.engine.cluster.devices.extended_resources import served_resources
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import BuiltinFilter
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[_Prepared] = StateKey("resource-fit")

MOST_UNKNOWN = 8  # maximum number of requested resources that no node has and that the refusal names


class _Prepared(NamedTuple):
    """Checked resources of a shape, with their rows (k,) and amounts (k, 1).

    Devices serve a `served` resource (k, 1) on the nodes that have none of it.
    """

    names: list[str]
    rows: Rows
    needs: Ints
    served: Bools


@plugin(
    "resource-fit",
    summary="Requests must fit the free capacity of the node for every resource.",
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.POD_RELEASED, Event.DEVICE_CLASS}),
)
class ResourceFit:
    peers: frozenset[str] = frozenset()
    compiled_filter = BuiltinFilter.RESOURCES

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        needs = [
            (name, state.resources.index[name], amount)
            for name, amount in request.shape.requests
            if amount > 0 and not ("gpu-fit" in self.peers and name in GPU_RESOURCES)
        ]
        unknown = [name for name, _, _ in needs if name not in state.resources.index]
        if len(unknown) > MOST_UNKNOWN:  # one such resource is enough to refuse every node
            left_out = set(unknown[MOST_UNKNOWN:])
            needs = [need for need in needs if need[0] not in left_out]
        served = served_resources(request.shape, state.devices.known) if "devices" in self.peers else {}
        request.memo[_PREPARED] = _Prepared(
            [name for name, _, _ in needs],
            np.array([row for _, row, _ in needs], np.intp),
            np.array([[amount] for _, _, amount in needs], np.int64),
            np.array([[name in served] for name, _, _ in needs], np.bool_),
        )
        return None if needs else SKIP

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.logical_and.reduce(self._short(request, nodes) <= 0, axis=0)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        prepared = request.memo[_PREPARED]
        for name, need, short in zip(prepared.names, prepared.needs, self._short(request, nodes), strict=True):
            message = Message(
                "Insufficient {resource}: {amount} requested", resource=name, amount=format_amount(name, int(need[0]))
            )
            yield Refusal("InsufficientResource", message, missing=(name,), resolvable=True), short > 0

    def waits(self, request: Request) -> Message:
        prepared = request.memo[_PREPARED]
        asked = zip(prepared.names, prepared.needs, strict=True)
        parts = [f"{name} {format_amount(name, int(need[0]))}" for name, need in asked if name != "pods"]
        if not parts:
            return Message("a node with a free pod slot")
        return Message("a node with {names} free", names=joined(", ", parts))

    @staticmethod
    def _short(request: Request, nodes: Window) -> Ints:
        """Return the missing amount of each requested resource, shape (k, n); positive if the pod does not fit."""
        _, rows, needs, served = request.memo[_PREPARED]
        short: Ints = nodes.load("requested").take(rows, axis=0)
        allocatable = nodes.static("allocatable").take(rows, axis=0)
        short -= allocatable
        short += needs
        if served.any():
            short[served & (allocatable == 0)] = 0
        return short
