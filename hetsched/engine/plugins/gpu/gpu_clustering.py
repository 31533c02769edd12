"""Keep pods with equal GPU requests together (GPU clustering).

Rule: the kind of a pod is "shared", or the number of whole GPUs that it requests. A node has the kinds of its pods:
    base = 75  only this kind;   50  this and other kinds;   25  no pod with GPUs;   0  only other kinds
    score = base + 25 * (largest - free milli) / largest in integers, where largest is the milli of all GPUs of the
    node with the most GPUs; 0 for pods without GPUs
Source: the GpuClustering baseline of Weng et al. (USENIX ATC 2023); the idea is Gandiva's (OSDI 2018).
Example: a node of 8 GPUs with one shared pod of 500 milli, 7500 of 8000 free: a shared pod scores 75 + 25 * 500 / 8000
= 75 + 1 = 76, and a pod of one whole GPU 0 + 1 = 1. On an empty node both score 25 + 0 = 25.
"""

from __future__ import annotations

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.openb_baselines import free_milli, largest_milli

_PREPARED: StateKey[tuple[ClusterState, int, float]] = StateKey("gpu-clustering")

_SHARED = -1


@plugin("gpu-clustering", summary="Place pods with equal GPU requests together (as in the openb study).")
class GpuClustering:
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        kind = _kind(request.shape)
        if not kind:
            return SKIP
        request.memo[_PREPARED] = (state, kind, largest_milli(state))
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        state, kind, largest = request.memo[_PREPARED]
        rows = range(nodes.n) if nodes.rows is None else nodes.rows.tolist()
        base: Floats = np.array([_base(state, row, kind) for row in rows], np.float64)
        used = np.maximum(largest - free_milli(nodes), 0.0)
        score: Floats = base + np.floor(25.0 * used / largest)
        return score


def _kind(shape: Shape) -> int:
    """Return the number of whole GPUs that a shape requests, -1 for a share of one, 0 for none."""
    if shape.gpu is None or not shape.gpu.count:
        return 0
    return shape.gpu.count if shape.gpu.milli >= WHOLE_CARD_MILLI else _SHARED


def _base(state: ClusterState, row: int, kind: int) -> int:
    kinds = {_kind(placed.compiled.shape) for placed in state.on_row[row].values()} - {0}
    if kind in kinds:
        return 75 if len(kinds) == 1 else 50
    return 0 if kinds else 25
