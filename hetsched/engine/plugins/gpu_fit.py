"""Give whole and shared cards, each card's facts respected.

Problem: "one GPU" is not one number: a card has a model, memory, cores and a share that is still free.
Rule: a pod that asks for n cards fits where n healthy cards each satisfy everything it asks of a card:
    free share    whole card: 1000 of 1000 milli;  shared card: free milli >= asked milli
    memory        whole card: the card's memory >= asked;  shared card: free memory >= charged memory, where
                  charged = asked, or ceil(card memory * milli / 1000) when nothing was asked (0 if unknown)
    cores, model  the card's own; vendor where the pod asked by an extended resource
`check` narrows this: "model" leaves out memory and cores, "count" the model too, as a scheduler that only counts cards.
A fact that is unknown does not satisfy a positive demand, and the reason says so (`GpuFactUnknown`).
Grants: a whole card takes all of the card, lowest index first; a shared card goes on the fullest card that still fits
(least free milli, then lowest index), so that empty cards stay whole.
Source: public contract section 1 "Cards"; tightest fit per card as in IHEP and in the openb trace's simulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.allocation import Allocation
from hetsched.contracts.cards import model_accepted
from hetsched.contracts.params import Params
from hetsched.contracts.workload import GpuDemand
from hetsched.engine.columns import UNKNOWN, WHOLE_CARD_MILLI, Bools, Ints, Window
from hetsched.engine.registry import plugin
from hetsched.engine.request import Request
from hetsched.engine.state import ClusterState, grant_card
from hetsched.engine.status import SKIP, Refusal, Skip

NO_CARDS = Refusal("GpuNone", "the node has no GPU card")
MODEL = Refusal("GpuModelMismatch", "too few cards of an accepted model or vendor", missing=("gpu-model",))
MEMORY = Refusal("GpuMemoryTooSmall", "too few cards with that much memory", missing=("gpu-memory",))
CORES = Refusal("GpuCoresTooFew", "too few cards with that many cores", missing=("gpu-core",))
TOO_FEW = Refusal("GpuTooFewCards", "the node has too few suitable cards", missing=("gpu-number",))
FACT_UNKNOWN = Refusal("GpuFactUnknown", "a fact that the pod asks of a card is unknown", unknown=True)
BUSY = Refusal("GpuInsufficient", "too few suitable cards are free now", resolvable=True)


class _Wanted:
    """A demand against one state's vocabularies: which models and vendors are accepted, which are unknown."""

    __slots__ = ("demand", "models", "vendor", "whole")

    def __init__(self, demand: GpuDemand, state: ClusterState, check: str) -> None:
        if check != "all":
            unchecked = {"memory_mib": 0, "cores": 0} | ({"models": ()} if check == "count" else {})
            demand = msgspec.structs.replace(demand, **unchecked)
        self.demand = demand
        self.whole = demand.milli >= WHOLE_CARD_MILLI
        self.models: Bools | None = None
        if demand.models:
            accepted = [model_accepted(demand, model) for model in state.models.values]
            self.models = np.array(accepted, np.bool_)
        self.vendor = state.vendors.id(demand.vendor) if demand.vendor else UNKNOWN


class GpuFitParams(Params, frozen=True):
    """Which facts of a card count."""

    check: Annotated[
        Literal["all", "model", "count"],
        msgspec.Meta(title="Facts checked", description="All, only the model, or only how many cards are free."),
    ] = "all"


