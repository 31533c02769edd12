"""Filter and score nodes by taints.

Rule: a NoSchedule or NoExecute taint that the pod does not tolerate refuses the node. The score falls with the number
of PreferNoSchedule taints that the pod does not tolerate:
    score = 100 - floor(100 * count / largest count of a feasible node)
Nodes share few distinct taint sets, so tolerations are evaluated once per set; for a node the result is looked up.
Source: kube-scheduler's TaintToleration plugin.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.normalization import by_largest
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.framework.tolerations import SOFT_EFFECT, repelling, tolerated_sets, tolerates

_PREPARED: StateKey[list[tuple[Taint, ...]]] = StateKey("taints")


@plugin(
    "taints",
    summary="Exclude nodes with a taint that the pod does not tolerate.",
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_TAINTS}),
)
class Taints:
    def static_key(self, request: Request) -> Hashable:
        return request.shape.tolerations

    def pre_filter(self, request: Request, state: ClusterState) -> None:
        # Keep the list of taint sets, not the results, because a what-if evaluation may append taint sets.
        request.memo[_PREPARED] = state.taint_sets.values

    def filter(self, request: Request, nodes: Window) -> Bools:
        taint_sets = request.memo[_PREPARED]
        table = tolerated_sets(request.shape.tolerations, taint_sets)
        fits: Bools = table[nodes.static("taint_set")]
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        distinct = nodes.static("taint_set")
        sets_by_taint: dict[Taint, list[int]] = {}
        for taint_set in np.unique(distinct).tolist():
            taint = repelling(request.shape.tolerations, request.memo[_PREPARED][taint_set])
            if taint is not None:
                sets_by_taint.setdefault(taint, []).append(taint_set)
        for taint, sets in sets_by_taint.items():
            text = _text(taint)
            refusal = Refusal(
                "UntoleratedTaint", Message("the taint {taint} is not tolerated", taint=text), missing=(text,)
            )
            yield refusal, np.isin(distinct, sets)

    def waits(self, request: Request) -> Message:
        return Message("a node whose taints the pod tolerates")

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        request.memo[_PREPARED] = state.taint_sets.values
        soft = any(taint.effect == SOFT_EFFECT for taints in state.taint_sets.values for taint in taints)
        return None if soft else SKIP

    def score(self, request: Request, nodes: Window) -> Floats:
        counts = [
            sum(taint.effect == SOFT_EFFECT and not tolerates(request.shape.tolerations, taint) for taint in taints)
            for taints in request.memo[_PREPARED]
        ]
        raw: Floats = np.array(counts, np.float64)[nodes.static("taint_set")]
        return raw

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        return by_largest(scores, feasible, less_is_better=True)


def _text(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
