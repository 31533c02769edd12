"""Prefer nodes that the pod balances: the gain of `mbcgt` on a fixed scale, node by node.

Rule: score = 50 + 50 * (S_new / S_old - 1) / full, cut to 0-100; S as in `engine.nash`, `full` the relative gain that
scores 100 (its negative 0), by default 1/3, the greatest that variance allows (S >= 0.75). The order of nodes is that
of `mbcgt`, as ln grows with its argument. Unlike there the points do not depend on the other candidates, so they can be
added to other scores with a constant weight. `pods` "cpu" excludes pods with GPUs.
Source: as `mbcgt`; the fixed scale is specific to hetsched.
Worked: S .9325 -> .97: gain .040214, full 1/3 -> 50 + 50 * .120643 = 56.03.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.node_class import is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip


class NashGainParams(Params, frozen=True):
    """How unevenness is measured, and the scale of the score."""

    dispersion: Annotated[
        Literal["variance", "std"],
        msgspec.Meta(title="Dispersion", description="Variance, or its root, of a node's four utilisations."),
    ] = "variance"
    full: Annotated[
        float,
        msgspec.Meta(ge=0.001, le=1, title="Full gain", description="Gain that scores 100; its negative scores 0."),
    ] = 1 / 3
    pods: Annotated[
        Literal["all", "cpu"], msgspec.Meta(title="Pods", description="Score all pods, or only those without GPUs.")
    ] = "all"


@plugin("nash-gain", summary="Prefer nodes that the pod makes more evenly used.", params=NashGainParams)
class NashGain:
    params: NashGainParams
    measures = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if self.params.pods == "cpu" and is_gpu_pod(request.shape):
            return SKIP
        request.memo["nash-gain"] = nash.resources_of(state)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        gains, mean = nash.gain(request, nodes, request.memo["nash-gain"], self.params.dispersion)
        gains -= 1.0
        score = nash.ranked(gains, mean)
        score *= 50.0 / self.params.full
        score += 50.0
        np.maximum(score, 0.0, out=score)
        return np.minimum(score, 100.0, out=score)
