"""Allocate whole and shared GPUs by the facts of each GPU.

Problem: pods request a model, memory, cores or a share of a GPU, so a count of free GPUs is not enough.
Rule: a pod that requests n GPUs fits if n healthy GPUs each satisfy the whole request:
    free share    whole GPU: 1000 of 1000 milli;  shared GPU: free milli >= requested milli
    memory        whole GPU: the GPU's memory >= requested;  shared GPU: free memory >= needed memory, where
                  needed = requested, or ceil(GPU memory * milli / 1000) without a request (0 if unknown)
    cores, model  cores of the GPU >= requested, and its model is accepted;  also its vendor, if the pod requests
                  an extended resource
`check` restricts this: "model" ignores memory and cores; "count" also ignores the model, like a scheduler that only
counts GPUs.
A GPU in maintenance accepts no pods. If the node would fit with this GPU, the reason names the maintenance.
If the policy has `devices`, that plugin checks a plain number of GPUs on the nodes where devices serve the extended
resource (see `engine.cluster.devices.extended_resources`).
An unknown fact does not satisfy a positive request, and the reason states this (`GpuFactUnknown`).
Allocation: whole GPUs are allocated by lowest index. If a pod requests several GPUs and the node states links, the
best-linked GPUs are allocated (`engine.gpu.links`), unless `links` is "ignore". A shared pod uses the GPU with the
smallest sufficient free share (then the lowest index), so that empty GPUs remain whole. If zones were chosen before,
GPUs in these zones come first.
Source: public contract section 1 "Cards"; tightest fit per GPU as in IHEP and in the openb trace's simulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import GpuDemand, Shape
from hetsched.contracts.params import Params
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Window
from hetsched.engine.cluster.devices.extended_resources import served_resources
from hetsched.engine.cluster.placed_pod import grant_card
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import BuiltinFilter, LoopReserve
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.gpu.eligibility import CardDemand
from hetsched.engine.gpu.links import best_linked

_PREPARED: StateKey[CardDemand] = StateKey("gpu-fit")
_SERVED: StateKey[int | None] = StateKey("gpu-fit-served")

# Templates for the GPUs that a pod waits for: any GPUs, GPUs with some facts, of a model, of a model with some facts.
_WAITS = {
    "share": (
        "a node with {n}/1000 of a GPU free",
        "a node with {n}/1000 of a GPU with {text} free",
        "a node with {n}/1000 of a {model} GPU free",
        "a node with {n}/1000 of a {model} GPU with {text} free",
    ),
    "card": (
        "a node with {n} free GPU",
        "a node with {n} free GPU with {text}",
        "a node with {n} free {model} GPU",
        "a node with {n} free {model} GPU with {text}",
    ),
    "cards": (
        "a node with {n} free GPUs",
        "a node with {n} free GPUs with {text}",
        "a node with {n} free {model} GPUs",
        "a node with {n} free {model} GPUs with {text}",
    ),
}
NO_CARDS = Refusal("GpuNone", Message("the node has no GPU"))
MODEL = Refusal("GpuModelMismatch", Message("too few GPUs of an accepted model or vendor"), missing=("gpu-model",))
MEMORY = Refusal("GpuMemoryTooSmall", Message("too few GPUs with the requested memory"), missing=("gpu-memory",))
CORES = Refusal("GpuCoresTooFew", Message("too few GPUs with the requested cores"), missing=("gpu-core",))
TOO_FEW = Refusal("GpuTooFewCards", Message("the node has too few suitable GPUs"), missing=("gpu-number",))
FACT_UNKNOWN = Refusal("GpuFactUnknown", Message("a GPU property that the pod requires is unknown"), unknown=True)
MAINTENANCE = Refusal("GpuInMaintenance", Message("suitable GPUs are in maintenance"), missing=("gpu-number",))
BUSY = Refusal("GpuInsufficient", Message("too few suitable GPUs are free now"), resolvable=True)


class GpuFitParams(Params, frozen=True):
    """GPU facts that are compared with the request."""

    check: Annotated[
        Literal["all", "model", "count"],
        msgspec.Meta(
            title="Checked properties",
            description=(
                "all: check all requested GPU properties. model: ignore memory and cores. count: also ignore the model."
            ),
        ),
    ] = "all"
    links: Annotated[
        Literal["best", "ignore"],
        msgspec.Meta(
            title="GPU links",
            description=(
                "best: select the GPUs with the best links to each other. "
                "ignore: select the GPUs with the lowest indices."
            ),
        ),
    ] = "best"


@plugin(
    "gpu-fit",
    summary="A node must have enough GPUs, each with the requested share, memory, cores and model.",
    params=GpuFitParams,
    helped_by=frozenset(
        {Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS, Event.POD_RELEASED, Event.DEVICE_CLASS}
    ),
)
class GpuFit:
    params: GpuFitParams
    peers: frozenset[str] = frozenset()
    compiled_filter = BuiltinFilter.CARDS
    compiled_reserve = LoopReserve.CARDS

    @property
    def checks_every_fact(self) -> bool:
        return self.params.check == "all"

    def card_demand(self, demand: GpuDemand, state: ClusterState) -> CardDemand:
        return CardDemand(demand, state, self.params.check)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.gpu
        if demand is None or demand.count == 0:
            return SKIP
        request.memo[_PREPARED] = self.card_demand(demand, state)
        request.memo[_SERVED] = self._served_resource(request.shape, state)
        return None

    def _served_resource(self, shape: Shape, state: ClusterState) -> int | None:
        """Return the row of the GPU resource if devices may serve it, else None."""
        demand = shape.gpu
        assert demand is not None
        if "devices" not in self.peers or demand != GpuDemand(demand.count, vendor=demand.vendor):
            return None  # devices of a class have no model, memory or share that a pod could request
        classes = served_resources(shape, state.devices.known)
        return next((state.resources.index[name] for name in classes if name in GPU_RESOURCES), None)

    def filter(self, request: Request, nodes: Window) -> Bools:
        wanted = request.memo[_PREPARED]
        fits: Bools = np.add.reduce(wanted.usable(nodes), axis=0) >= wanted.demand.count
        fits |= _nodes_with_devices(request, nodes)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        wanted = request.memo[_PREPARED]
        count = wanted.demand.count
        healthy: Bools = nodes.static("card_milli") > 0
        there = healthy | (nodes.static("card_resting") > 0)
        possible, known = wanted.facts(nodes, unknown=True), wanted.facts(nodes, unknown=False)
        remaining = ~_nodes_with_devices(request, nodes)
        for refusal, cards in (
            (NO_CARDS, None),
            (TOO_FEW, there),
            (MODEL, there & wanted.of_kind(nodes, unknown=True)),
            (MEMORY, there & wanted.with_memory(nodes, unknown=True)),
            (CORES, there & wanted.with_cores(nodes, unknown=True)),
            (TOO_FEW, there if possible is None else there & possible),
            (FACT_UNKNOWN, there if known is None else there & known),
            (MAINTENANCE, healthy if known is None else healthy & known),
            (BUSY, wanted.usable(nodes)),
        ):
            short = ~there.any(axis=0) if cards is None else cards.sum(axis=0) < count
            if (remaining & short).any():
                yield refusal, remaining & short
            remaining = remaining & ~short

    def waits(self, request: Request) -> Message:
        demand = request.memo[_PREPARED].demand
        model = "/".join(demand.models)
        facts = [f"{demand.memory_mib} MiB"] if demand.memory_mib else []
        facts += [f"{demand.cores} cores"] if demand.cores else []
        kind = "share" if demand.milli < WHOLE_CARD_MILLI else "cards" if demand.count > 1 else "card"
        count = demand.milli if kind == "share" else demand.count
        template = _WAITS[kind][2 * bool(model) + bool(facts)]
        return Message(template, n=count, model=model, text=joined(" and ", facts))

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        demand = request.shape.gpu
        if demand is None or demand.count == 0:
            return None
        wanted = request.memo[_PREPARED]
        node = Window(state.columns, np.array([row], np.intp))
        if _nodes_with_devices(request, node)[0]:
            return None
        candidates: list[int] = np.flatnonzero(wanted.usable(node)[:, 0]).tolist()
        if len(candidates) < demand.count:
            return BUSY
        if not wanted.whole:
            free = node.load("card_milli_free")[:, 0]
            candidates.sort(key=lambda index: int(free[index]))
        if request.near_cards is not None:
            near = request.near_cards
            candidates.sort(key=lambda index: index not in near)
        cards = {card.index: card for card in state.cards[row]}
        chosen = sorted(candidates[: demand.count])
        if demand.count > 1 and row in state.links and self.params.links == "best":
            near = request.near_cards or frozenset()
            chosen = list(best_linked(state.links[row], tuple(sorted(candidates)), near, demand.count))
        grants = (grant_card(cards[index], demand.milli, wanted.demand.memory_mib) for index in chosen)
        return Allocation(gpus=tuple(grants))

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the GPUs are released when the assumed pod is removed."""


def _nodes_with_devices(request: Request, nodes: Window) -> Bools:
    """Return the nodes (n,) of a window on which devices serve the GPU resource."""
    resource = request.memo[_SERVED]
    if resource is None:
        return np.zeros(nodes.n, np.bool_)
    served: Bools = nodes.static("allocatable")[resource] == 0
    return served
