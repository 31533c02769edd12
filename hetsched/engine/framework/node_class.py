"""CPU and GPU classes of pods and nodes.

A node with a GPU is a GPU node, even if the GPU is in use, unhealthy or in maintenance; a pod that requests a GPU is a
GPU pod.
Source: IHEP (Liu et al., Computer Engineering 2023(2)): classes by capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import Bools, Window

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

_NO_WORKERS = frozenset({"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"})


def is_gpu_pod(shape: Shape) -> bool:
    """Return whether a pod requests a GPU or a share of one."""
    return shape.gpu is not None and shape.gpu.count > 0


def gpu_nodes(nodes: Window) -> Bools:
    """Return the (n,) mask of nodes that have a GPU."""
    classed: Bools = nodes.static("cards_present") > 0
    return classed


def gpu_node_ratio(state: ClusterState) -> float:
    """Return the share of GPU nodes among the schedulable workers (Ready, uncordoned, no control plane), 0-1."""
    ratio: float = state.once("gpu-node-ratio", lambda: _gpu_node_ratio(state))
    return ratio


def _gpu_node_ratio(state: ClusterState) -> float:
    nodes = state.all_rows
    reserved = [any(taint.key in _NO_WORKERS for taint in taints) for taints in state.taint_sets.values]
    workers: Bools = (nodes.static("ready") != 0) & (nodes.static("unschedulable") == 0)
    workers &= ~np.array(reserved, np.bool_)[nodes.static("taint_set")]
    return float((gpu_nodes(nodes) & workers).sum()) / max(int(workers.sum()), 1)
