"""Pods of ours that make way because somebody else filled their node first.

Problem: another scheduler binds to our nodes without asking; two pods for one place, and the kubelet takes one of them.
Rule: whoever is on a node is charged to it, in the step that sees it. Where a node then has more to carry than it has,
pods of ours go back to the queue, the least important and then the latest first, until it fits: those that are placed
and not yet being bound. What is being bound or is bound stays; where that is too much, the kubelet refuses one, and the
owner of that one stays away for a while.
Invariant: what somebody else took counts before the next decision on that node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from hetsched.inventory.models import Node
from hetsched.journal.prepared import Among, Prepared

from ..lifecycle import State
from ..models import Pod, Reservation
from .change import BACK_IN_QUEUE, Change

_UNBOUND = Prepared(
    lambda: (
        Pod.objects.filter(node__in=Among("nodes"), state=State.PLACED.value, origin__in=Pod.OURS)
        .defer("spec")
        .order_by("priority", "-id")
    )
)


def make_way(change: Change, node_ids: Iterable[int], *, by: str) -> int:
    """Send back who does not fit any more beside the pods `by` which these nodes were filled; return how many."""
    yielding: dict[int, list[Pod]] = defaultdict(list)
    for pod in _UNBOUND(nodes=set(node_ids)):
        yielding[pod.node_id or 0].append(pod)
    count = 0
    for node in Node.objects.filter(pk__in=yielding).defer("report"):
        over = _over(node, yielding[node.pk])
        if over:
            reason = f"{node.name} was filled by {by} before it was bound"
            change.free(over, "somebody else was faster")
            change.move(over, State.PENDING, **BACK_IN_QUEUE, message=reason)
            count += len(over)
    return count


def _over(node: Node, yielding: list[Pod]) -> list[Pod]:
    """Return those of these pods without whom the node fits, or all of them where nothing helps."""
    held: dict[int, dict[str, int]] = dict(
        Reservation.objects.filter(node=node, active=True).values_list("pod_id", "requests")
    )
    total: Counter[str] = Counter({"pods": len(held)})
    for requests in held.values():
        total.update(requests)
    over: list[Pod] = []
    for pod in yielding:
        if all(total[name] <= room for name, room in node.allocatable.items()):
            return over
        total.subtract({**held.get(pod.pk, {}), "pods": 1})
        over.append(pod)
    return over
