"""Batches of watch events: one transaction writes the nodes and pods of a batch.

Writes of hetsched, writes of other clients and status updates of kubelets arrive as the same kind of event, and may be
late, duplicated or merged. A batch is written under the epoch of the informer.
Invariant: a repeated event changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from django.db import IntegrityError

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.fact_conflicts import conflict_patches
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_events import apply_node_changes
from hetsched.inventory.node_loads import Conflict, advance, current_columns
from hetsched.inventory.signals import inventory_changed
from hetsched.journal import counters, metric_names
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from ... import dispatch
from ..shadow_decisions import record_bound_pods
from .foreign_pods import charge_unassigned_pods
from .pod_transitions import BatchOutcome, PodTransitions


def apply_changes(cluster_id: int, changes: Changes, *, epoch: int, leaves_effects: bool = False) -> BatchOutcome:
    """Write a batch of changes that the informer of `epoch` observed.

    `leaves_effects` is True if the caller will write the effects of its earlier placements.
    Raises: Conflict if another informer took over, or a concurrent writer moved a pod.
    """
    try:
        return _apply_changes(cluster_id, changes, epoch, leaves_effects=leaves_effects)
    except IntegrityError as error:
        raise Conflict(f"cluster {cluster_id}: {error}") from error


def unchanged_pods(cluster_id: int, pods: Sequence[ObservedPod]) -> set[str]:
    """Return the keys of the pods whose rows already contain the observed state; nothing is written."""
    if not pods:
        return set()
    batch = PodTransitions(Cluster.objects.get(pk=cluster_id), current_columns(cluster_id))
    batch.sort(Changes(pods=list(pods)))
    return {pod.key for pod in pods} - batch.changed_keys()


def _apply_changes(cluster_id: int, changes: Changes, epoch: int, *, leaves_effects: bool) -> BatchOutcome:
    with write_transaction():
        cluster = advance(cluster_id)
        current = current_columns(cluster_id)
        if current.follower_epoch != epoch:
            counters.add(metric_names.STALE_EPOCHS, cluster.name)
            raise Conflict(f"another process watches cluster {cluster_id}")
        nodes = apply_node_changes(cluster, changes)
        if nodes.events:
            inventory_changed.send(sender=Cluster, cluster=cluster, events=nodes.events)
        batch = PodTransitions(cluster, current)
        batch.change.touch_nodes(nodes)
        if cluster.layout_revision == cluster.revision:
            charge_unassigned_pods(batch.change)
        batch.sort(changes)
        followed = batch.write(leaves_effects=leaves_effects)
        if current.shadow_of and changes.bound:
            record_bound_pods(cluster, current.shadow_of, [seen for seen in batch.charged if seen.key in changes.bound])
        _publish_conflicts(cluster, batch.conflicted_nodes)
        dispatch.wake(cluster_id)
        if changes.definitions is not None:
            dispatch.wake(cluster_id, dispatch.BIND)  # pods that wait for volume claims may be ready to bind
    only = followed.arrivals_only and not (any(nodes) or changes.nodes_gone or changes.definitions)
    return msgspec.structs.replace(followed, arrivals_only=only)


def _publish_conflicts(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Publish the current conflicts of node facts."""
    if nodes:
        publish_many(conflict_patches(cluster, nodes))
