"""Prefer nodes where CPU and memory are used to the same degree.

Rule: f_r = min(1, requested_r / capacity_r) with the pod included, over the resources the node has;
score = floor((1 - std(f)) * 100). With two resources std = |f_cpu - f_memory| / 2.
Source: kube-scheduler's NodeResourcesBalancedAllocation (noderesources/balanced_allocation.go). Its authors' advice:
never use it alone, always together with least-allocated.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.columns import Floats, Window
from hetsched.engine.registry import plugin
from hetsched.engine.request import Request


@plugin("balanced-allocation", summary="Prefer nodes whose CPU and memory fill up evenly.")
class BalancedAllocation:
    def score(self, request: Request, nodes: Window) -> Floats:
        capacity = nodes.static("allocatable")[:2]
        fraction: Floats = (nodes.load("nonzero") + request.compiled.nonzero[:, None]) / np.maximum(capacity, 1)
        np.minimum(fraction, 1.0, out=fraction)
        spread: Floats = fraction[0] - fraction[1]
        np.abs(spread, out=spread)
        spread *= -50.0
        spread += 100.0
        return np.floor(spread, out=spread)
