"""Prefer nodes where CPU and memory are used to the same degree.

Rule: f_r = min(1, requested_r / capacity_r) with the pod included, over the resources the node has;
std = |f_cpu - f_memory| / 2 (0 if the node has only one of them);  score = floor((1 - std) * 100). Pods that request
neither CPU nor memory are left to the other scores.
Source: kube-scheduler's NodeResourcesBalancedAllocation (noderesources/balanced_allocation.go). Its authors' advice:
never use it alone, always together with least-allocated.
"""

from __future__ import annotations

import numpy as np

from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.columns import Floats, Window
from hetsched.engine.registry import plugin
from hetsched.engine.request import Request
from hetsched.engine.state import ClusterState
from hetsched.engine.status import SKIP, Skip


@plugin("balanced-allocation", summary="Prefer nodes whose CPU and memory fill up evenly.")
class BalancedAllocation:
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        asked = np.array([[request.shape.request(CPU)], [request.shape.request(MEMORY)]], np.int64)
        if not asked.any():
            return SKIP
        lacking = bool((state.all_rows.static("allocatable")[:2] == 0).any())
        request.memo["balanced-allocation"] = (asked, lacking)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        asked, lacking = request.memo["balanced-allocation"]
        capacity = nodes.static("allocatable")[:2]
        fraction: Floats = (nodes.load("requested")[:2] + asked) / (np.maximum(capacity, 1) if lacking else capacity)
        np.minimum(fraction, 1.0, out=fraction)
        std: Floats = fraction[0] - fraction[1]
        np.abs(std, out=std)
        std *= 0.5
        if lacking:
            std[(capacity == 0).any(axis=0)] = 0.0
        np.subtract(1.0, std, out=std)
        std *= 100.0
        return np.floor(std, out=std)
