"""Apply the node changes that a live API server reports.

Runs inside the caller's transaction, on a cluster locked by `advance`. Changed facts of a known node are written at the
new revision, so that snapshots refresh only that node. Snapshots apply most changed definitions in place. They reload
if nodes are added or removed, or if namespaces or quotas change. A node deleted from the API server is kept as not
ready while it has allocations. A new usage sample of a node includes the load of the pods allocated on the node at that
time.
Invariant: the cluster's totals are the sums over its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec
from django.db.models import F, Q
from django.db.models.functions import Now

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.waits import Event
from hetsched.engine.framework.queueing_hints import differences
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert, new

from .actions import FACT_COLUMNS, recompute_totals, set_report
from .facts import is_sampled, merge_node_reports
from .models import Cluster, ClusterKind, Node, Sync
from .node_loads import write_columns

STALE = timedelta(seconds=90)


def has_definitions(cluster_id: int, definitions: ClusterContent) -> bool:
    """Return True if these definitions are those of the cluster's row."""
    return Cluster.objects.only("definitions").get(pk=cluster_id).definitions == _stored(definitions)


def unchanged_nodes(cluster_id: int, reports: Collection[NodeReport]) -> set[str]:
    """Return the names of the nodes whose rows were written from these reports; nothing is written."""
    nodes = Node.objects.filter(cluster_id=cluster_id, gone=False, name__in=[report.name for report in reports])
    known = {name: base or report for name, report, base in nodes.values_list("name", "report", "facts__base")}
    return {report.name for report in reports if known.get(report.name) == report}


class NodeChanges(NamedTuple):
    """Result of `apply_node_changes`: added and changed nodes, names of deleted nodes, and the kinds of changes.

    `before` contains the reports of the changed nodes before the change, by node ID.
    """

    added: Sequence[Node] = ()
    changed: Sequence[Node] = ()
    before: Mapping[int, NodeReport] = {}
    deleted: Sequence[str] = ()
    events: frozenset[Event] = frozenset()


def apply_node_changes(cluster: Cluster, changes: Changes) -> NodeChanges:
    """Write changed nodes and definitions."""
    if changes.definitions is None and not changes.nodes and not changes.nodes_gone:
        return NodeChanges()
    events: set[Event] = set()
    layout_changed = False
    if changes.definitions is not None:
        events |= _definition_events(cluster.definitions, changes.definitions)
        layout_changed = _part_of_layout(cluster.definitions) != _part_of_layout(changes.definitions)
        cluster.definitions = _stored(changes.definitions)
        cluster.inventory_revision = cluster.decisive_revision = cluster.definitions_revision = cluster.revision
        written = ["definitions", "definitions_revision", "inventory_revision", "decisive_revision"]
        cluster.save(update_fields=written)
    known = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=_names(changes))}
    before = {node.pk: node.report for node in known.values()}
    reports = merge_node_reports(cluster, changes.nodes, known)
    added = [
        _write_report(new(Node, cluster_id=cluster.pk, name=report.name), report, cluster)
        for report in reports
        if report.name not in known
    ]
    changed, decisive = [], False
    for report in reports:
        node = known.get(report.name)
        if node is not None and (node.report != report or node.gone):
            events |= {Event.NODE_ADDED} if node.gone else differences(node.report, report)
            decisive |= node.gone or _decisive_part(node.report) != _decisive_part(report)
            changed.append(_write_report(node, report, cluster))
    leaving = [known[name] for name in changes.nodes_gone if name in known]
    # Loads may lack placements whose effects are due. The end of the transaction writes them and deletes empty nodes.
    may_hold = cluster.effects_due_since is not None
    for node in leaving:
        if node.pods or may_hold:
            report = msgspec.structs.replace(node.report, ready=False, unschedulable=True)
            changed.append(_write_report(node, report, cluster, gone=True))
    empty = [] if may_hold else [node for node in leaving if not node.pods]
    insert(added)
    write_columns(changed, (*FACT_COLUMNS, "changed_revision", "sampled_revision", "gone"))
    _delete(empty)
    events |= {Event.NODE_ADDED} if added else set()
    events |= {Event.NODE_REMOVED} if leaving else set()
    layout_changed = layout_changed or bool(added or empty)
    if layout_changed or changed:
        recompute_totals(cluster, same_layout=not layout_changed, decisive=layout_changed or decisive or bool(leaving))
    return NodeChanges(added, changed, before, [node.name for node in empty], frozenset(events))


def _stored(definitions: ClusterContent) -> ClusterContent:
    """Return definitions as the cluster's row stores them: nodes and pods have rows of their own."""
    return msgspec.structs.replace(definitions, nodes=(), running=(), pending=())


def _definition_events(before: ClusterContent, after: ClusterContent) -> set[Event]:
    """Return the events for changed definitions."""
    events = {Event.NAMES_CHANGED}  # always sent: changes of definitions are too rare to justify a comparison
    if before.storage != after.storage:
        events.add(Event.STORAGE_CHANGED)
    if before.quotas != after.quotas:
        events.add(Event.QUOTA_CHANGED)
    if (before.devices.classes, before.devices.extended) != (after.devices.classes, after.devices.extended):
        events.add(Event.DEVICE_CLASS)
    return events


def _part_of_layout(content: ClusterContent) -> tuple[object, ...]:
    """Return the definitions that require a snapshot reload when they change.

    `ClusterState.redefine` applies changes of the other definitions in place.
    """
    return content.quotas, content.pod_usages


def _names(changes: Changes) -> list[str]:
    return [*(report.name for report in changes.nodes), *changes.nodes_gone]


def _decisive_part(report: NodeReport) -> NodeReport:
    """Return the facts that can make a decision on earlier facts wrong; measured use and images only affect scores."""
    return msgspec.structs.replace(report, usage=None, observed_at="", image_sizes=b"")


def _write_report(node: Node, report: NodeReport, cluster: Cluster, *, gone: bool = False) -> Node:
    before = None if node._state.adding else node.report
    if is_sampled(before, report):
        node.sampled_revision = cluster.revision
    node.changed_revision, node.gone = cluster.revision, gone
    return set_report(node, report)


def is_synced(cluster: Cluster) -> bool:
    """Return whether a cluster's data is complete and fresh: decisions on stale data may assign resources in use.

    Complete and fresh means that the current informer listed every required resource completely and received data for
    it within `STALE`, and the connection has no recorded failure. Clusters imported from files are always in sync.
    """
    if cluster.kind != ClusterKind.KUBERNETES:
        return True
    syncs = Sync.objects.filter(cluster=cluster, cluster__connection__failure="", required=True)
    fresh = Q(epoch=F("cluster__connection__follower_epoch"), synced_at__isnull=False, alive_at__gte=Now() - STALE)
    return syncs.exists() and not syncs.exclude(fresh).exists()


def delete_nodes(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Delete nodes without allocations, and update the cluster's totals."""
    _delete(nodes)
    recompute_totals(cluster)


def _delete(nodes: Sequence[Node]) -> None:
    for some in batched([node.pk for node in nodes]):
        Node.objects.filter(pk__in=some).delete()
