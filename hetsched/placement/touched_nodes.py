"""The nodes that a transaction touches, and the live patches that publish their changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import NamedTuple

from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.inventory.actions import node_topic
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_events import NodeChanges, delete_nodes
from hetsched.inventory.node_loads import copy_load
from hetsched.inventory.tiles import NO_NODE, node_facts_patch, node_load, tile
from hetsched.journal.publish import Patch
from hetsched.placement.queries.topics import held_document


class HeldResources(NamedTuple):
    """The columns of a reservation that its document shows."""

    requests: dict[str, int]
    allocation: Allocation
    since: datetime


class TouchedNodes:
    """The nodes with changed facts, loads or reservations of one transaction.

    `held` maps the ID of a node and the key of a pod to the pod's new reservation, None if it ended.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.held: dict[int, dict[str, HeldResources | None]] = defaultdict(dict)
        self._cluster = cluster
        self._changed: dict[int, Node] = {}  # nodes with changed facts, by ID
        self._before: dict[int, NodeReport] = {}  # their reports before the change
        self._added: set[int] = set()  # IDs of those that this transaction adds
        self._nodes: dict[int, Node] = {}  # nodes to publish, by ID
        self._deleted: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._nodes or self._deleted)

    @property
    def has_changed_facts(self) -> bool:
        """Return True if nodes were added, changed or deleted."""
        return bool(self._changed or self._deleted)

    def add(self, nodes: NodeChanges) -> None:
        """Add nodes with changed facts and the names of deleted nodes."""
        self._changed.update((node.pk, node) for node in (*nodes.added, *nodes.changed))
        self._before.update(nodes.before)
        self._added.update(node.pk for node in nodes.added)
        self._deleted += nodes.deleted

    def finish(self, loaded: Mapping[int, Node]) -> None:
        """Add the nodes with written loads, and delete the nodes that are gone and have no pods."""
        for node_id, node in self._changed.items():
            node.cluster = self._cluster
            if node_id in loaded:
                copy_load(loaded[node_id], node)
        self._nodes = {**loaded, **self._changed}
        empty = {node_id: node for node_id, node in self._nodes.items() if node.gone and not node.pods}
        if empty:
            delete_nodes(self._cluster, list(empty.values()))
            self._deleted += [self._nodes.pop(node_id).name for node_id in empty]

    def tiles(self) -> Patch:
        """Return the patch of the nodes in the cluster's document."""
        return {node.name: tile(node) for node in self._nodes.values()} | dict.fromkeys(self._deleted)

    def patches(self) -> dict[str, Patch | Callable[[], Patch]]:
        """Return the patches of the topics of nodes; the patch of a deleted node removes all keys."""
        patches: dict[str, Patch | Callable[[], Patch]] = {
            node_topic(self._cluster, name): dict(NO_NODE) for name in self._deleted
        }
        for node in self._nodes.values():
            patches[node_topic(self._cluster, node.name)] = partial(self._patch, node)
        return patches

    def _patch(self, node: Node) -> Patch:
        """Return the patch of a node: changed facts, the load, and new and ended reservations."""
        facts = node_facts_patch(node, self._before.get(node.pk)) if node.pk in self._changed else {}
        held = self.held.get(node.pk, {})
        pods = {key: None if columns is None else held_document(*columns) for key, columns in held.items()}
        return {**facts, **node_load(node), "pods": pods}
