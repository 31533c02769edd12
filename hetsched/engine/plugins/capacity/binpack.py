"""Fill nodes up, or spread, along a configured curve (RequestedToCapacityRatio).

Rule: utilisation u_r = (requested_r + request_r) / capacity_r in percent; line(u) is piecewise linear through the
`shape` points (utilisation 0-100, score 0-10), constant outside them.
    plain      score = 10 * sum(w_r * line(u_r)) / sum(w_r)  over the resources that the node has
    upstream   the same in integers, as kube-scheduler computes it: percent truncated, points times 10, divisions
               truncated, a resource whose score is 0 is left out of both sums, the mean is rounded half up
A request above the capacity scores line(100). A resource that the node lacks is left out of its score. GPU resources
are counted in milli-GPUs if the GPUs of the node are known.
Source: kube-scheduler, noderesources/requested_to_capacity_ratio.go; Kubernetes Scheduling Framework.
Example: points (0,0) (100,10), weights 1:1, GPU 3 of 4, CPU 16 of 32: plain (7.5 + 5) / 2 = 6.25 -> 62.5; upstream (75
+ 50) / 2 = 62.5 -> 63.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, GPU_RESOURCES, MEMORY
from hetsched.engine.cluster.columns import Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip

_PREPARED: StateKey[list[tuple[str, int, int]]] = StateKey("binpack")

_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Score = Annotated[int, msgspec.Meta(ge=0, le=10)]
_Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
_Points = Annotated[tuple[tuple[_Percent, _Score], ...], msgspec.Meta(min_length=1, max_length=100)]


class BinpackParams(Params, frozen=True):
    """Curve, counted resources and arithmetic."""

    shape: Annotated[
        _Points,
        msgspec.Meta(title="Curve", description=("Points [utilisation 0-100, score 0-10], in order of utilisation.")),
    ] = ((0, 0), (100, 10))
    resources: Annotated[
        dict[str, _Weight], msgspec.Meta(title="Resources", description="Weight of each resource, 1-100.")
    ] = msgspec.field(default_factory=lambda: {CPU: 1, MEMORY: 1})
    mode: Annotated[
        Literal["plain", "upstream"],
        msgspec.Meta(
            title="Arithmetic", description="plain: exact mean; upstream: integer arithmetic of kube-scheduler."
        ),
    ] = "plain"

    def __post_init__(self) -> None:
        if any(left[0] >= right[0] for left, right in pairwise(self.shape)):
            raise ValueError("shape: utilisation values must be in increasing order")


@plugin(
    "binpack",
    summary="Score nodes by a configurable curve from utilisation to score for each resource.",
    params=BinpackParams,
)
class Binpack:
    params: BinpackParams

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        known = [(name, weight) for name, weight in self.params.resources.items() if name in state.resources.index]
        if not known:
            return SKIP
        request.memo[_PREPARED] = [(name, state.resources.index[name], weight) for name, weight in known]
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        parts = [(weight, *_use(request, nodes, name, row)) for name, row, weight in request.memo[_PREPARED]]
        return self._upstream(parts) if self.params.mode == "upstream" else self._plain(parts)

    def _plain(self, parts: list[tuple[int, Ints, Ints]]) -> Floats:
        points = np.array(self.params.shape, np.float64)
        total, weights = np.zeros(len(parts[0][1])), np.zeros(len(parts[0][1]))
        for weight, requested, capacity in parts:
            has = capacity > 0
            utilisation = np.minimum(100.0 * requested / np.maximum(capacity, 1), 100.0)
            total += np.where(has, weight * np.interp(utilisation, points[:, 0], points[:, 1]), 0.0)
            weights += np.where(has, weight, 0)
        score: Floats = 10.0 * total / np.maximum(weights, 1.0)
        return score

    def _upstream(self, parts: list[tuple[int, Ints, Ints]]) -> Floats:
        total, weights = np.zeros(len(parts[0][1]), np.int64), np.zeros(len(parts[0][1]), np.int64)
        for weight, requested, capacity in parts:
            # requested * 100 fits int64 up to 92 PB of bytes, far above any node.
            percent = np.where(requested >= capacity, 100, np.maximum(requested, 0) * 100 // np.maximum(capacity, 1))
            score = self._broken_line(percent)
            counts = (capacity > 0) & (score > 0)
            total += np.where(counts, weight * score, 0)
            weights += np.where(counts, weight, 0)
        return np.floor(total / np.maximum(weights, 1) + 0.5)

    def _broken_line(self, percent: Ints) -> Ints:
        """Return integer scores 0-100 of integer percents, rounded towards zero between two points."""
        table = np.empty(101, np.int64)
        points = [(utilisation, 10 * score) for utilisation, score in self.params.shape]
        for value in range(101):
            after = next((i for i, point in enumerate(points) if value <= point[0]), len(points))
            if after in (0, len(points)):
                table[value] = points[0 if after == 0 else -1][1]
                continue
            (low, start), (high, end) = points[after - 1], points[after]
            rise = (end - start) * (value - low)
            table[value] = start + (abs(rise) // (high - low)) * (1 if rise >= 0 else -1)
        scores: Ints = table[percent]
        return scores


def _use(request: Request, nodes: Window, name: str, row: int) -> tuple[Ints, Ints]:
    """Return the requested amount, with the pod included, and the capacity of one resource on each node, both (n,)."""
    if name in GPU_RESOURCES:
        gpu = request.shape.gpu
        capacity = nodes.static("card_milli").sum(axis=0)
        used = capacity - nodes.load("card_milli_free").sum(axis=0)
        return used + (gpu.count * gpu.milli if gpu else 0), capacity
    capacity = nodes.static("allocatable")[row]
    if name in (CPU, MEMORY):
        position = (CPU, MEMORY).index(name)
        return nodes.load("nonzero")[position] + request.compiled.nonzero[position], capacity
    return nodes.load("requested")[row] + request.shape.request(name), capacity
