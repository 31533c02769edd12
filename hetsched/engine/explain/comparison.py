"""Comparison of another scheduler's choice with the choice of our policy.

The same pod is scored on the same state by our policy; `score` is the total divided by the sum of the score weights.
The comparison uses the node on which our policy would place the pod, which is not the node with the best score if
Reserve fails there.
    regret = score of our node - score of theirs, in points of the policy;  rank = 1 + number of nodes that score more
"Theirs" is the node of the other scheduler. If one of our filters refuses it, there is a reason instead of a regret.
Invariant: the state is unchanged afterwards.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hetsched.contracts.api.decision import NodeOutcome, Reason
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.scoring import INFEASIBLE

from .decision_matrix import best, node_outcome
from .diagnosis import misconfigured

_DIGITS = 6


class Comparison(msgspec.Struct, frozen=True):
    """Comparison for one pod.

    `chosen` is our node, empty if there is none; `top` are our best nodes, `theirs` is the other scheduler's.
    """

    chosen: str
    feasible: int
    theirs: NodeOutcome | None
    top: tuple[NodeOutcome, ...] = ()
    our_score: float | None = None
    their_score: float | None = None
    rank: int | None = None
    refusal: Reason | None = None

    @property
    def regret(self) -> float | None:
        """Return our node's score minus the score of the other scheduler's node; None if either has no score."""
        if self.our_score is None or self.their_score is None:
            return None
        return round(self.our_score - self.their_score, _DIGITS)


def compare(scheduler: Scheduler, pod: PodSpec, node: str, *, top_nodes: int = 3) -> Comparison:
    """Compare our decision for a pod with `node`, on which another scheduler placed it."""
    if pod.problems:
        return Comparison("", 0, None, refusal=misconfigured(pod).reasons[0])
    row = scheduler.state.row_of[node]
    request = scheduler.state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    feasible = int((total > INFEASIBLE).sum())
    weights = evaluation.weight_sum + request.cluster_weight
    theirs = node_outcome(scheduler, pod, row)
    refusal, their_score, rank = theirs.refused, None, None
    if theirs.feasible:
        short = scheduler.reserve_refusal(request, row)
        if short is not None:
            refusal = Reason(short.code, "reserve", 1, short.message, short.missing, short.field)
        else:
            their_score = round(float(total[row]) / weights if weights else 0.0, _DIGITS)
            rank = 1 + int(np.count_nonzero(total > total[row]))
    top = best(scheduler, pod, top_nodes)
    outcome = scheduler.schedule(pod, preempts=False) if feasible else None
    chosen = outcome.node or "" if outcome is not None else ""
    our_score = round(outcome.score, _DIGITS) if outcome is not None and chosen else None
    if outcome is not None:
        scheduler.undo(outcome)
    return Comparison(chosen, feasible, theirs, top, our_score, their_score, rank, refusal)
