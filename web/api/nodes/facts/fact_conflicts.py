"""Node facts that the node's kubelet contradicted, and the owners whose pods avoid the node for that reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from hetsched.contracts.times import rfc3339
from hetsched.inventory.models import Node
from hetsched.placement.scheduling_queue.node_backoffs import node_rejections
from web.api.documents import Document


class FactConflictDetail(Document, frozen=True):
    """Fact that the node's kubelet contradicted, with the time and the rejected pod.

    `pod` and `message` are null if the caller may not see the pod. The reported value stays in use.
    """

    fact: str
    since: str
    pod: str | None
    reason: str
    message: str | None


class BackOff(Document, frozen=True):
    """Back-off of an owner's pods on this node after its kubelet rejected `pods` of them; it ends at `until`."""

    owner: str
    pods: int
    reason: str
    until: str


def conflict_details(node: Node, is_visible: Callable[[str], bool]) -> list[FactConflictDetail]:
    """Return the contradicted facts of a node; pods of namespaces outside the caller's scope are not named."""
    conflicts = []
    for doubt in node.doubts:
        named = is_visible(_namespace(doubt.pod))  # kubelet messages contain pod names too
        pod, message = (doubt.pod, doubt.message) if named else (None, None)
        conflicts.append(FactConflictDetail(doubt.fact, doubt.since, pod, doubt.reason, message))
    return conflicts


def back_offs(node: Node, now: datetime, is_visible: Callable[[str], bool]) -> list[BackOff]:
    """Return the back-offs on a node by owner, limited to rejections of pods that the caller may see."""
    rows = [row for row in node_rejections(node, now) if is_visible(_namespace(row.pod))]
    counts = Counter(row.owner for row in rows)
    latest = {row.owner: row for row in rows}
    return [
        BackOff(row.controller or row.pod, counts[owner], row.reason, rfc3339(row.until))
        for owner, row in latest.items()
    ]


def _namespace(key: str) -> str:
    return key.partition("/")[0]
