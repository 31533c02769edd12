"""Prefer nodes on which the pod uses fewer NUMA zones.

Rule: score = 100 // number of zones that the pod would use on the node (1: 100, 2: 50, 3: 33, 4: 25); 0 without zones.
Pods without a zone request are not scored.
Source: cassini (Tencent 2022); gocrane crane-scheduler `pkg/plugins/noderesourcetopology/scorer.go`.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.numa.zone_demand import MEMO, ZoneDemand

_PREPARED: StateKey[ZoneDemand] = StateKey("zone-count")


@plugin("zone-count", summary="Prefer nodes on which the pod needs fewer NUMA zones.")
class ZoneCount:
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        if request.shape.numa is None and not request.shape.containers:
            return SKIP
        # A parameter of numa-fit decides which pods request zones, so use the demand that numa-fit stored, if any.
        demand = request.memo[MEMO] if MEMO in request.memo else ZoneDemand.of(request.shape, state)
        if demand is None or not demand.asked:
            return SKIP
        request.memo[_PREPARED] = demand
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        demand = request.memo[_PREPARED]
        used = demand.zones_used(nodes)
        return np.where(used > 0, 100 // np.maximum(used, 1), 0).astype(np.float64)
