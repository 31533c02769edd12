"""Prefer nodes with more free capacity.

Rule, per resource with weight w:  score = floor((capacity - requested) * 100 / capacity), 0 if it does not fit or the
capacity is 0; the plugin's score is floor(sum(w * score) / sum(w)). `requested` includes the pod; a container without
a request counts as 100m CPU and 200 MiB memory. With `use` "measured" the node's measured use and the pod's expected
use take the place of requests (requests without a sample). `pods` "cpu" leaves pods with GPUs to the other scores.
Source: kube-scheduler, NodeResourcesFit with the LeastAllocated strategy (noderesources/least_allocated.go).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.cluster.columns import Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.node_class import is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip

_Share = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LeastAllocatedParams(Params, frozen=True):
    """How much each resource counts, and which use."""

    cpu: Annotated[_Share, msgspec.Meta(title="CPU weight", description="Share of CPU in the score.")] = 1
    memory: Annotated[_Share, msgspec.Meta(title="Memory weight", description="Share of memory in the score.")] = 1
    use: Annotated[Literal["requested", "measured"], msgspec.Meta(title="Use", description="What counts as used.")] = (
        "requested"
    )
    pods: Annotated[
        Literal["all", "cpu"], msgspec.Meta(title="Pods", description="Score all pods, or only those without GPUs.")
    ] = "all"


@plugin("least-allocated", summary="Prefer nodes with the most CPU and memory left.", params=LeastAllocatedParams)
class LeastAllocated:
    params: LeastAllocatedParams

    @property
    def measures(self) -> bool:
        return self.params.use == "measured"

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        return SKIP if self.params.pods == "cpu" and is_gpu_pod(request.shape) else None

    def score(self, request: Request, nodes: Window) -> Floats:
        capacity = nodes.static("allocatable")[:2]
        left: Ints
        if self.params.use == "measured":
            both = nash.CPU_AND_MEMORY
            left = capacity - nash.used(nodes, both) - nash.demand(request, nodes, both)
        else:
            left = capacity - nodes.load("nonzero") - request.compiled.nonzero[:, None]
        np.maximum(left, 0, out=left)
        left *= 100
        left //= np.maximum(capacity, 1)
        cpu, memory = self.params.cpu, self.params.memory
        if cpu == memory == 1:
            score: Floats = ((left[0] + left[1]) >> 1).astype(np.float64)
        else:
            score = ((left[0] * cpu + left[1] * memory) // max(cpu + memory, 1)).astype(np.float64)
        return score
