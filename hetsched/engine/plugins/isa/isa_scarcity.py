"""Keep nodes with rare instruction sets free for the pods that need them.

Problem: a program without special requirements on one of the few cores with rare extensions uses capacity that no other
node offers.
Rule: with c(x) = number of nodes of the fleet that can replace x,
    c(pod)  = nodes on which the pod's instructions run       c(node) = nodes that run everything the node runs
    share: score = 100 * min(1, c(node) / c(pod))             log: score = 100 * min(1, ln c(node) / ln c(pod))
A node that offers nothing rarer than the pod needs scores 100; the score falls with unique capabilities. `log` measures
the surplus in bits and so distinguishes rare from very rare; it scores 100 if c(pod) = 1. `ratio` is only the affinity
of the publication: 100 * modules in the pod's requirement / modules of the node. The score does not depend on the load
of the nodes, so it is cached until a node changes.
Source: the opportunity cost of a placement; ISAMatch (Jiang et al. 2022) for the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.isa.isa_fit import SECOND, run_on
from hetsched.engine.isa.isa_strings import covering_counts

_PREPARED: StateKey[ClusterState] = StateKey("isa-scarcity")


class IsaScarcityParams(Params, frozen=True):
    """Measure of a node's surplus."""

    measure: Annotated[
        Literal["log", "share", "ratio"],
        msgspec.Meta(
            title="Measure",
            description=(
                "share: number of nodes that can replace this node, divided by the number of nodes that can run the "
                "pod. log: the same with the logarithms of both numbers. "
                "ratio: share of the node's ISA modules that the pod requires."
            ),
        ),
    ] = "log"


@plugin(
    "isa-scarcity",
    summary="Keep nodes with a rare instruction set free for pods that need it.",
    params=IsaScarcityParams,
    reads=Reads.STATIC,
)
class IsaScarcity:
    params: IsaScarcityParams

    def static_key(self, request: Request) -> Hashable:
        return request.shape.isa

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.isa
        if demand is None or not demand.is_stated:
            return SKIP
        request.memo[_PREPARED] = state  # the table is computed in Score, whose result is cached by demand
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        scores: Floats = self._table(request, request.memo[_PREPARED])[nodes.static("isa_offer")]
        return scores

    def _table(self, request: Request, state: ClusterState) -> Floats:
        """Return the score of each different ISA of the nodes."""
        demand = request.shape.isa
        assert demand is not None  # PreScore skips other pods
        offers = tuple(state.offers.values)
        nodes = tuple(np.bincount(state.all_rows.static("isa_offer"), minlength=len(offers)).tolist())
        runs = [run_on("lattice", "native-first", demand, offer) for offer in offers]
        if self.params.measure == "ratio":
            return np.array([100.0 * run.affinity for run in runs])
        for_pod = sum(count for run, count in zip(runs, nodes, strict=True) if run.rank >= SECOND)
        table = [_score(self.params.measure, count, for_pod) for count in covering_counts(offers, nodes)]
        return np.array(table, np.float64)


def _score(measure: str, for_node: int, for_pod: int) -> float:
    if for_node >= for_pod:
        return 100.0
    if measure == "log":
        return 100.0 * math.log(for_node) / math.log(for_pod)
    return 100.0 * for_node / for_pod
