"""Actions on clusters and nodes; each action is one transaction that also writes its audit entry and live events.

A change to the inventory raises `inventory_revision` and `layout_revision` to the cluster's new revision, so that
snapshots reload. A change to individual nodes raises only their `changed_revision`, so that snapshots refresh only
these nodes. Both kinds of change send the signal that requeues pending pods. `replace_nodes` imports the nodes of a
file; `hetsched.placement` imports the running pods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec
from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cards import cards_of, installed_cards
from hetsched.contracts.objects.fact_conflicts import remaining_conflicts
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.journal.audit import Actor, record
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from .freshness import due_at
from .models import DNS_LABEL, Cluster, ClusterKind, Node
from .node_loads import advance, write_columns
from .signals import inventory_changed
from .tiles import cluster_head, isa_of, node_load, pool_of, tile

LONGEST_REASON = 2000


def cluster_topic(cluster: Cluster) -> str:
    return f"cluster:{cluster.name}"


def node_topic(cluster: Cluster, node_name: str) -> str:
    return f"node:{cluster.name}/{node_name}"


def check_name(name: str, code: str, *, reserved: Collection[str] = ()) -> None:
    """Check that a name is a DNS label and not reserved. Raises: InputError `code`."""
    if not re.fullmatch(DNS_LABEL.regex, name) or name in reserved:
        message = Message("{text} is not a valid name", text=repr(name[:80]))
        raise InputError(code, message, place="name", hint=str(DNS_LABEL.message))


def require_reason(reason: str) -> str:
    """Return the reason, trimmed.

    Raises: InputError `ReasonMissing`, `ReasonTooLong`.
    """
    text = reason.strip()
    if not text:
        raise InputError(
            "ReasonMissing", "a reason is required", place="reason", hint="The audit trail records the reason"
        )
    if len(text) > LONGEST_REASON:
        raise InputError(
            "ReasonTooLong",
            Message("the reason has {n} characters; the maximum is {m}", n=len(text), m=LONGEST_REASON),
            place="reason",
            hint="Shorten the reason, and refer to a document for details",
        )
    return text


def node_unknown_error(cluster: Cluster, node_name: str) -> InputError:
    """Return the error about a node that a cluster does not have."""
    message = Message("cluster {cluster} has no node {node}", cluster=cluster.name, node=repr(node_name[:80]))
    return InputError("NodeUnknown", message, place="node")


def create_cluster(
    *, name: str, kind: str = ClusterKind.OFFLINE, policy_name: str = "hetsched", actor: Actor, reason: str = ""
) -> Cluster:
    """Add an empty cluster.

    Raises: InputError `ClusterNameInvalid`, `ClusterKindUnknown` or `ClusterExists`.
    """
    if not re.fullmatch(DNS_LABEL.regex, name):
        message = Message("{text} is not a valid cluster name", text=repr(name[:80]))
        raise InputError("ClusterNameInvalid", message, place="name", hint=str(DNS_LABEL.message))
    if kind not in ClusterKind.values:
        message = Message("{text} is not a kind of cluster", text=repr(kind))
        hint = Message("Use {names}", names=joined(", ", ClusterKind.values))
        raise InputError("ClusterKindUnknown", message, place="kind", hint=hint)
    try:
        with write_transaction():
            cluster = Cluster.objects.create(name=name, kind=kind, policy_name=policy_name)
            record(actor=actor.name, role=actor.role, action="cluster.create", obj=cluster, reason=reason)
            publish_many({cluster_topic(cluster): cluster_head(cluster)})
    except IntegrityError:
        message = Message("cluster {name} already exists", name=repr(name))
        raise InputError("ClusterExists", message, place="name", hint="Choose another name") from None
    return cluster


def set_report(node: Node, report: NodeReport) -> Node:
    """Set a node's report and its derived columns, without saving; clear conflicts of facts that changed."""
    if node.doubts:
        node.doubts = remaining_conflicts(node.doubts, node.report, report)
    node.report = report
    node.isa_family, node.isa = isa_of(report)
    node.pool = pool_of(report)
    node.ready = report.ready
    node.unschedulable = report.unschedulable or node.cordoned_by_operator
    node.card_count = len(cards_of(report))
    node.cards_installed = installed_cards(report)
    node.allocatable = dict(report.allocatable)
    node.updated_at = timezone.now()
    node.sample_due_at = due_at(report.usage, node.updated_at)
    return node


FACT_COLUMNS = (
    "report",
    "isa_family",
    "isa",
    "pool",
    "ready",
    "unschedulable",
    "card_count",
    "cards_installed",
    "allocatable",
    "updated_at",
    "doubts",
    "sample_due_at",
)
# Columns of a node in the totals of its cluster.
_TOTALED = (
    "allocatable", "requested", "ready", "unschedulable", "card_count", "cards_installed", "gpu_milli_used",
)  # fmt: skip


