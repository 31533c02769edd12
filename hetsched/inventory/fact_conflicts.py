"""Record and clear conflicts: node facts that a kubelet contradicted.

A conflict is stored next to the report and changes neither the report nor the capacity of the node. If several
rejections contradict a fact, users see the first one. A conflict ends when the fact is reported differently
(`actions.set_report`), when a pod of the same owner runs on the node (`clear_owner_conflicts`), or when an operator
clears it (`clear_conflicts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.journal.audit import SYSTEM, Actor, record, record_many
from hetsched.journal.publish import Patch, publish_many

from .actions import node_topic, node_unknown_error
from .facts import audit_name
from .models import Cluster, Node
from .node_loads import write_columns
from .tiles import to_json_types

_COLUMNS = ("doubts",)


def record_conflicts(cluster: Cluster, raised: Mapping[int, Sequence[FactConflict]]) -> list[Node]:
    """Record conflicts of node facts (by node id), inside the caller's transaction; return the changed nodes."""
    changed = []
    for node in Node.objects.filter(cluster=cluster, pk__in=raised).defer("report"):
        known = {doubt.fact for doubt in node.doubts}
        new = {conflict.fact: conflict for conflict in reversed(raised[node.pk]) if conflict.fact not in known}
        if new:
            node.doubts = (*node.doubts, *(new[fact] for fact in sorted(new)))
            changed.append((node, new))
    write_columns([node for node, _ in changed], _COLUMNS)
    about = [
        (audit_name(cluster, node), "", {conflict.fact: _describe(conflict) for conflict in new.values()})
        for node, new in changed
    ]
    record_many(SYSTEM, "node.doubt", about)
    return [node for node, _ in changed]


def clear_owner_conflicts(cluster: Cluster, owners: Mapping[int, set[str]]) -> list[Node]:
    """Clear conflicts that pods of `owners` (by node id) raised, because a pod of the owner now runs on the node."""
    changed = []
    for node in Node.objects.filter(cluster=cluster, pk__in=owners).defer("report"):
        remaining = tuple(doubt for doubt in node.doubts if doubt.owner not in owners[node.pk])
        if remaining != node.doubts:
            node.doubts = remaining
            changed.append(node)
    write_columns(changed, _COLUMNS)
    return changed


def clear_conflicts(cluster: Cluster, node_name: str, *, freed: int, actor: Actor, reason: str) -> Node:
    """Clear all conflicts of a node because an operator confirms its facts, inside the caller's transaction.

    The audit entry records `freed`, the number of rejections that the caller has removed so that the owners of the
    rejected pods may use the node again.
    Raises: InputError `NodeUnknown`, or `NothingInDoubt`.
    """
    node = Node.objects.filter(cluster=cluster, name=node_name).first()
    if node is None:
        raise node_unknown_error(cluster, node_name)
    if not node.doubts and not freed:
        raise InputError("NothingInDoubt", Message("node {node} has no fact to review", node=node_name), place="node")
    details: dict[str, Any] = {doubt.fact: _describe(doubt) for doubt in node.doubts} | {"rejections": freed}
    node.doubts = ()
    write_columns([node], _COLUMNS)
    about = audit_name(cluster, node)
    record(actor=actor.name, role=actor.role, action="node.trust", obj=about, reason=reason, details=details)
    publish_many(conflict_patches(cluster, [node]))
    return node


def conflict_patches(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, Patch | Callable[[], Patch]]:
    """Return the patches for the live pages of these nodes."""
    return {node_topic(cluster, node.name): {"doubts": to_json_types(node.doubts)} for node in nodes}


def _describe(conflict: FactConflict) -> str:
    return f"{conflict.pod}: {conflict.reason}"
