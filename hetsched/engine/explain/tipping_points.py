"""Tipping points: the weight of a plugin at which another node would win.

The total of node r is T(r) = sum over plugins p of w(p) * n(p, r), where the normalised scores n do not depend on
weights. If only w(p) changes by d, then T changes by d * n(p, r), so node r overtakes the winner k at
    d = (T(k) - T(r)) / (n(p, r) - n(p, k))
which is above the current weight if r scores more than k on p, and below it if r scores less. The tipping point on each
side is the d nearest to 0. If several nodes tie there, the result is the node that wins beyond it: the one whose total
changes fastest, then the first by name. Only points inside the range of weights (0 to 1000) are returned.
Invariant: with a weight just before the tipping point the current winner still wins; just beyond it, the returned node
wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from hetsched.contracts.api.decision import Tipping, TippingPoint
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Floats
from hetsched.engine.framework.policy import MAX_WEIGHT
from hetsched.engine.framework.scoring import INFEASIBLE

from .decision_matrix import score_columns

if TYPE_CHECKING:
    from hetsched.engine.framework.cycle import Scheduler

_DIGITS = 6
# Totals are sums of a few products. If two of them differ by less than this value, the difference is rounding.
_EQUAL = 1e-9


def tipping(scheduler: Scheduler, pod: PodSpec) -> Tipping | None:
    """Return the best node's margin and the weight changes with which another node wins; None without a feasible node.

    The best node is the first by name among those with the highest total. Call this function before the pod is assumed,
    or on a fork.
    """
    state = scheduler.state
    scheduler.prepare(pod)
    request = state.compile(pod)
    evaluation, total = scheduler.evaluator.evaluate(request)
    feasible = total > INFEASIBLE
    if not pod.ready or not feasible.any():
        return None
    winner = int(total.argmax())
    rows = np.flatnonzero(feasible)
    rivals = rows[rows != winner]
    names = state.columns.names
    if not rivals.size:
        return Tipping(pod.key, names[winner], None, None, ())
    second = int(rivals[total[rivals].argmax()])
    behind = total[winner] - total[rivals]
    points: list[TippingPoint] = []
    for plugin, _, normal in score_columns(scheduler, request, evaluation):
        for side, change, rival in _crossings(behind, normal[rivals] - normal[winner]):
            at = round(plugin.weight + change, _DIGITS)
            if 0 < at < MAX_WEIGHT:
                points.append(TippingPoint(plugin.name, plugin.weight, at, side, names[rivals[rival]]))
    margin = round(float(total[winner] - total[second]), _DIGITS)
    return Tipping(pod.key, names[winner], names[second], margin, tuple(points))


def _crossings(behind: Floats, steeper: Floats) -> Iterator[tuple[Literal["above", "below"], float, int]]:
    """Yield the smallest increase and decrease of the weight at which a node overtakes, each with the node's index."""
    for side, slope in (("above", steeper), ("below", -steeper)):
        gaining = np.flatnonzero(slope > _EQUAL)
        if not gaining.size:
            continue
        changes = behind[gaining] / slope[gaining]
        nearest = float(changes.min())
        tied = gaining[changes <= nearest + _EQUAL * max(1.0, nearest)]
        rival = int(tied[slope[tied].argmax()])
        yield ("above", nearest, rival) if side == "above" else ("below", -nearest, rival)