@plugin(
    "gpu-fit",
    summary="Enough cards, each with the share, memory, cores and model that the pod asks for.",
    params=GpuFitParams,
)
class GpuFit:
    params: GpuFitParams

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.gpu
        if demand is None or demand.count == 0:
            return SKIP
        request.memo["gpu-fit"] = _Wanted(demand, state, self.params.check)
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        wanted: _Wanted = request.memo["gpu-fit"]
        cards = _free(wanted, nodes)
        facts = _facts(wanted, nodes, unknown=False)
        if facts is not None:
            cards = cards & facts
        fits: Bools = np.add.reduce(cards, axis=0) >= wanted.demand.count
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        wanted: _Wanted = request.memo["gpu-fit"]
        count = wanted.demand.count
        healthy = nodes.static("card_milli") > 0
        left: Bools = np.ones(nodes.n, np.bool_)
        for refusal, cards in (
            (NO_CARDS, None),
            (TOO_FEW, healthy),
            (MODEL, healthy & _kind(wanted, nodes, unknown=True)),
            (MEMORY, healthy & _memory(wanted, nodes, unknown=True)),
            (CORES, healthy & _cores(wanted, nodes, unknown=True)),
            (TOO_FEW, _with_facts(healthy, _facts(wanted, nodes, unknown=True))),
            (FACT_UNKNOWN, _with_facts(healthy, _facts(wanted, nodes, unknown=False))),
            (BUSY, _with_facts(_free(wanted, nodes), _facts(wanted, nodes, unknown=False))),
        ):
            short = ~healthy.any(axis=0) if cards is None else cards.sum(axis=0) < count
            if (left & short).any():
                yield refusal, left & short
            left = left & ~short

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        demand = request.shape.gpu
        if demand is None or demand.count == 0:
            return None
        wanted: _Wanted = request.memo["gpu-fit"]
        node = Window(state.columns, np.array([row], np.intp))
        fits = _with_facts(_free(wanted, node), _facts(wanted, node, unknown=False))[:, 0]
        candidates = np.flatnonzero(fits)
        if len(candidates) < demand.count:
            return BUSY
        if not wanted.whole:
            free = node.load("card_milli_free")[candidates, 0]
            candidates = candidates[np.argsort(free, kind="stable")]
        cards = {card.index: card for card in state.cards[row]}
        chosen = sorted(int(index) for index in candidates[: demand.count])
        grants = (grant_card(cards[index], demand.milli, wanted.demand.memory_mib) for index in chosen)
        return Allocation(gpus=tuple(grants))

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Cards are held by the booking itself, so forgetting it is all there is to undo."""


def _with_facts(cards: Bools, facts: Bools | None) -> Bools:
    return cards if facts is None else cards & facts


def _free(wanted: _Wanted, nodes: Window) -> Bools:
    """Return (G, n) which cards have the asked share, and for shared cards the memory, left."""
    milli_free: Ints = nodes.load("card_milli_free")
    enough: Bools = milli_free >= wanted.demand.milli
    if wanted.whole:
        return enough
    charged: Ints | int = wanted.demand.memory_mib
    if not charged:
        total = np.maximum(nodes.static("card_memory"), 0)
        charged = -(-total * wanted.demand.milli // WHOLE_CARD_MILLI)
    return enough & (nodes.load("card_memory_free") >= charged)


def _facts(wanted: _Wanted, nodes: Window, *, unknown: bool) -> Bools | None:
    """Return (G, n) which cards satisfy every fact asked; `unknown` says what an unstated fact counts as."""
    demand = wanted.demand
    facts: Bools | None = None
    if wanted.models is not None or wanted.vendor != UNKNOWN:
        facts = _kind(wanted, nodes, unknown=unknown)
    if demand.memory_mib:
        facts = _with_facts(_memory(wanted, nodes, unknown=unknown), facts)
    if demand.cores:
        facts = _with_facts(_cores(wanted, nodes, unknown=unknown), facts)
    return facts


def _kind(wanted: _Wanted, nodes: Window, *, unknown: bool) -> Bools:
    model: Ints = nodes.static("card_model")
    fits: Bools = np.ones(model.shape, np.bool_)
    if wanted.models is not None:
        fits = wanted.models[model]
        if unknown:
            fits = fits | (model == 0)
    if wanted.vendor != UNKNOWN:
        vendor: Ints = nodes.static("card_vendor")
        fits = fits & ((vendor == wanted.vendor) | (vendor == 0 if unknown else False))
    return fits


def _memory(wanted: _Wanted, nodes: Window, *, unknown: bool) -> Bools:
    return _at_least(nodes.static("card_memory"), wanted.demand.memory_mib, unknown=unknown)


def _cores(wanted: _Wanted, nodes: Window, *, unknown: bool) -> Bools:
    return _at_least(nodes.static("card_cores"), wanted.demand.cores, unknown=unknown)


def _at_least(fact: Ints, asked: int, *, unknown: bool) -> Bools:
    if not asked:
        return np.ones(fact.shape, np.bool_)
    enough: Bools = fact >= asked
    return enough | (fact == UNKNOWN) if unknown else enough
