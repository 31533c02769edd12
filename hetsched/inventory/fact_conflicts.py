"""Facts of nodes that a kubelet contradicted: noted, and cleared again.

Rule: a doubt stands beside the report and never changes it, nor what a node can hold. The first refusal that put a fact
in doubt is the one that is shown. It ends when these facts are reported differently (`actions.describe`), when a pod of
the same owner runs there (`dispel`), or when an operator says so (`clear_doubts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetsched.contracts.doubts import Doubt
from hetsched.contracts.errors import InputError
from hetsched.journal.audit import SYSTEM, Actor, record, record_many
from hetsched.journal.publish import Patch, publish_many

from .actions import node_topic
from .facts import named
from .ledger import write_columns
from .models import Cluster, Node
from .tiles import plain

_COLUMNS = ("doubts",)


def doubt(cluster: Cluster, raised: Mapping[int, Sequence[Doubt]]) -> list[Node]:
    """Put facts of nodes (by id) in doubt, inside the caller's transaction; return the nodes that are to be told."""
    changed = []
    for node in Node.objects.filter(cluster=cluster, pk__in=raised).defer("report"):
        known = {one.fact for one in node.doubts}
        new = {one.fact: one for one in reversed(raised[node.pk]) if one.fact not in known}
        if new:
            node.doubts = (*node.doubts, *(new[fact] for fact in sorted(new)))
            changed.append((node, new))
    write_columns([node for node, _ in changed], _COLUMNS)
    about = [(named(cluster, node), {one.fact: _why(one) for one in new.values()}) for node, new in changed]
    record_many(SYSTEM, "node.doubt", about)
    return [node for node, _ in changed]


def dispel(cluster: Cluster, owners: Mapping[int, set[str]]) -> list[Node]:
    """Forget what pods of these owners put in doubt, by node id, as `doubt` does: a pod of theirs runs there now."""
    changed = []
    for node in Node.objects.filter(cluster=cluster, pk__in=owners).defer("report"):
        left = tuple(one for one in node.doubts if one.owner not in owners[node.pk])
        if left != node.doubts:
            node.doubts = left
            changed.append(node)
    write_columns(changed, _COLUMNS)
    return changed


def clear_doubts(cluster: Cluster, node_name: str, *, freed: int, actor: Actor, reason: str) -> Node:
    """Say that a node's facts are right as reported, inside the caller's transaction; `freed` owners may try it again.

    Raises: InputError `NodeUnknown`, or `NothingInDoubt`.
    """
    node = Node.objects.filter(cluster=cluster, name=node_name).first()
    if node is None:
        raise InputError("NodeUnknown", f"cluster {cluster.name} has no node {node_name[:80]!r}", place="node")
    if not node.doubts and not freed:
        raise InputError("NothingInDoubt", f"no fact of {node_name} is in doubt", place="node")
    details: dict[str, Any] = {one.fact: _why(one) for one in node.doubts} | {"rejections": freed}
    node.doubts = ()
    write_columns([node], _COLUMNS)
    about = named(cluster, node)
    record(actor=actor.name, role=actor.role, action="node.trust", obj=about, reason=reason, details=details)
    publish_many(doubt_patches(cluster, [node]))
    return node


def doubt_patches(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, Patch | Callable[[], Patch]]:
    """Return what live pages of these nodes are told."""
    return {node_topic(cluster, node.name): {"doubts": plain(node.doubts)} for node in nodes}


def _why(one: Doubt) -> str:
    return f"{one.pod}: {one.reason}"
