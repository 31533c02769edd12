"""Cluster metrics: balance, utilisation and GPU fragmentation.

Formulas:
    balance of a node     1 - population variance of its utilisations over CPU, memory, network and disk; resources that
                          it lacks are left out, and fewer than two resources give 1;  utilisation = used / allocatable,
                          clamped to 0-1, with `used` measured if a fresh sample exists, else requested
    cluster balance       mean over Ready nodes (1 without any)
    utilisation           requested / allocatable over all nodes;  null without capacity
    GPU allocation        allocated / total milli-GPUs of healthy GPUs;  unallocated = (total - allocated) / 1000
    GPU fragmentation     F / total,  F = sum over nodes and shapes of popularity * unusable milli-GPUs. If the shape
                          does not fit the node, or requests no GPU, these are all free milli-GPUs of the node; else
                          those of GPUs of a model that the shape does not accept, or with less free than it requests
Source: MBCGT (Li et al. 2021) for the balance degree; FGD (Weng et al., USENIX ATC 2023) for F.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from hetsched.contracts.objects.cards import model_accepted
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.framework import nash
from hetsched.engine.gpu.workload_mix import mix_of

from .columns import WHOLE_CARD_MILLI, Floats, Ints, Window
from .state import ClusterState


class ClusterMetrics(msgspec.Struct, frozen=True, rename="camel"):
    """Metrics of a whole cluster; ratios are 0-1, null without capacity."""

    cpu_utilization: float | None
    memory_utilization: float | None
    gpu_allocation: float | None
    unallocated_gpus: float = msgspec.field(name="unallocatedGpus")
    gpu_fragmentation: float | None
    balance: float


def node_balance(state: ClusterState) -> Floats:
    """Return the balance degree of every node, shape (N,), 0.75-1."""
    resources = nash.resources_of(state)
    nodes = state.all_rows
    utilities, _ = nash.utility(nash.used(nodes, resources), nash.capacity(nodes, resources))
    return utilities


def cluster_balance(state: ClusterState) -> float:
    """Return the mean balance degree of the Ready nodes."""
    ready = state.all_rows.static("ready") != 0
    return float(node_balance(state)[ready].mean()) if ready.any() else 1.0


def cluster_metrics(state: ClusterState, workload: Sequence[PodSpec] = ()) -> ClusterMetrics:
    """Return all metrics; `workload` is the mix that fragmentation is measured against."""
    nodes = state.all_rows
    cards = int(nodes.static("card_milli").sum())
    free = int(_free_milli(nodes).sum())
    allocatable, requested = nodes.static("allocatable"), nodes.load("requested")
    cpu, memory = (_ratio(int(requested[r].sum()), int(allocatable[r].sum())) for r in (0, 1))
    fragments = gpu_fragments(state, workload_mix(workload)) if workload and cards else None
    return ClusterMetrics(
        cpu_utilization=cpu,
        memory_utilization=memory,
        gpu_allocation=_ratio(cards - free, cards),
        unallocated_gpus=free / WHOLE_CARD_MILLI,
        gpu_fragmentation=None if fragments is None else fragments / cards,
        balance=cluster_balance(state),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _free_milli(nodes: Window) -> Ints:
    """Return the free milli-GPUs of every GPU of every node, shape (G, N), never negative."""
    free: Ints = np.maximum(nodes.load("card_milli_free"), 0)
    return free


def workload_mix(pods: Sequence[PodSpec]) -> list[tuple[Shape, float]]:
    """Return the most frequent pod shapes that together cover 95 % of the pods, each with its share of all pods."""
    return mix_of(pods).typical()


def gpu_fragments(state: ClusterState, mix: Sequence[tuple[Shape, float]]) -> float:
    """Return F, the expected number of milli-GPUs that the mix cannot use."""
    nodes = state.all_rows
    free = _free_milli(nodes)
    remaining = nodes.static("allocatable") - nodes.load("requested")
    whole_node = free.sum(axis=0)
    lost = 0.0
    for shape, share in mix:
        demand = shape.gpu
        if demand is None or demand.count == 0:
            lost += share * float(whole_node.sum())
            continue
        usable = free >= demand.milli
        if demand.models:
            accepted = [model_accepted(demand, model) for model in state.models.values]
            usable = usable & np.array(accepted, np.bool_)[nodes.static("card_model")]
        fits = usable.sum(axis=0) >= demand.count
        for name, amount in shape.requests:
            row = state.resources.index.get(name)
            if row is not None and not name.endswith("/gpu"):
                fits &= remaining[row] >= amount
        stranded = np.where(fits, np.where(usable, 0, free).sum(axis=0), whole_node)
        lost += share * float(stranded.sum())
    return lost
