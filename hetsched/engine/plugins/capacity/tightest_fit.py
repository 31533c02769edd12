"""Prefer the node with the least free capacity after the placement (best fit).

Rule, per resource r with weight w, over the resources that the pod requests:
    left_r = max(0, free_r - request_r) / largest capacity of r on any node;   score = 100 * (1 - sum(w*left)/sum(w))
GPUs are counted by their free milli-GPUs. With `pods` "gpu", pods that request no GPU are not scored.
Source: the best-fit baseline of the openb GPU-sharing study (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip

_PREPARED: StateKey[tuple[Floats, Floats, bool]] = StateKey("tightest-fit")

_Share = Annotated[float, msgspec.Meta(ge=0, le=100)]


class TightestFitParams(Params, frozen=True):
    """Weights of the resources, and the pods that are scored."""

    cpu: Annotated[_Share, msgspec.Meta(title="CPU weight", description="Share of CPU in the score.")] = 1.0
    memory: Annotated[_Share, msgspec.Meta(title="Memory weight", description="Share of memory in the score.")] = 1.0
    gpu: Annotated[_Share, msgspec.Meta(title="GPU weight", description="Share of free GPU capacity in the score.")] = (
        1.0
    )
    pods: Annotated[
        Literal["all", "gpu"], msgspec.Meta(title="Pods", description="Score all pods, or only pods with GPUs.")
    ] = "all"


@loop_function
def _tightest_fit(
    total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    card_free = nodes.load[at.card_milli_free : at.card_milli_free + at.cards, nodes.first : nodes.last]
    cpu, memory, asked_milli, cpu_scale, memory_scale, cards_scale, with_cards = given[:7]
    for i in range(len(total)):
        score = 100.0 - cpu_scale * max(float(cpu_capacity[i] - cpu_used[i]) - cpu, 0.0)
        score -= memory_scale * max(float(memory_capacity[i] - memory_used[i]) - memory, 0.0)
        if with_cards:
            free = 0
            for card in range(at.cards):
                free += card_free[card, i]
            score -= cards_scale * max(float(free) - asked_milli, 0.0)
        total[i] += weight * max(score, 0.0)


def _whole_request(shape: Shape) -> Hashable:
    return shape.requests, shape.gpu


def _inputs(
    plugin: TightestFit, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    asked, scale, with_cards = request.memo[_PREPARED]
    return FormulaInput(_tightest_fit, (*asked.tolist(), *scale.tolist(), float(with_cards)))


@plugin("tightest-fit", summary="Prefer the node with the least remaining capacity.", params=TightestFitParams)
class TightestFit:
    params: TightestFitParams
    compiled_term = CompiledTerm((_tightest_fit,), _inputs, ("card_milli_free",), _whole_request)

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        gpu = request.shape.gpu
        params = self.params
        if gpu is None and params.pods == "gpu":
            return SKIP
        nodes = state.all_rows
        largest = [int(row.max(initial=1)) for row in nodes.static("allocatable")[:2]]
        cards = int(nodes.static("card_milli").sum(axis=0).max(initial=1))
        weights = [params.cpu, params.memory, params.gpu if gpu is not None else 0.0]
        asked = [request.shape.request("cpu"), request.shape.request("memory"), gpu.count * gpu.milli if gpu else 0]
        total = sum(weights)
        if total == 0:
            return SKIP
        scale = np.array([100.0 * weights[i] / (total * max([*largest, cards][i], 1)) for i in range(3)])
        request.memo[_PREPARED] = (np.array(asked, np.float64), scale, gpu is not None)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        asked, scale, with_cards = request.memo[_PREPARED]
        remaining = (nodes.static("allocatable")[:2] - nodes.load("requested")[:2]) - asked[:2, None]
        np.maximum(remaining, 0.0, out=remaining)
        score: Floats = 100.0 - scale[0] * remaining[0] - scale[1] * remaining[1]
        if with_cards:
            free = np.add.reduce(nodes.load("card_milli_free"), axis=0) - asked[2]
            score = score - scale[2] * np.maximum(free, 0.0)
        return np.maximum(score, 0.0)
