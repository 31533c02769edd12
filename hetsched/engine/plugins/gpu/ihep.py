"""Assign good GPUs to the pods that fit them most tightly, and CPU pods to CPU nodes while these have capacity.

Problem: CPU pods use the CPUs of GPU nodes, and GPUs are assigned without regard to their facts.
Rule: the score of a node for a pod with GPUs, where N is the free vector of the node and R that of the request, is
    S_card = (w1*compute + w2*bandwidth + w3*clock) / (w1 + w2 + w3), the mean over the GPUs that satisfy the request;
             each fact is divided by the largest value in the cluster, and is 0 if unknown
    S_sim  = ratio: mean over k of R_k / N_k;   cosine: R.N / (|R| |N|)      k: GPUs, MiB and cores per GPU,
             CPU cores, memory GiB; each k with N_k = 0 is omitted; S_sim is 0 if all are
    score  = mean: 100 * (S_card + S_sim) / 2;   product: 100 * S_card * S_sim
For a pod without GPUs, let a = GPU nodes / nodes that accept pods, and S = 100 * (w*free share of CPU + v*free share of
memory after placement) / (w + v). The score is
    CPU node: 100*a + (1 - a) * S  (100*a to 100)          GPU node: a * S  (0 to below 100*a)
so that a full CPU node still ranks above an empty GPU node. Scores are not rounded, because 33.33 and 33.30 must remain
different. If the node does not state a fact of a GPU, the fact is looked up by the GPU's model. Compute capability is
known only by model. If it is unknown for all GPUs of the cluster, their FP32 TFLOPS are compared instead.
Source: IHEP (Liu et al., Computer Engineering 2023(2)), equations (1)-(5), reconstructed.
Example: a = 1/2, S = 200/3: CPU node 83.33, GPU node 33.33.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.objects.cards import CardFacts, facts_of
from hetsched.contracts.objects.node_report import GpuCard
from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.node_class import gpu_node_ratio, gpu_nodes, is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.scoring import INFEASIBLE
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.eligibility import CardDemand

_CARDS: StateKey[tuple[CardDemand, Floats]] = StateKey("ihep.cards")
_GPU_NODE_RATIO: StateKey[float] = StateKey("ihep.ratio")
_GIB = 2**30
_Weight = Annotated[float, msgspec.Meta(ge=0, le=100)]


class IhepParams(Params, frozen=True):
    """Variant of the equations, weights, and the pods that they apply to."""

    similarity: Annotated[
        Literal["ratio", "cosine"],
        msgspec.Meta(
            title="Similarity",
            description=(
                "ratio: prefer the tightest fit. cosine: prefer free resources in the same proportions as the request."
            ),
        ),
    ] = "ratio"
    combine: Annotated[
        Literal["mean", "product"],
        msgspec.Meta(
            title="Combination",
            description="Whether the score is the mean or the product of GPU quality and similarity.",
        ),
    ] = "mean"
    compute: Annotated[
        Literal["capability", "fp32", "cores"],
        msgspec.Meta(title="Compute", description="Compute of a GPU: CUDA compute capability, FP32 TFLOPS or cores."),
    ] = "capability"
    compute_weight: Annotated[
        _Weight, msgspec.Meta(title="Compute weight", description="Share of compute in the score.")
    ] = 1.0
    bandwidth_weight: Annotated[
        _Weight, msgspec.Meta(title="Bandwidth weight", description="Share of memory bandwidth in the score.")
    ] = 1.0
    clock_weight: Annotated[
        _Weight, msgspec.Meta(title="Clock weight", description="Share of the clock rate in the score.")
    ] = 1.0
    cpu_weight: Annotated[_Weight, msgspec.Meta(title="CPU weight", description="Share of free CPU in the score.")] = (
        1.0
    )
    memory_weight: Annotated[
        _Weight, msgspec.Meta(title="Memory weight", description="Share of free memory in the score.")
    ] = 1.0
    pods: Annotated[
        Literal["all", "cpu", "gpu"],
        msgspec.Meta(title="Pods", description="Score all pods, only pods without GPUs, or only pods with GPUs."),
    ] = "all"


@loop_function
def _ihep_cpu(total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any) -> None:
    """Add the weighted score of ihep for CPU pods to `total`.

    `given` contains the share of GPU nodes, the weights of CPU and memory, and their sum.
    """
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    present = nodes.static[at.cards_present, nodes.first : nodes.last]
    cpu_used = nodes.load[at.nonzero, nodes.first : nodes.last]
    memory_used = nodes.load[at.nonzero + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.nonzero], delta[at.nonzero + 1]
    ratio, cpu_weight, memory_weight, weights = given[0], given[1], given[2], given[3]
    for i in range(len(total)):
        cpu_share = max(cpu_capacity[i] - cpu_used[i] - cpu, 0) / max(cpu_capacity[i], 1)
        memory_share = max(memory_capacity[i] - memory_used[i] - memory, 0) / max(memory_capacity[i], 1)
        spare = 100.0 * ((cpu_weight * cpu_share + memory_weight * memory_share) / weights)
        total[i] += weight * (ratio * spare if present[i] > 0 else 100.0 * ratio + (1.0 - ratio) * spare)


@loop_function
def _part_of(asked: float, free: float) -> float:
    return min(asked / free, 1.0) if free > 0 else 0.0


@loop_function
def _ihep_gpu(total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any) -> None:
    """Add the weighted score of ihep for GPU pods to `total`.

    `given` contains the request (GPUs, MiB per GPU, cores per GPU, CPU cores, memory GiB), and 1 for the form
    `product`, else 0.
    """
    usable, worth, static, load = cards
    for i in range(len(total)):
        if total[i] == INFEASIBLE:
            continue
        row, number, quality, memory_mib, cores = nodes.rows[i], 0, 0.0, 0, 0
        for card in range(at.cards):
            if usable[i] >> card & 1:
                number += 1
                quality += worth[card, row]
                memory_mib += load[at.card_memory_free + card, row]
                cores += max(static[at.card_cores + card, row], 0)
        some = max(number, 1)
        cpu = (static[at.allocatable, row] - load[at.requested, row]) / 1000
        memory = (static[at.allocatable + 1, row] - load[at.requested + 1, row]) / 2**30
        similar = _part_of(given[0], float(number)) + _part_of(given[1], memory_mib / some)
        similar += _part_of(given[2], cores / some)
        similar += _part_of(given[3], cpu)
        similar += _part_of(given[4], memory)
        counted = float((number > 0) + (memory_mib > 0) + (cores > 0) + (cpu > 0) + (memory > 0))
        similar /= max(counted, 1.0)
        card_quality = quality / some
        score = 50.0 * (card_quality + similar) if given[5] == 0 else 100.0 * card_quality * similar
        total[i] += weight * score


# -- exclusion of nodes: resource-fit and gpu-fit ---------------------------------------------------------------------


def _for_gpu_pods(shape: Shape) -> Hashable:
    return (shape.requests, shape.gpu) if shape.gpu is not None else None


def _inputs(
    plugin: Ihep, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    params, gpu = plugin.params, request.shape.gpu
    if gpu is None or not is_gpu_pod(request.shape):
        weights = params.cpu_weight + params.memory_weight
        ratio = request.memo[_GPU_NODE_RATIO]
        return FormulaInput(_ihep_cpu, (ratio, params.cpu_weight, params.memory_weight, weights or 1.0))
    if params.similarity != "ratio" or cards is None or not cards.checks_every_fact:
        return None  # the formula supports only `ratio`, computed over the GPUs that the loop finds usable
    asked = request.shape.request(CPU) / 1000, request.shape.request(MEMORY) / _GIB
    numbers = gpu.count, gpu.memory_mib, gpu.cores, *asked, float(params.combine == "product")
    return FormulaInput(_ihep_gpu, numbers)


def _card_worth(plugin: Ihep, state: ClusterState) -> Floats:
    return plugin.quality(state)


@plugin(
    "ihep",
    summary="GPU pods prefer better GPUs and a tight fit; CPU pods prefer nodes without GPUs.",
    params=IhepParams,
)
class Ihep:
    params: IhepParams
    compiled_term = CompiledTerm(
        (_ihep_cpu, _ihep_gpu), _inputs, ("nonzero", "cards_present"), _for_gpu_pods, _card_worth
    )

    def __init__(self) -> None:
        self._known: tuple[weakref.ref[ClusterState], int, Floats] | None = None

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        with_cards = is_gpu_pod(request.shape)
        if self.params.pods == ("cpu" if with_cards else "gpu"):
            return SKIP
        if with_cards:
            assert request.shape.gpu is not None
            request.memo[_CARDS] = (CardDemand(request.shape.gpu, state), self.quality(state))
        else:
            request.memo[_GPU_NODE_RATIO] = gpu_node_ratio(state)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        return self._for_cards(request, nodes) if is_gpu_pod(request.shape) else self._for_cpus(request, nodes)

    # -- pods without GPUs: equations (1) and (5) -------------------------------------------------------------------

    def _for_cpus(self, request: Request, nodes: Window) -> Floats:
        ratio = request.memo[_GPU_NODE_RATIO]
        params = self.params
        capacity = nodes.static("allocatable")[:2]
        remaining = capacity - nodes.load("nonzero")
        remaining -= request.compiled.nonzero[:, None]
        np.maximum(remaining, 0, out=remaining)
        share = remaining / np.maximum(capacity, 1)
        weights = params.cpu_weight + params.memory_weight
        spare: Floats = params.cpu_weight * share[0] + params.memory_weight * share[1]
        spare /= weights or 1.0
        spare *= 100.0
        score: Floats = np.where(gpu_nodes(nodes), ratio * spare, 100.0 * ratio + (1.0 - ratio) * spare)
        return score

    # -- pods with GPUs: equations (2) to (4) -----------------------------------------------------------------------

    def _for_cards(self, request: Request, nodes: Window) -> Floats:
        wanted, quality = request.memo[_CARDS]
        shape, demand = request.shape, wanted.demand
        usable = wanted.usable(nodes)
        cards = np.add.reduce(usable, axis=0, dtype=np.int64)
        some = np.maximum(cards, 1)
        if nodes.rows is not None:
            quality = quality.take(nodes.rows, axis=1)
        # Added GPU by GPU, so that the rounding of a sum does not depend on the number of nodes.
        card = sum((np.where(usable[i], quality[i], 0.0) for i in range(len(usable))), np.zeros(nodes.n)) / some
        memory_mib = np.add.reduce(usable * nodes.load("card_memory_free"), axis=0) / some
        cores = np.add.reduce(usable * np.maximum(nodes.static("card_cores"), 0), axis=0) / some
        free = nodes.static("allocatable")[:2] - nodes.load("requested")[:2]
        similar = (_mean_ratio if self.params.similarity == "ratio" else _cosine)(
            (demand.count, cards.astype(np.float64)),
            (demand.memory_mib, memory_mib),
            (demand.cores, cores),
            (shape.request(CPU) / 1000, free[0] / 1000),
            (shape.request(MEMORY) / _GIB, free[1] / _GIB),
        )
        score: Floats = 50.0 * (card + similar) if self.params.combine == "mean" else 100.0 * card * similar
        return score

    def quality(self, state: ClusterState) -> Floats:
        """Return the quality of every GPU, 0-1, shape (G, N): the weighted mean of compute, bandwidth and clock."""
        if self._known is None or self._known[0]() is not state or self._known[1] != state.epoch:
            self._known = (weakref.ref(state), state.epoch, self._qualities(state))
        return self._known[2]

    def _qualities(self, state: ClusterState) -> Floats:
        facts = np.zeros((3, *state.columns.field("card_model").shape))
        cards = [(card, row) for row, cards in enumerate(state.cards) for card in cards]
        known = [_facts(card, self.params.compute) for card, _ in cards]
        if self.params.compute == "capability" and not any(power for power, _, _ in known):
            known = [_facts(card, "fp32") for card, _ in cards]
        if known:
            facts[:, [card.index for card, _ in cards], [row for _, row in cards]] = np.array(known).T
        largest = facts.max(axis=(1, 2), initial=0.0)
        facts /= np.where(largest > 0, largest, 1.0)[:, None, None]
        weights = (self.params.compute_weight, self.params.bandwidth_weight, self.params.clock_weight)
        return _weighted(*zip(weights, facts, strict=True))


def _facts(card: GpuCard, compute: str) -> tuple[float, float, float]:
    """Return compute, bandwidth and clock of a GPU: as the node states them, else as known for its model, else 0."""
    model = (facts_of(card.model) if card.model else None) or CardFacts("", "")
    if compute == "capability":
        power: float | None = float(model.compute_capability) if model.compute_capability else None
    elif compute == "fp32":
        power = card.fp32_tflops or model.fp32_tflops
    else:
        power = card.cores or model.cores
    return power or 0.0, card.bandwidth_gbs or model.bandwidth_gbs or 0.0, card.clock_mhz or model.boost_mhz or 0.0


def _weighted(*parts: tuple[float, Floats]) -> Floats:
    """Return the weighted mean, 0 where all weights are 0."""
    total = sum(weight for weight, _ in parts)
    mean: Floats = sum((weight * values for weight, values in parts), np.zeros_like(parts[0][1])) / (total or 1.0)
    return mean


def _mean_ratio(*pairs: tuple[float, Floats]) -> Floats:
    """Return the mean of request / free, each at most 1, over the resources that the node has."""
    total, counted = np.zeros_like(pairs[0][1]), np.zeros_like(pairs[0][1])
    for asked, free in pairs:
        has = free > 0
        total += np.minimum(asked / np.where(has, free, 1.0), 1.0) * has
        counted += has
    mean: Floats = total / np.maximum(counted, 1.0)
    return mean


def _cosine(*pairs: tuple[float, Floats]) -> Floats:
    """Return the cosine of the angle between the request vector and the free vector of each node."""
    product, asked_square, free_square = np.zeros_like(pairs[0][1]), 0.0, np.zeros_like(pairs[0][1])
    for asked, free in pairs:
        remaining = np.maximum(free, 0.0)
        product += asked * remaining
        asked_square += asked * asked
        free_square += remaining * remaining
    length = np.sqrt(asked_square * free_square)
    cosine: Floats = np.minimum(product / np.where(length > 0, length, 1.0), 1.0)
    return cosine
