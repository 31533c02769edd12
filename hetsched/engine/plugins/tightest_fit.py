"""Prefer the node with the least free capacity after the placement (best fit).

Rule, per resource r with weight w over the resources the pod asks for:
    left_r = max(0, free_r - request_r) / largest capacity of r on any node;   score = 100 * (1 - sum(w*left)/sum(w))
Cards count as their free milli. `pods` "gpu" leaves pods without a GPU demand to the other scores.
Source: the best-fit baseline of the openb GPU-sharing study (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip

_Share = Annotated[float, msgspec.Meta(ge=0, le=100)]


class TightestFitParams(Params, frozen=True):
    """How much each resource counts, and for which pods."""

    cpu: Annotated[_Share, msgspec.Meta(title="CPU weight", description="Share of CPU in the score.")] = 1.0
    memory: Annotated[_Share, msgspec.Meta(title="Memory weight", description="Share of memory.")] = 1.0
    gpu: Annotated[_Share, msgspec.Meta(title="GPU weight", description="Share of free card milli.")] = 1.0
    pods: Annotated[
        Literal["all", "gpu"], msgspec.Meta(title="Pods", description="Score all pods, or only those with cards.")
    ] = "all"


@plugin("tightest-fit", summary="Prefer the node with the least left over: packs tightly.", params=TightestFitParams)
class TightestFit:
    params: TightestFitParams

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        gpu = request.shape.gpu
        params = self.params
        if gpu is None and params.pods == "gpu":
            return SKIP
        nodes = state.all_rows
        largest = [int(row.max(initial=1)) for row in nodes.static("allocatable")[:2]]
        cards = int(nodes.static("card_milli").sum(axis=0).max(initial=1))
        weights = [params.cpu, params.memory, params.gpu if gpu is not None else 0.0]
        asked = [request.shape.request("cpu"), request.shape.request("memory"), gpu.count * gpu.milli if gpu else 0]
        total = sum(weights)
        if total == 0:
            return SKIP
        scale = np.array([100.0 * weights[i] / (total * max([*largest, cards][i], 1)) for i in range(3)])
        request.memo["tightest-fit"] = (np.array(asked, np.float64), scale, gpu is not None)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        asked, scale, with_cards = request.memo["tightest-fit"]
        left = (nodes.static("allocatable")[:2] - nodes.load("requested")[:2]) - asked[:2, None]
        np.maximum(left, 0.0, out=left)
        score: Floats = 100.0 - scale[0] * left[0] - scale[1] * left[1]
        if with_cards:
            free = np.add.reduce(nodes.load("card_milli_free"), axis=0) - asked[2]
            score = score - scale[2] * np.maximum(free, 0.0)
        return np.maximum(score, 0.0)
