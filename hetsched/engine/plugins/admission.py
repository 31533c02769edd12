"""Keep pods of an owner off nodes whose kubelet rejected its previous pods, during the backoff.

Problem: a rejection ends the pod, and the controller's next pod is placed by the same facts and rejected again,
thousands of times an hour.
Rule: a node in backoff takes no pod of the owner. After the backoff it takes one pod; the others wait until that pod
runs. An owner that nodes all over the fleet rejected backs off on all nodes. Without rejections the plugin is inactive.
The caller sets the length of the backoff: see `placement.backoffs`.
Source: kubernetes/kubernetes#84869 (runaway pods of TopologyAffinityError); the rule is specific to hetsched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY, Avoided, NodeRejections
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[dict[str, Refusal]] = StateKey("admission")

_MOST_NAMED = 4  # further nodes are summarised
_CODE, _MOVED = "KubeletRefused", "MovedAway"


@plugin(
    "admission",
    summary="Exclude nodes whose kubelet rejected pods of this owner until the back-off ends.",
    scope=Scope.CLUSTER,
    helped_by=frozenset({Event.TIME, Event.NODE_ADDED, Event.POD_RELEASED}),
)
class Admission:
    def handled_pods(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        avoided = state.avoided
        return (lambda pod: pod.owner in avoided) if avoided else None

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        avoided = state.avoided.get(request.pod.owner) if state.avoided else None
        if avoided is None:
            return SKIP
        if avoided.rest is not None:
            return _resting(avoided.rest)
        request.memo[_PREPARED] = _closed(avoided, request, state)
        return None

    def waits(self, request: Request) -> str:
        return "the end of a back-off after kubelets refused pods of its owner"

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
            first = ", ".join(sorted(closed)[:_MOST_NAMED])
            message = f"kubelets of {len(closed)} nodes ({first}, ...) refused pods of this owner"
            yield Refusal(_CODE, message), np.isin(names, list(closed))


def _closed(avoided: Avoided, request: Request, state: ClusterState) -> dict[str, Refusal]:
    """Return the nodes that accept no pod of this owner now, each with the reason."""
    closed = {}
    for name, refused in avoided.nodes.items():
        row = state.row_of.get(name)
        if refused.rests:
            message = f"kubelet of {name} refused {_pods(refused)}; tried again at {refused.until}"
            if refused.reason == MOVED_AWAY:
                message = f"a pod of this owner was moved away from {name}; tried again at {refused.until or 'the end'}"
            closed[name] = Refusal(_MOVED if refused.reason == MOVED_AWAY else _CODE, message)
        elif row is not None and (tried := _on_trial(request, state, row, refused)):
            message = f"kubelet of {name} refused {_pods(refused)}; {tried} is tried there first"
            closed[name] = Refusal(_CODE, message)
    return closed


def _on_trial(request: Request, state: ClusterState, row: int, refused: NodeRejections) -> str:
    """Return another pod of the same owner that is placed on the node and does not run yet; empty without one."""
    owner = request.pod.owner
    others = (key for key, booking in state.on_row[row].items() if booking.pod.owner == owner)
    return next((key for key in others if key not in refused.proven and key != request.pod.key), "")


def _resting(rest: NodeRejections) -> Refusal:
    message = f"kubelets everywhere refused {_pods(rest)}; tried again at {rest.until}"
    return Refusal(_CODE, message, verdict=Verdict.NOT_NOW)


def _pods(refused: NodeRejections) -> str:
    return f"{refused.pods} pod{'s' if refused.pods != 1 else ''} of this owner: {refused.reason}"