def replace_nodes(cluster: Cluster, reports: Iterable[NodeReport]) -> list[str]:
    """Replace a cluster's nodes inside the caller's transaction; return the names of the removed nodes.

    The caller must have locked the cluster with `advance`. Nodes that are reported again keep their load and an
    operator's cordon. Removed nodes must have no allocations.
    """
    known = {node.name: node for node in cluster.nodes.defer("report")}
    added: list[Node] = []
    changed: list[Node] = []
    names: set[str] = set()
    for report in reports:
        names.add(report.name)
        node = known.get(report.name)
        if node is None:
            added.append(set_report(Node(cluster=cluster, name=report.name), report))
        else:
            changed.append(set_report(node, report))
    Node.objects.bulk_create(added, batch_size=200)
    write_columns(changed, FACT_COLUMNS)
    removed = sorted(known.keys() - names)
    cluster.nodes.filter(name__in=removed).delete()
    recompute_totals(cluster)
    return removed


def recompute_totals(cluster: Cluster, *, same_layout: bool = False, decisive: bool = True) -> None:
    """Recompute the cluster's totals from its nodes, and mark the inventory as changed.

    Pass `same_layout` if no node was added or removed and each changed node has a new `changed_revision`;
    `layout_revision` then stays unchanged. If `decisive` is false, decisions in progress stay valid.
    """
    capacity: Counter[str] = Counter()
    requested: Counter[str] = Counter()
    cluster.node_count = cluster.ready_count = 0
    cluster.card_count = cluster.cards_installed = cluster.gpu_milli_used = 0
    rows = cluster.nodes.order_by().values_list(*_TOTALED).iterator(chunk_size=1000)
    for allocatable, load, ready, unschedulable, card_count, cards_installed, gpu_milli_used in rows:
        capacity.update(allocatable)
        requested.update(load)
        cluster.node_count += 1
        cluster.ready_count += ready and not unschedulable
        cluster.card_count += card_count
        cluster.cards_installed += cards_installed
        cluster.gpu_milli_used += gpu_milli_used
    cluster.capacity = dict(sorted(capacity.items()))
    cluster.requested = dict(sorted(requested.items()))
    cluster.inventory_revision = cluster.revision
    if not same_layout:
        cluster.layout_revision = cluster.revision
    if decisive:
        cluster.decisive_revision = cluster.revision
    cluster.save(
        update_fields=[
            "node_count", "ready_count", "card_count", "cards_installed", "gpu_milli_used", "capacity", "requested",
            "inventory_revision", "layout_revision", "decisive_revision",
        ]
    )  # fmt: skip


def cordon(cluster: Cluster, node_name: str, *, actor: Actor, reason: str) -> Node:
    """Keep new pods off a node; running pods stay on it.

    Raises: InputError `NodeUnknown` or `ReasonMissing`.
    """
    return _set_cordon(cluster, node_name, True, "node.cordon", actor, reason)


def uncordon(cluster: Cluster, node_name: str, *, actor: Actor, reason: str) -> Node:
    """Remove an operator's cordon; a node that reports itself as unschedulable stays unschedulable.

    Raises: InputError `NodeUnknown` or `ReasonMissing`.
    """
    return _set_cordon(cluster, node_name, False, "node.uncordon", actor, reason)


def _set_cordon(cluster: Cluster, node_name: str, cordoned: bool, action: str, actor: Actor, reason: str) -> Node:
    reason = require_reason(reason)
    with write_transaction():
        locked = advance(cluster.pk)
        node = Node.objects.filter(cluster=locked, name=node_name).first()
        if node is None:
            raise node_unknown_error(locked, node_name)
        node.cordoned_by_operator = cordoned
        node.unschedulable = node.report.unschedulable or cordoned
        node.changed_revision = locked.revision
        node.save(update_fields=["cordoned_by_operator", "unschedulable", "changed_revision"])
        recompute_totals(locked, same_layout=True)
        record(
            actor=actor.name,
            role=actor.role,
            action=action,
            obj=("node", f"{locked.name}/{node_name}"),
            reason=reason,
        )
        inventory_changed.send(sender=Cluster, cluster=locked)
        publish_many(
            {
                cluster_topic(locked): {**cluster_head(locked), "nodes": {node_name: tile(node)}},
                node_topic(locked, node_name): {**node_load(node), "cordonedByOperator": cordoned},
            }
        )
    return node


def set_default_policy(cluster: Cluster, policy_name: str, *, actor: Actor, reason: str) -> Cluster:
    """Set the policy for pods that do not name one. The caller must check that the policy exists.

    Raises: InputError `ReasonMissing`.
    """
    reason = require_reason(reason)
    with write_transaction():
        locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
        before, locked.policy_name = locked.policy_name, policy_name
        locked.save(update_fields=["policy_name"])
        record(
            actor=actor.name,
            role=actor.role,
            action="cluster.policy",
            obj=locked,
            reason=reason,
            details={"before": before, "after": policy_name},
        )
        publish_many({cluster_topic(locked): cluster_head(locked)})
    return locked


def next_demo_sequence(cluster: Cluster) -> int | None:
    """Reserve and return the number of the next demo workload, or None if another process reserved it first."""
    taken = Cluster.objects.filter(pk=cluster.pk, demo_sequence=cluster.demo_sequence)
    number = cluster.demo_sequence
    return number if taken.update(demo_sequence=number + 1) else None


def effective_report(node: Node) -> NodeReport:
    """Return the node's report with an operator's cordon applied, as the engine sees the node."""
    if node.unschedulable and not node.report.unschedulable:
        return msgspec.structs.replace(node.report, unschedulable=True)
    return node.report
