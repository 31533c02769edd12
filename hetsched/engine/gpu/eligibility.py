"""GPU eligibility: which GPUs of a node satisfy a demand.

A GPU is eligible if it has the requested share free and satisfies every requested fact. The plugin `gpu-fit` documents
and applies the complete rule; `numa-fit` uses it to find the zones of eligible GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hetsched.contracts.objects.cards import model_accepted
from hetsched.contracts.objects.workload import GpuDemand
from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI, Bools, Ints, Window

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


class CardDemand:
    """A pod's GPU demand with the ids of one state: the accepted models as a mask over model ids, and the vendor's id.

    `check` limits the checks: "model" ignores memory and cores; "count" also ignores the model.
    """

    __slots__ = ("demand", "models", "vendor", "whole")

    def __init__(self, demand: GpuDemand, state: ClusterState, check: str = "all") -> None:
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

    def usable(self, nodes: Window) -> Bools:
        """Return the (G, n) mask of GPUs that are eligible now; an unknown fact satisfies no demand."""
        facts = self.facts(nodes, unknown=False)
        return self.free(nodes) if facts is None else self.free(nodes) & facts

    def free(self, nodes: Window) -> Bools:
        """Return the (G, n) mask of GPUs with the requested share and, for shared GPUs, the requested memory free."""
        enough: Bools = nodes.load("card_milli_free") >= self.demand.milli
        if self.whole:
            return enough
        charged: Ints | int = self.demand.memory_mib
        if not charged:
            total = np.maximum(nodes.static("card_memory"), 0)
            charged = -(-total * self.demand.milli // WHOLE_CARD_MILLI)
        return enough & (nodes.load("card_memory_free") >= charged)

    def facts(self, nodes: Window, *, unknown: bool) -> Bools | None:
        """Return the (G, n) mask of GPUs that satisfy every requested fact, or None if no fact is requested.

        `unknown` is the result for a fact that the node does not state.
        """
        facts: Bools | None = None
        if self.models is not None or self.vendor != UNKNOWN:
            facts = self.of_kind(nodes, unknown=unknown)
        for asked, having in ((self.demand.memory_mib, self.with_memory), (self.demand.cores, self.with_cores)):
            if asked:
                found = having(nodes, unknown=unknown)
                facts = found if facts is None else facts & found
        return facts

    def of_kind(self, nodes: Window, *, unknown: bool) -> Bools:
        """Return the (G, n) mask of GPUs of an accepted model and vendor."""
        model: Ints = nodes.static("card_model")
        fits: Bools = np.ones(model.shape, np.bool_)
        if self.models is not None:
            fits = self.models[model]
            if unknown:
                fits = fits | (model == 0)
        if self.vendor != UNKNOWN:
            vendor: Ints = nodes.static("card_vendor")
            fits = fits & ((vendor == self.vendor) | (vendor == 0 if unknown else False))
        return fits

    def with_memory(self, nodes: Window, *, unknown: bool) -> Bools:
        """Return the (G, n) mask of GPUs whose total memory is at least the requested memory."""
        return _at_least(nodes.static("card_memory"), self.demand.memory_mib, unknown=unknown)

    def with_cores(self, nodes: Window, *, unknown: bool) -> Bools:
        """Return the (G, n) mask of GPUs that have at least the requested cores."""
        return _at_least(nodes.static("card_cores"), self.demand.cores, unknown=unknown)


def _at_least(fact: Ints, asked: int, *, unknown: bool) -> Bools:
    if not asked:
        return np.ones(fact.shape, np.bool_)
    enough: Bools = fact >= asked
    return enough | (fact == UNKNOWN) if unknown else enough
