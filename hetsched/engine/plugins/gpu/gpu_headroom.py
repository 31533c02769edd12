"""Keep enough CPU and memory free on nodes with free GPUs for future GPU pods.

Problem: a free GPU is unusable without free CPU on its node. Free CPU on a node without free GPUs is not a loss.
Rule for a pod with GPUs: filling the G free GPUs of a node takes a random amount of CPU with mean rho * G and variance
sigma^2 * G. Here rho and sigma^2 are the mean and the variance of the CPU per GPU over the GPU pods of the mix. With C
CPU free, the expected number S of GPUs that remain empty for lack of CPU is the newsvendor loss (for a logistic demand,
s = sigma * sqrt(3 G) / pi):
    S(C, G) = s / rho * ln(1 + exp((rho * G - C) / s));   S = 0 without free GPUs
    cost = S(C - c, G - g) - S(C, G), of CPU and of memory, + tightness * (C - c) / rho of CPU
    score = 50 - 5 * cost, cut to 0-100
Rule for a pod without GPUs: the pod takes a share x of the node's free CPU or free memory (the larger of the two), and
makes the same share of the G free GPUs unusable:
    cost = x * G + tightness * (C - c) / rho of CPU
The pod therefore goes to nodes with few free GPUs and much CPU, and empty GPU nodes remain empty. A GPU pod with little
CPU per GPU goes to a node that is short of CPU (cost < 0). A GPU pod with much CPU per GPU goes to a node with spare
CPU (cost 0). The ratios of pods and nodes thus match without a table of node kinds. If both costs are equal,
`tightness` prefers the node with less free CPU, so that large pods find capacity elsewhere. `need` "capacity" needs no
mix: rho is the median CPU per GPU of the cluster, and sigma is 0, so that S = max(0, G - C / rho).
Source: the newsvendor loss of inventory theory, applied to GPUs and CPU; specific to hetsched.
Example: rho = 10 cores, sigma -> 0: a node with 2 free GPUs and 15 free cores has S = (20 - 15) / 10 = 0.5 GPUs. After
a pod of 1 GPU and 4 cores, 1 GPU and 11 cores are free: S = 0, cost -0.5. After a pod of 1 GPU and 12 cores, 1 GPU and
3 cores are free: S = 0.7, cost 0.2. A pod of 12 cores without GPUs takes 12 / 104 of a node with 2 free GPUs and 104
free cores: cost 0.23. On a node with 8 free GPUs and 96 free cores it takes 12 / 96: cost 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU, normalized

_PREPARED: StateKey[tuple[tuple[Need, ...], list[int], float]] = StateKey("gpu-headroom")

_RESOURCES = (CPU, MEMORY)  # CPU and memory are always the first two resource rows
_CPU_ROW = 0


class GpuHeadroomParams(Params, frozen=True):
    """Source of the need per GPU, and the cost of remaining capacity."""

    need: Annotated[
        Literal["mix", "capacity"],
        msgspec.Meta(
            title="Demand",
            description=(
                "CPU demand per GPU. mix: mean and variance over the GPU pods of the workload mix. "
                "capacity: median CPU per GPU of the cluster."
            ),
        ),
    ] = "mix"
    tightness: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1,
            title="Tightness",
            description=(
                "Cost of the CPU that remains free on the node, per GPU that this CPU could serve; "
                "a value above 0 prefers nodes with less free CPU."
            ),
        ),
    ] = 0.01


class Need(msgspec.Struct, frozen=True):
    """Amount of a resource (`row`) that pods need per GPU: mean, and standard deviation for one GPU."""

    row: int
    mean: float
    deviation: float


def needs_by_mix(state: ClusterState) -> tuple[Need, ...]:
    """Return the CPU and memory that the GPU pods of the mix request per GPU; unrequested resources are omitted."""
    shapes = [(shape, share) for shape, share in normalized(state.mix) if shape.gpu is not None and shape.gpu.count]
    cards = {id(shape): shape.gpu.count * shape.gpu.milli / WHOLE_CARD_MILLI for shape, _ in shapes if shape.gpu}
    gpus = sum(share * cards[id(shape)] for shape, share in shapes)
    needs = []
    for name in _RESOURCES:
        mean = sum(share * shape.request(name) for shape, share in shapes) / gpus if gpus else 0.0
        if mean > 0:
            squares = sum(share * (shape.request(name) - mean * cards[id(shape)]) ** 2 for shape, share in shapes)
            needs.append(Need(state.resources.index[name], mean, math.sqrt(squares / gpus)))
    return tuple(needs)


def needs_by_capacity(state: ClusterState) -> tuple[Need, ...]:
    """Return the median over all nodes of CPU and memory per GPU, weighted by each node's number of healthy GPUs."""
    nodes = state.all_rows
    cards = (nodes.static("card_milli") > 0).sum(axis=0)
    needs = []
    for name in _RESOURCES:
        row = state.resources.index[name]
        per_card = np.repeat(nodes.static("allocatable")[row] / np.maximum(cards, 1), cards)
        if per_card.size:
            per_card.sort()  # np.median imports numpy.ma: 70 ms of the first decision in each process
            median = float(per_card[(per_card.size - 1) // 2] + per_card[per_card.size // 2]) / 2
            if median > 0:
                needs.append(Need(row, median, 0.0))
    return tuple(needs)


def stranded(need: Need, remaining: Floats, gpus: Floats) -> Floats:
    """Return how many of the free `gpus` are expected to stay empty with `remaining` of a resource free, shape (n,)."""
    if not need.deviation:
        certain: Floats = remaining / need.mean
        np.subtract(gpus, certain, out=certain)
        np.maximum(certain, 0.0, out=certain)
        return np.minimum(certain, gpus, out=certain)
    spread = np.where(gpus > 0, need.deviation * np.sqrt(3.0 * gpus) / math.pi, 1.0)
    short = (need.mean * gpus - remaining) / spread
    lost: Floats = spread / need.mean * np.logaddexp(0.0, short)
    return np.where(gpus > 0, lost, 0.0)


@loop_function
def _stranded_in_loop(remaining: float, gpus: float, mean: float) -> float:
    return min(max(gpus - remaining / mean, 0.0), gpus)


@loop_function
def _gpu_headroom(
    total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    """Add the weighted score of gpu-headroom to `total`.

    `given` contains the CPU and the memory per GPU (0: unknown), `tightness` per CPU, the number of requested GPUs, and
    the score points per GPU.
    """
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    cpu, memory = float(delta[at.requested]), float(delta[at.requested + 1])
    cpu_mean, memory_mean, tightness, taken, points = given[0], given[1], given[2], given[3], given[4]
    free_milli = nodes.cards_milli_free
    if taken > 0.0:
        for i in range(len(total)):
            gpus, cost = free_milli[i] / WHOLE_CARD_MILLI, 0.0
            if cpu_mean > 0.0:
                remaining = float(cpu_capacity[i] - cpu_used[i])
                after = _stranded_in_loop(remaining - cpu, max(gpus - taken, 0.0), cpu_mean)
                cost += after - _stranded_in_loop(remaining, gpus, cpu_mean)
                cost += tightness * max(remaining - cpu, 0.0)
            if memory_mean > 0.0:
                remaining = float(memory_capacity[i] - memory_used[i])
                after = _stranded_in_loop(remaining - memory, max(gpus - taken, 0.0), memory_mean)
                cost += after - _stranded_in_loop(remaining, gpus, memory_mean)
            total[i] += weight * min(max(50.0 - points * cost, 0.0), 100.0)
    else:
        cpu, memory = cpu * (cpu_mean > 0.0), memory * (memory_mean > 0.0)
        for i in range(len(total)):
            remaining = float(cpu_capacity[i] - cpu_used[i])
            share = min(cpu / max(remaining, 1.0), 1.0)
            share = max(share, min(memory / max(float(memory_capacity[i] - memory_used[i]), 1.0), 1.0))
            cost = tightness * max(remaining - cpu, 0.0) + share * (free_milli[i] / WHOLE_CARD_MILLI)
            total[i] += weight * min(max(50.0 - points * cost, 0.0), 100.0)


def _gpu_demand(shape: Shape) -> Hashable:
    return shape.gpu


def _inputs(
    plugin: GpuHeadroom, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    needs, _, taken = request.memo[_PREPARED]
    if any(need.deviation for need in needs):
        return None  # not compiled, because the last digit of a logarithm differs between libraries
    means = {need.row: need.mean for need in needs}
    cpu, memory = means.get(0, 0.0), means.get(1, 0.0)
    tightness = plugin.params.tightness / cpu if cpu else 0.0
    return FormulaInput(_gpu_headroom, (cpu, memory, tightness, taken, POINTS_PER_GPU))


@plugin("gpu-headroom", summary="Keep CPU and memory available on nodes with free GPUs.", params=GpuHeadroomParams)
class GpuHeadroom:
    params: GpuHeadroomParams
    compiled_term = CompiledTerm((_gpu_headroom,), _inputs, ("cards_milli_free",), _gpu_demand)

    @property
    def wants_mix(self) -> bool:
        return self.params.need == "mix"

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        read = needs_by_mix if self.wants_mix else needs_by_capacity
        needs = state.once(read, lambda: read(state))
        if not needs:
            return SKIP
        gpu = request.shape.gpu
        asked = [request.shape.request(name) for name in _RESOURCES]
        request.memo[_PREPARED] = (needs, asked, gpu.count * gpu.milli / WHOLE_CARD_MILLI if gpu else 0.0)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        needs, asked, taken = request.memo[_PREPARED]
        gpus = np.add.reduce(np.maximum(nodes.load("card_milli_free"), 0), axis=0) / WHOLE_CARD_MILLI
        after = np.maximum(gpus - taken, 0.0) if taken else gpus
        allocatable, requested = nodes.static("allocatable"), nodes.load("requested")
        cost: Floats = np.zeros(nodes.n)
        share: Floats = np.zeros(nodes.n)
        for need in needs:
            left = (allocatable[need.row] - requested[need.row]).astype(np.float64)
            rest = left - asked[need.row]
            if taken:
                cost += stranded(need, rest, after) - stranded(need, left, gpus)
            else:
                np.maximum(share, np.minimum(asked[need.row] / np.maximum(left, 1.0), 1.0), out=share)
            if need.row == _CPU_ROW and self.params.tightness:
                cost += self.params.tightness / need.mean * np.maximum(rest, 0.0)
        cost += share * gpus
        cost *= POINTS_PER_GPU
        np.subtract(50.0, cost, out=cost)
        np.maximum(cost, 0.0, out=cost)
        return np.minimum(cost, 100.0, out=cost)
