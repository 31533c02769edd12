"""Prefer the node with the least free CPU and GPU after the placement, as the openb study's best fit does.

Rule: score = int(100 * (1 - (left_cpu / largest_cpu + left_gpu / largest_gpu) / 2)).
`left_*` is the free amount after the placement, `largest_*` the capacity of the largest node of the cluster. The GPU
amount is the sum over all GPUs of a node in milli-GPUs; it is also compared for pods that request no GPU.
Source: the BestFit baseline of Weng et al. (USENIX ATC 2023): weights 0.5 and 0.5, largest node 128 cores and 8 GPUs.
Its simulator then stretches the scores to 0-100, which does not change the order. The plugin `tightest-fit` is a
variant with parameters.
Example: 96 of 128 cores and 4 of 8 GPUs left after the placement: int(100 * (1 - (0.75 + 0.5) / 2)) = int(37.5) = 37.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.gpu.openb_baselines import CpuGpuShares

_PREPARED: StateKey[CpuGpuShares] = StateKey("best-fit")


@plugin("best-fit", summary="Prefer the node with the least CPU and GPU left (best fit, as in the openb study).")
class BestFit:
    def pre_score(self, request: Request, state: ClusterState) -> None:
        request.memo[_PREPARED] = CpuGpuShares(request, state)

    def score(self, request: Request, nodes: Window) -> Floats:
        pair = request.memo[_PREPARED]
        cpu, gpu = pair.free(nodes)
        remaining = np.maximum(cpu - pair.cpu, 0.0) + np.maximum(gpu - pair.gpu, 0.0)
        score: Floats = np.floor(np.maximum(100.0 * (1.0 - remaining / 2.0), 0.0))
        return score
