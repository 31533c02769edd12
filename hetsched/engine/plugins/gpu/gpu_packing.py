"""Prefer GPUs that are already shared, then free GPUs of nodes in use, then empty nodes (GPU packing).

Rule, for a pod with GPUs (all divisions are integer divisions):
    1. the pod fits on a shared GPU:                   max(100 - free milli / 10 / 10, 50)
    2. the pod needs free GPUs of a node in use:       max(50 - free GPUs that the pod uses, 33)
    3. all n GPUs of the node are free:                max(33 - n, n)
    A pod without GPUs scores 0. In case 1 the pod uses the GPU with the least sufficient free share.
Source: the GpuPacking baseline of Weng et al. (USENIX ATC 2023).
Example: a pod of 300 milli on a node whose GPUs have 1000 and 450 milli free: 100 - 45 / 10 = 96. A pod of one whole
GPU on this node: 50 - 1 = 49; on an empty node with 8 GPUs: 33 - 8 = 25.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.eligibility import CardDemand

_PREPARED: StateKey[CardDemand] = StateKey("gpu-packing")


@plugin("gpu-packing", summary="Prefer shared GPUs, then nodes in use, then empty nodes (as in the openb study).")
class GpuPacking:
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        demand = request.shape.gpu
        if demand is None or not demand.count:
            return SKIP
        request.memo[_PREPARED] = CardDemand(demand, state)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        wanted = request.memo[_PREPARED]
        free, healthy = nodes.load("card_milli_free"), nodes.static("card_milli") > 0
        cards = healthy.sum(axis=0)
        fresh = ((free == WHOLE_CARD_MILLI) & healthy).sum(axis=0) == cards
        tightest: Ints = np.where(wanted.usable(nodes), free, WHOLE_CARD_MILLI).min(axis=0, initial=WHOLE_CARD_MILLI)
        on_free = max(50 - wanted.demand.count, 33)
        used = np.where(tightest == WHOLE_CARD_MILLI, on_free, np.maximum(100 - tightest // 10 // 10, 50))
        score: Floats = np.where(fresh, np.maximum(33 - cards, np.minimum(cards, 100)), used).astype(np.float64)
        return score
