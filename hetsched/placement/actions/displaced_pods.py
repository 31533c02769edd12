"""Pods of ours that make way because somebody else filled their node first.

Problem: another scheduler binds to our nodes without asking; two pods for one place, and the kubelet takes one of them.
Rule: whoever is on a node is charged to it, in the step that sees it. Where a node then has more to carry than it has,
room that is held for nobody yet is lost; if that is not enough, pods of ours go back to the queue, the least important
and then the latest first, until it fits: those that are placed and not yet being bound. What is being bound or is bound
stays; where that is too much, the kubelet refuses one, and the owner of that one stays away for a while.
Invariant: what somebody else took counts before the next decision on that node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from django.db.models import Q

from hetsched.inventory.models import Node
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Hold, Pod, Reservation
from hetsched.storage.prepared_queries import Among, Prepared

from .change import BACK_IN_QUEUE, Change
from .holds import end

_UNBOUND_OR_HELD = Q(state=State.PLACED.value, origin__in=Pod.OURS) | Q(state=State.RUNNING.value, origin=Pod.HELD)
_UNBOUND = Prepared(
    lambda: Pod.objects.filter(_UNBOUND_OR_HELD, node__in=Among("nodes")).defer("spec").order_by("priority", "-id")
)


def make_way(change: Change, node_ids: Iterable[int], *, by: str) -> int:
    """Send back who does not fit any more beside the pods `by` which these nodes were filled; return how many."""
    yielding: dict[int, list[Pod]] = defaultdict(list)
    for pod in sorted(_UNBOUND(nodes=set(node_ids)), key=_is_pod):
        yielding[pod.node_id or 0].append(pod)
    count = 0
    for node in Node.objects.filter(pk__in=yielding).defer("report"):
        over = _over(node, yielding[node.pk])
        if over:
            reason = f"{node.name} was filled by {by} before it was bound"
            pods = [pod for pod in over if _is_pod(pod)]
            change.free(pods, "somebody else was faster")
            change.move(pods, State.PENDING, **BACK_IN_QUEUE, message=reason)
            held = {pod.hold_id for pod in over if not _is_pod(pod)}
            end(change, Hold.objects.filter(pk__in=held, state__in=Hold.OPEN), Hold.LOST, reason)
            count += len(over)
    return count


def _is_pod(row: Pod) -> bool:
    """Tell a pod from room that is held."""
    return row.origin != Pod.HELD


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
