"""Never load a node beyond its measured free capacity.

Rule: for CPU, memory, network and disk, if the pod uses them and the node has them:
    used + expected use <= capacity * (1 - free share)
If the node has a fresh sample, `used` is that sample, plus the expected use of the pods placed since, minus that of the
pods that ended; otherwise it is the requested amount. The pod adds its expected use, or its request if that is unknown.
The plugin is inactive without measurements if the policy has `resource-fit`, which checks requests.
Source: MBCGT (Li et al., Journal of Xidian University 2021 48(6)), constraints (9)-(12), reconstructed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.params import Params
from hetsched.contracts.units import format_amount
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import USAGE_RESOURCES, Bools, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[nash.FourResources] = StateKey("measured-fit")


class MeasuredFitParams(Params, frozen=True):
    """Share of the capacity that must remain free."""

    free_percent: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=99, title="Free share", description="Percentage of each resource's capacity to keep free."
        ),
    ] = 0


@plugin(
    "measured-fit",
    summary="Exclude nodes whose measured use leaves too little capacity for the expected use of the pod.",
    params=MeasuredFitParams,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_USE, Event.POD_RELEASED}),
)
class MeasuredFit:
    params: MeasuredFitParams
    measures = True
    peers: Collection[str] = ()

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        measured = state.all_rows.static("measured").any()
        if not measured and "resource-fit" in self.peers and not self.params.free_percent:
            return SKIP  # without measurements only requests are known, and resource-fit checks them
        request.memo[_PREPARED] = nash.resources_of(state)
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        over = nash.overloaded(request, nodes, request.memo[_PREPARED], self.params.free_percent)
        fits: Bools = ~np.logical_or.reduce(over, axis=0)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        resources = request.memo[_PREPARED]
        over = nash.overloaded(request, nodes, resources, self.params.free_percent)
        added = nash.demand(request, nodes, resources)
        for position, rows, amounts in zip(resources.used.tolist(), over, added, strict=True):
            name = USAGE_RESOURCES[position]
            for amount in np.unique(amounts[rows]).tolist():
                message = Message(
                    "Insufficient {resource} by measured use: the pod is expected to use {amount}",
                    resource=name,
                    amount=format_amount(name, amount),
                )
                refusal = Refusal("MeasuredUseTooHigh", message, missing=(name,), resolvable=True)
                yield refusal, rows & (amounts == amount)

    def waits(self, request: Request) -> Message:
        return Message("a node whose measured use leaves enough capacity")
