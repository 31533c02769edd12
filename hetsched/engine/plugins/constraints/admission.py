"""Keep pods of an owner off nodes whose kubelet rejected its previous pods, during the backoff.

Problem: a rejected pod is Failed. Its controller creates another pod, which the scheduler places on the same node and
the kubelet rejects again, thousands of times an hour.
Rule: a node in backoff accepts no pod of the owner. After the backoff it accepts one pod; the others wait until that
pod runs. An owner whose pods are rejected on nodes across the fleet backs off on all nodes. Without rejections the
plugin is inactive. The caller sets the length of the backoff: see `placement.scheduling_queue.node_backoffs`.
Source: kubernetes/kubernetes#84869 (runaway pods of TopologyAffinityError); the rule is specific to hetsched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY, MOVED_CODE, REFUSED_CODE, AvoidedNodes, NodeRejections
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[dict[str, Refusal]] = StateKey("admission")

_MOST_NAMED = 4  # maximum number of nodes that are named; further nodes are summarised


@plugin(
    "admission",
    summary="Exclude nodes whose kubelet rejected pods of this owner until the backoff ends.",
    scope=Scope.CLUSTER,
    helped_by=frozenset({Event.TIME, Event.NODE_ADDED, Event.POD_RELEASED}),
    implied=True,
)
class Admission:
    def handled_pods(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        avoided = state.avoided
        return (lambda pod: pod.owner in avoided) if avoided else None

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        avoided = state.avoided.get(request.pod.owner) if state.avoided else None
        if avoided is None:
            return SKIP
        if avoided.everywhere is not None:
            return _backoff_refusal(avoided.everywhere)
        request.memo[_PREPARED] = _closed(avoided, request, state)
        return None

    def waits(self, request: Request) -> Message:
        return Message("the end of the backoff after kubelets rejected pods of the same owner")

    def filter(self, request: Request, nodes: Window) -> Bools:
        closed = request.memo[_PREPARED]
        fits: Bools = np.array([name not in closed for name in nodes.names()], np.bool_)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        closed = request.memo[_PREPARED]
        names = np.array(nodes.names(), np.str_)
        shown = sorted(closed) if len(closed) <= _MOST_NAMED else []
        for name in shown:
            yield closed[name], names == name
        if closed and not shown:
            first = joined(", ", sorted(closed)[:_MOST_NAMED])
            message = Message(
                "kubelets of {n} nodes ({names}, ...) rejected pods of this owner", n=len(closed), names=first
            )
            yield Refusal(REFUSED_CODE, message), np.isin(names, list(closed))


def _closed(avoided: AvoidedNodes, request: Request, state: ClusterState) -> dict[str, Refusal]:
    """Return, by node name, the refusal of each node that accepts no pod of the owner now."""
    closed = {}
    for name, refused in avoided.nodes.items():
        row = state.row_of.get(name)
        if refused.backs_off:
            message = _rejection_message(name, refused, Message("the next attempt is at {time}", time=refused.until))
            if refused.reason == MOVED_AWAY:
                message = Message(
                    "a pod of this owner was moved away from {node}; the next attempt is at {text}",
                    node=name,
                    text=refused.until or "the end",
                )
            closed[name] = Refusal(MOVED_CODE if refused.reason == MOVED_AWAY else REFUSED_CODE, message)
        elif row is not None and (tried := _trial_pod(request, state, row, refused)):
            message = _rejection_message(
                name, refused, Message("another pod of the same owner, {pod}, is tried on this node first", pod=tried)
            )
            closed[name] = Refusal(REFUSED_CODE, message)
    return closed


def _trial_pod(request: Request, state: ClusterState, row: int, refused: NodeRejections) -> str:
    """Return the key of another pod of the same owner that is placed on the node but does not run yet, or ""."""
    owner = request.pod.owner
    others = (key for key, placed in state.on_row[row].items() if placed.pod.owner == owner)
    return next((key for key in others if key not in refused.running and key != request.pod.key), "")


def _backoff_refusal(rest: NodeRejections) -> Refusal:
    message = _rejection_message("", rest, Message("the next attempt is at {time}", time=rest.until))
    return Refusal(REFUSED_CODE, message, verdict=Verdict.NOT_NOW)


def _rejection_message(node: str, refused: NodeRejections, then: Message) -> Message:
    """Format how many pods one kubelet (`node`), or all kubelets ("") rejected, followed by `then`."""
    templates = _REJECTED if node else _REJECTED_EVERYWHERE
    count = Message(templates[refused.pods != 1], node=node, n=refused.pods, text=refused.reason)
    return joined("; ", [count, then])


_REJECTED = (
    "kubelet of {node} rejected {n} pod of this owner: {text}",
    "kubelet of {node} rejected {n} pods of this owner: {text}",
)
_REJECTED_EVERYWHERE = (
    "kubelets of the cluster rejected {n} pod of this owner: {text}",
    "kubelets of the cluster rejected {n} pods of this owner: {text}",
)
