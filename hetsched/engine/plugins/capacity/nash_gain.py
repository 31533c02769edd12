"""Prefer nodes that the pod balances: the gain of `mbcgt` on a fixed scale, node by node.

Rule: score = 50 + 50 * (S_new / S_old - 1) / full, cut to 0-100; S as in `engine.framework.nash`, `full` is the
relative gain that scores 100; a gain of -`full` scores 0. Its default is 1/3, the greatest gain that variance allows (S
>= 0.75). The nodes are ordered as by `mbcgt`, because ln is monotonic. Unlike in `mbcgt`, the score of a node does not
depend on the other candidates, so it can be added to other scores with a constant weight. `pods` "cpu" excludes pods
with GPUs.
Source: as `mbcgt`; the fixed scale is specific to hetsched.
Example: S .9325 -> .97: gain .040214, full 1/3 -> 50 + 50 * .120643 = 56.03.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import UNKNOWN, USAGE_RESOURCES, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.node_class import is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip

_PREPARED: StateKey[nash.FourResources] = StateKey("nash-gain")


class NashGainParams(Params, frozen=True):
    """Measure of unevenness, and scale of the score."""

    dispersion: Annotated[
        Literal["variance", "std"],
        msgspec.Meta(title="Dispersion", description="Variance or standard deviation of a node's four utilisations."),
    ] = "variance"
    full: Annotated[
        float,
        msgspec.Meta(
            ge=0.001,
            le=1,
            title="Full gain",
            description=("Relative gain in evenness that scores 100; a loss of the same size scores 0."),
        ),
    ] = 1 / 3
    pods: Annotated[
        Literal["all", "cpu"], msgspec.Meta(title="Pods", description="Score all pods, or only pods without GPUs.")
    ] = "all"


# Adding and then subtracting this constant rounds to the nearest whole number, halves to even, like rint.
_ROUNDING = 1.5 * 2.0**52


@loop_function
def _utility(use: Any, room: Any, has: Any, count: float) -> tuple[float, float]:
    """Return the pair (1 - variance, mean) of the used shares of four resources.

    `has` is 0 for a resource that the node lacks.
    """
    share_a, share_b = min(use[0] / room[0], 1.0) * has[0], min(use[1] / room[1], 1.0) * has[1]
    share_c, share_d = min(use[2] / room[2], 1.0) * has[2], min(use[3] / room[3], 1.0) * has[3]
    mean = (share_a + share_b + share_c + share_d) / count
    spread = (share_a - mean) * (share_a - mean) * has[0]
    spread += (share_b - mean) * (share_b - mean) * has[1]
    spread += (share_c - mean) * (share_c - mean) * has[2]
    spread += (share_d - mean) * (share_d - mean) * has[3]
    return 1.0 - spread / count, mean


@loop_function
def _gain(use: Any, more: Any, room: Any, has: Any, count: float, scale: float) -> float:
    before, _ = _utility(use, room, has, count)
    loaded = use[0] + more[0], use[1] + more[1], use[2] + more[2], use[3] + more[3]
    after, mean = _utility(loaded, room, has, count)
    steps = ((after / before - 1.0) * 1e9 + _ROUNDING) - _ROUNDING
    return min(max(50.0 + (steps - 0.25 * mean) * 1e-9 * scale, 0.0), 100.0)


@loop_function
def _nash_gain(total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any) -> None:
    """Add the weighted score of nash-gain to `total`.

    `given` contains the rows of the four resources in `allocatable` (-1: no node has the resource); 50 / `full`; and 1
    if every node has all four resources, else 0.
    """
    scale = given[4]
    known_a, known_b, known_c, known_d = given[0] >= 0, given[1] >= 0, given[2] >= 0, given[3] >= 0
    in_a = nodes.static[at.allocatable + max(int(given[0]), 0), nodes.first : nodes.last]
    in_b = nodes.static[at.allocatable + max(int(given[1]), 0), nodes.first : nodes.last]
    in_c = nodes.static[at.allocatable + max(int(given[2]), 0), nodes.first : nodes.last]
    in_d = nodes.static[at.allocatable + max(int(given[3]), 0), nodes.first : nodes.last]
    used_a = nodes.load[at.used, nodes.first : nodes.last]
    used_b = nodes.load[at.used + 1, nodes.first : nodes.last]
    used_c = nodes.load[at.used + 2, nodes.first : nodes.last]
    used_d = nodes.load[at.used + 3, nodes.first : nodes.last]
    measured_a, measured_b, measured_c, measured_d = used_a, used_b, used_c, used_d  # read, but multiplied by 0
    if extra.any():
        measured_a = nodes.static[at.measured, nodes.first : nodes.last]
        measured_b = nodes.static[at.measured + 1, nodes.first : nodes.last]
        measured_c = nodes.static[at.measured + 2, nodes.first : nodes.last]
        measured_d = nodes.static[at.measured + 3, nodes.first : nodes.last]
    add_a, add_b, add_c, add_d = delta[at.used], delta[at.used + 1], delta[at.used + 2], delta[at.used + 3]
    extra_a, extra_b, extra_c, extra_d = extra[0], extra[1], extra[2], extra[3]
    if given[5] == 1.0:
        # Every node has all four resources: with constant arguments, the compiler removes most of the work.
        for i in range(len(total)):
            use = max(used_a[i], 0), max(used_b[i], 0), max(used_c[i], 0), max(used_d[i], 0)
            more = (
                add_a + measured_a[i] * extra_a, add_b + measured_b[i] * extra_b,
                add_c + measured_c[i] * extra_c, add_d + measured_d[i] * extra_d,
            )  # fmt: skip
            room = in_a[i], in_b[i], in_c[i], in_d[i]
            total[i] += weight * _gain(use, more, room, (1.0, 1.0, 1.0, 1.0), 4.0, scale)
        return
    for i in range(len(total)):
        use = max(used_a[i], 0), max(used_b[i], 0), max(used_c[i], 0), max(used_d[i], 0)
        more = (
            add_a + measured_a[i] * extra_a, add_b + measured_b[i] * extra_b,
            add_c + measured_c[i] * extra_c, add_d + measured_d[i] * extra_d,
        )  # fmt: skip
        room = max(in_a[i], 1), max(in_b[i], 1), max(in_c[i], 1), max(in_d[i], 1)
        has_a, has_b = np.float64((in_a[i] > 0) & known_a), np.float64((in_b[i] > 0) & known_b)
        has_c, has_d = np.float64((in_c[i] > 0) & known_c), np.float64((in_d[i] > 0) & known_d)
        count = max(has_a + has_b + has_c + has_d, 1.0)
        total[i] += weight * _gain(use, more, room, (has_a, has_b, has_c, has_d), count, scale)


def _inputs(
    plugin: NashGain, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    if plugin.params.dispersion != "variance":
        return None
    rows, all_there = state.once("nash-gain.rows", lambda: _four_resources(state))
    return FormulaInput(_nash_gain, (*rows, 50.0 / plugin.params.full, all_there))


def _four_resources(state: ClusterState) -> tuple[list[int], float]:
    """Return the rows of the four resources in `allocatable` (-1: none), and 1 if every node has all four, else 0."""
    rows = [state.resources.index.get(name, UNKNOWN) for name in USAGE_RESOURCES]
    return rows, float(UNKNOWN not in rows and bool((state.columns.field("allocatable")[rows] > 0).all()))


@plugin(
    "nash-gain",
    summary="Prefer nodes on which the pod makes the use of four resources more even.",
    params=NashGainParams,
)
class NashGain:
    params: NashGainParams
    compiled_term = CompiledTerm((_nash_gain,), _inputs, ("allocatable", "used"), is_gpu_pod)
    measures = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if self.params.pods == "cpu" and is_gpu_pod(request.shape):
            return SKIP
        request.memo[_PREPARED] = nash.resources_of(state)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        gains, mean = nash.gain(request, nodes, request.memo[_PREPARED], self.params.dispersion)
        gains -= 1.0
        score = nash.ranked(gains, mean)
        score *= 50.0 / self.params.full
        score += 50.0
        np.maximum(score, 0.0, out=score)
        return np.minimum(score, 100.0, out=score)
