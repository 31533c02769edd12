"""Prefer the node whose free capacity is least aligned with the request (dot product).

Rule: score = int(100 * (1 - (free_cpu * asked_cpu + free_gpu * asked_gpu) / 2)), all four divided by the capacity of
the largest node. `free_gpu` is the sum of the free milli-GPUs of a node. Less alignment is better here: the node with
less free capacity wins.
Source: the DotProd baseline of Weng et al. (USENIX ATC 2023), derived from the alignment score of Tetris (SIGCOMM
2014), with the sign reversed by Weng et al.
Example: free 96 of 128 cores and 4 of 8 GPUs, request 32 cores and 2 GPUs: int(100 * (1 - (0.75 * 0.25 + 0.5 * 0.25) /
2)) = int(100 * (1 - 0.3125 / 2)) = int(84.375) = 84.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.gpu.openb_baselines import CpuGpuShares

_PREPARED: StateKey[CpuGpuShares] = StateKey("dot-product")


@plugin(
    "dot-product",
    summary="Prefer the node with the smallest dot product of free capacity and request (as in the openb study).",
)
class DotProduct:
    def pre_score(self, request: Request, state: ClusterState) -> None:
        request.memo[_PREPARED] = CpuGpuShares(request, state)

    def score(self, request: Request, nodes: Window) -> Floats:
        pair = request.memo[_PREPARED]
        cpu, gpu = pair.free(nodes)
        score: Floats = np.floor(np.maximum(100.0 * (1.0 - (cpu * pair.cpu + gpu * pair.gpu) / 2.0), 0.0))
        return score
