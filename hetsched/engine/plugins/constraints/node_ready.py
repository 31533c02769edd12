"""Keep pods off nodes that are not Ready or are cordoned.

Rule: the node is Ready and not unschedulable. A pod that tolerates the taint `node.kubernetes.io/not-ready` or
`node.kubernetes.io/unreachable` with the effect NoSchedule fits nodes that are not Ready, unless the plugin `taints`
excludes them. A pod that tolerates `node.kubernetes.io/unschedulable:NoSchedule` fits cordoned nodes.
Source: kube-scheduler's NodeUnschedulable plugin. kube-scheduler reads only the taints, which the node lifecycle
controller sets some time after the condition changed; this plugin reads the condition too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache

import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_constraints import Toleration
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Refusal
from hetsched.engine.framework.tolerations import tolerates

_UNREADY = tuple(Taint(f"node.kubernetes.io/{name}", effect="NoSchedule") for name in ("not-ready", "unreachable"))
_CORDON = (Taint("node.kubernetes.io/unschedulable", effect="NoSchedule"),)
NOT_READY = Refusal("NodeNotReady", Message("the node is not Ready"))
CORDONED = Refusal("NodeUnschedulable", Message("the node is cordoned"))


@plugin(
    "node-ready",
    summary="Exclude nodes that are not Ready or are cordoned.",
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_TAINTS}),
)
class NodeReady:
    def static_key(self, request: Request) -> Hashable:
        if not request.shape.tolerations:
            return False, False
        return _tolerates(request.shape.tolerations, _UNREADY), _tolerates(request.shape.tolerations, _CORDON)

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.ones(nodes.n, np.bool_)
        for _, refused in self.refusals(request, nodes):
            fits &= ~refused
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        ready: Bools = np.ones(nodes.n, np.bool_)
        if not _tolerates(request.shape.tolerations, _UNREADY):
            ready = nodes.static("ready") != 0
            yield NOT_READY, ~ready
        if not _tolerates(request.shape.tolerations, _CORDON):
            yield CORDONED, ready & (nodes.static("unschedulable") != 0)

    def waits(self, request: Request) -> Message:
        if _tolerates(request.shape.tolerations, _UNREADY):
            return Message("a node to be uncordoned")
        if _tolerates(request.shape.tolerations, _CORDON):
            return Message("a node to be Ready")
        return Message("a node to be Ready and not cordoned")


@lru_cache(maxsize=1024)
def _tolerates(tolerations: tuple[Toleration, ...], taints: tuple[Taint, ...]) -> bool:
    return any(tolerates(tolerations, taint) for taint in taints)
