"""Displacement of hetsched's pods from nodes that another scheduler filled first.

Another scheduler binds pods to the same nodes without coordination. If two pods are bound to the same capacity, the
kubelet admits only one.
The resources of every pod on a node are reserved in the transaction that observes the pod. If a node is then over its
allocatable resources, holds with unused capacity on this node end in the state *lost*. Then placed pods that are not
being bound yet go back to the queue until the remaining pods fit the node: the lowest priority first, and within a
priority the latest pod first. Pods that are being bound or are bound stay; if the node is still over capacity, the
kubelet rejects one of them and its owner backs off from the node. If the displacement of a member leaves a gang below
its minimum, the whole gang goes back to the queue.
Invariant: capacity used by other schedulers is reserved before the next decision on that node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain

from django.db.models import Q

from hetsched.contracts.message import Message
from hetsched.inventory.models import Node
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Hold, Pod, Reservation
from hetsched.storage.batches import batched

from ..change import BACK_IN_QUEUE, ClusterTransaction
from ..gangs import recover_gangs_of
from ..holds import end_hold_rows

_UNBOUND_OR_HELD = Q(state=State.PLACED.value, origin__in=Pod.OURS) | Q(state=State.RUNNING.value, origin=Pod.HELD)


def displace_pods(change: ClusterTransaction, node_ids: Iterable[int], *, by: str) -> int:
    """Displace pods and holds that no longer fit on these nodes; return how many were displaced.

    `by` names the pods that filled the nodes, for the reason shown to users.
    """
    candidates: dict[int, list[Pod]] = defaultdict(list)
    unbound = Pod.objects.filter(_UNBOUND_OR_HELD).defer("spec").order_by("priority", "-id")
    on_nodes = (unbound.filter(node__in=some) for some in batched(sorted(set(node_ids))))
    for pod in sorted(chain.from_iterable(on_nodes), key=_is_pod):
        candidates[pod.node_id or 0].append(pod)
    count, displaced = 0, dict[Message, list[Pod]]()
    for node in Node.objects.filter(pk__in=candidates).defer("report"):
        over = _excess_pods(node, candidates[node.pk])
        if over:
            reason = Message("{node} was filled by {pods} before the pod was bound", node=node.name, pods=by)
            pods = [pod for pod in over if _is_pod(pod)]
            change.free(pods, Message("a concurrent decision changed the pod"))
            change.move(pods, State.PENDING, **BACK_IN_QUEUE, message=reason)
            displaced[reason] = pods
            held = {pod.hold_id for pod in over if not _is_pod(pod)}
            end_hold_rows(change, Hold.objects.filter(pk__in=held, state__in=Hold.OPEN), Hold.LOST, reason)
            count += len(over)
    for reason, pods in displaced.items():
        recover_gangs_of(change, pods, reason)
    return count


def _is_pod(row: Pod) -> bool:
    """Return True for a pod, False for the reserved capacity of a hold."""
    return row.origin != Pod.HELD


def _excess_pods(node: Node, candidates: list[Pod]) -> list[Pod]:
    """Return the shortest prefix of these pods whose removal makes the rest fit the node, or all if none does."""
    rows = Reservation.objects.filter(node=node, active=True).values_list("pod_id", "requests", "allocation")
    held: dict[int, dict[str, int]] = {
        pod: {name: amount for name, amount in requests.items() if name not in allocation.device_resources}
        for pod, requests, allocation in rows
    }
    total: Counter[str] = Counter({"pods": len(held)})
    for requests in held.values():
        total.update(requests)
    over: list[Pod] = []
    for pod in candidates:
        if all(total[name] <= room for name, room in node.allocatable.items()):
            return over
        total.subtract({**held.get(pod.pk, {}), "pods": 1})
        over.append(pod)
    return over
