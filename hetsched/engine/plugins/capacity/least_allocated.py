"""Prefer nodes with more free capacity.

Rule, per resource with weight w:  score = floor((capacity - requested) * 100 / capacity), 0 if it does not fit or the
capacity is 0; the plugin's score is floor(sum(w * score) / sum(w)). `requested` includes the pod; a container without a
request is counted as 100m CPU and 200 MiB memory. With `use` "measured", the node's measured use and the pod's expected
use replace the requests; a node without a sample is scored by requests. With `pods` "cpu", pods with GPUs are not
scored.
Source: kube-scheduler, NodeResourcesFit with the LeastAllocated strategy (noderesources/least_allocated.go).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.node_class import is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip

_Share = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LeastAllocatedParams(Params, frozen=True):
    """Weights of the resources, whether requested or measured use counts, and the pods that are scored."""

    cpu: Annotated[_Share, msgspec.Meta(title="CPU weight", description="Share of CPU in the score.")] = 1
    memory: Annotated[_Share, msgspec.Meta(title="Memory weight", description="Share of memory in the score.")] = 1
    use: Annotated[
        Literal["requested", "measured"],
        msgspec.Meta(title="Use", description="Whether the score is computed from requested or measured use."),
    ] = "requested"
    pods: Annotated[
        Literal["all", "cpu"], msgspec.Meta(title="Pods", description="Score all pods, or only pods without GPUs.")
    ] = "all"


@loop_function
def hundredth(part: int, whole: int) -> int:
    """Return 100 * part // whole for whole > 0 without an integer division, which has no vector instruction.

    The floating-point quotient is wrong by at most one; the remainder shows how to correct it.
    """
    scaled = part * 100
    quotient = np.int64(np.float64(scaled) / np.float64(whole))
    rest = scaled - quotient * whole
    return quotient + np.int64(rest >= whole) - np.int64(rest < 0)  # type: ignore[return-value]


@loop_function
def _least_allocated(
    total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.nonzero, nodes.first : nodes.last]
    memory_used = nodes.load[at.nonzero + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.nonzero], delta[at.nonzero + 1]
    cpu_share, memory_share, shares = given[0], given[1], max(given[0] + given[1], 1.0)
    for i in range(len(total)):
        cpu_left = hundredth(max(cpu_capacity[i] - cpu_used[i] - cpu, 0), max(cpu_capacity[i], 1))
        memory_left = hundredth(max(memory_capacity[i] - memory_used[i] - memory, 0), max(memory_capacity[i], 1))
        total[i] += weight * np.floor((cpu_left * cpu_share + memory_left * memory_share) / shares)


def _inputs(
    plugin: LeastAllocated, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    params = plugin.params
    if plugin.pre_score(request, state) is not None:
        return SKIP
    return FormulaInput(_least_allocated, (params.cpu, params.memory)) if params.use == "requested" else None


@plugin("least-allocated", summary="Prefer nodes with the most CPU and memory left.", params=LeastAllocatedParams)
class LeastAllocated:
    params: LeastAllocatedParams
    compiled_term = CompiledTerm((_least_allocated,), _inputs, ("nonzero",), is_gpu_pod)

    @property
    def measures(self) -> bool:
        return self.params.use == "measured"

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        return SKIP if self.params.pods == "cpu" and is_gpu_pod(request.shape) else None

    def score(self, request: Request, nodes: Window) -> Floats:
        capacity = nodes.static("allocatable")[:2]
        remaining: Ints
        if self.params.use == "measured":
            both = nash.CPU_AND_MEMORY
            remaining = capacity - nash.used(nodes, both) - nash.demand(request, nodes, both)
        else:
            remaining = capacity - nodes.load("nonzero") - request.compiled.nonzero[:, None]
        np.maximum(remaining, 0, out=remaining)
        remaining *= 100
        remaining //= np.maximum(capacity, 1)
        cpu, memory = self.params.cpu, self.params.memory
        if cpu == memory == 1:
            score: Floats = ((remaining[0] + remaining[1]) >> 1).astype(np.float64)
        else:
            score = ((remaining[0] * cpu + remaining[1] * memory) // max(cpu + memory, 1)).astype(np.float64)
        return score
