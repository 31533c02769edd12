"""CPU and GPU in the units of the openb study's baselines: two numbers between 0 and 1.

A pod's requests and a node's free capacity are divided by the capacity of the largest node of the cluster. The GPU
value of a node is the sum of the free milli-GPUs of its GPUs.
Source: Weng et al. (USENIX ATC 2023), whose simulator divides by 128 cores and 8 GPUs, its largest node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.framework.request import Request

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


class CpuGpuShares:
    """One pod's CPU and GPU as shares of the largest node; `gpu` is 0 for a pod without a GPU demand."""

    __slots__ = ("_largest_cpu", "_largest_milli", "cpu", "gpu")

    def __init__(self, request: Request, state: ClusterState) -> None:
        nodes, shape = state.all_rows, request.shape
        self._largest_cpu = max(int(nodes.static("allocatable")[0].max(initial=0)), 1)
        self._largest_milli = largest_milli(state)
        self.cpu = shape.request("cpu") / self._largest_cpu
        self.gpu = shape.gpu.count * shape.gpu.milli / self._largest_milli if shape.gpu else 0.0

    def free(self, nodes: Window) -> tuple[Floats, Floats]:
        """Return the free CPU and free GPU of each node, shape (n,), as fractions of the largest node."""
        cpu = np.maximum(nodes.static("allocatable")[0] - nodes.load("requested")[0], 0)
        return cpu / self._largest_cpu, free_milli(nodes) / self._largest_milli


def largest_milli(state: ClusterState) -> int:
    """Return the milli-GPUs of the node with the most GPUs, at least 1."""
    return max(int(state.all_rows.static("card_milli").sum(axis=0).max(initial=0)), 1)


def free_milli(nodes: Window) -> Floats:
    """Return the sum of the free milli-GPUs of each node, shape (n,)."""
    free: Floats = np.maximum(nodes.load("card_milli_free"), 0).sum(axis=0).astype(np.float64)
    return free
