"""Keep pods off nodes that are not Ready or are cordoned.

Rule: the node is Ready and not unschedulable. A pod that tolerates `node.kubernetes.io/unschedulable:NoSchedule` fits
cordoned nodes (never nodes that are not Ready).
Source: kube-scheduler's NodeUnschedulable plugin.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Refusal
from hetsched.engine.framework.tolerations import tolerates

_CORDON = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")
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
        return _tolerates_cordon(request)

    def filter(self, request: Request, nodes: Window) -> Bools:
        ready: Bools = nodes.static("ready") != 0
        if _tolerates_cordon(request):
            return ready
        schedulable: Bools = ready & (nodes.static("unschedulable") == 0)
        return schedulable

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        not_ready = nodes.static("ready") == 0
        yield NOT_READY, not_ready
        if not _tolerates_cordon(request):
            yield CORDONED, ~not_ready & (nodes.static("unschedulable") != 0)

    def waits(self, request: Request) -> Message:
        return (
            Message("a node to be Ready")
            if _tolerates_cordon(request)
            else Message("a node to be Ready and not cordoned")
        )


def _tolerates_cordon(request: Request) -> bool:
    return tolerates(request.shape.tolerations, _CORDON)
