"""Keep pods without GPUs off nodes with GPUs, as a filter or as a preference.

Problem: if CPU pods use all CPUs of a GPU node, no pod can use the free GPUs of that node.
Rule: a node with a GPU is a GPU node, even while the GPU is unhealthy or in maintenance. A pod that requests a GPU is a
GPU pod.
    strict   a CPU pod runs on CPU nodes only, as in a fleet split into two clusters without shared capacity
    wish     a CPU node scores 100 for a CPU pod, a GPU node 0: other scores decide whether the pod uses a GPU node
The plugin does not score GPU pods; `gpu-fit` does.
Source: the publication of IHEP (Liu et al., Computer Engineering 2023(2)) compares it with split clusters. The form
`wish` is the node-class rule of IHEP without its load term.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.node_class import gpu_nodes, is_gpu_pod
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal, Skip

GPU_NODE = Refusal("ClassSplit", Message("the node has GPUs, but the pod requests none"))


class ClassSplitParams(Params, frozen=True):
    """Strictness of the split: a filter or a preference."""

    strict: Annotated[
        bool,
        msgspec.Meta(
            title="Strict",
            description="If set, exclude GPU nodes for CPU pods; if not set, CPU pods only prefer nodes without GPUs.",
        ),
    ] = True


@plugin(
    "class-split",
    summary="Keep CPU pods off GPU nodes, strictly or as a preference.",
    params=ClassSplitParams,
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS}),
)
class ClassSplit:
    params: ClassSplitParams

    def static_key(self, request: Request) -> bool:
        return is_gpu_pod(request.shape)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        return None if self.params.strict and not is_gpu_pod(request.shape) else SKIP

    def filter(self, request: Request, nodes: Window) -> Bools:
        return ~gpu_nodes(nodes)

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        yield GPU_NODE, gpu_nodes(nodes)

    def waits(self, request: Request) -> Message:
        return Message("a node without GPUs")

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        return SKIP if self.params.strict or is_gpu_pod(request.shape) else None

    def score(self, request: Request, nodes: Window) -> Floats:
        return np.where(gpu_nodes(nodes), 0.0, 100.0)
