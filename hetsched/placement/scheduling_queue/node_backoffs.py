"""Back-off of an owner of pods from the nodes that rejected its pods.

Per owner and node, the back-off is 1 minute after the first rejection, 30 minutes after the second and 60 minutes after
each further rejection. After a back-off one pod is tried, and the next pod only once the first pod runs. A kubelet that
rejects every pod therefore gets at most three tries an hour: of any four consecutive tries the last is at least 91
minutes after the first. Pods that were in flight at the first rejection belong to the same try. After a day without a
rejection the count restarts.
Per owner, over all nodes: if 3 nodes rejected pods of the owner within an hour and none of its pods has run on any node
since, the owner backs off for 1 minute after the latest rejection, then for 2, 4, 8 and at most 10 minutes, one step
for each further node.
Source: kubernetes/kubernetes#84869; the durations are hetsched's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db.models import Q, QuerySet

from hetsched.engine.cluster.avoided_nodes import AvoidedNodes, NodeRejections
from hetsched.inventory.models import Node
from hetsched.storage.batches import batched

from ..models import Pod, Rejection

STEPS = (timedelta(minutes=1), timedelta(minutes=30), timedelta(minutes=60))
RESET_AFTER = timedelta(hours=24)
OWNER_BACKOFF_NODES = 3
OWNER_BACKOFF_WITHIN = timedelta(hours=1)
MAX_OWNER_BACKOFF_MINUTES = 10
MAX_CLOCK_SKEW = timedelta(seconds=5)


def node_backoff(step: int) -> timedelta:
    """Return the back-off on a node after the n-th consecutive rejection."""
    return STEPS[min(step, len(STEPS)) - 1]


def owner_backoff(nodes: int) -> timedelta | None:
    """Return the back-off of an owner whose pods this many nodes rejected recently, or None if too few did."""
    if nodes < OWNER_BACKOFF_NODES:
        return None
    return timedelta(minutes=min(2 ** (nodes - OWNER_BACKOFF_NODES), MAX_OWNER_BACKOFF_MINUTES))


def active(cluster_id: int, at: datetime) -> QuerySet[Rejection]:
    """Return the rejections in effect at a time."""
    rows = Rejection.objects.filter(cluster_id=cluster_id, created_at__lte=at)
    return rows.filter(Q(cleared_at=None) | Q(cleared_at__gt=at))


def node_rejections(node: Node, at: datetime) -> list[Rejection]:
    """Return the rejections of one node in effect at a time, the oldest first."""
    return list(active(node.cluster_id, at).filter(node=node).order_by("id"))


class AvoidedNodesCache:
    """Cache of the latest result of `avoided` for one cluster.

    A result is valid until the cluster's revision or, at a known time, a back-off changes. The clocks of other
    processes may be ahead, so a stored time may still be in the future by the clock of this process. The result is
    therefore also read again after `MAX_CLOCK_SKEW`.
    """

    def __init__(self, cluster_id: int) -> None:
        self._cluster_id = cluster_id
        self._revision = -1
        self._since = self._until = datetime.min.replace(tzinfo=UTC)
        self._current: dict[str, AvoidedNodes] = {}

    def current(self, revision: int, at: datetime, *, any_rejections: bool) -> dict[str, AvoidedNodes]:
        """Return the current result of `avoided`.

        `revision` is the latest revision read before the call; `any_rejections` is True if the cluster had rejections
        at that revision.
        """
        if revision != self._revision or not self._since <= at < self._until:
            rows = _rows(self._cluster_id, at) if any_rejections else []
            ends = [end for row in rows for end in (row.until, row.rest_until) if end and end > at]
            self._current = _avoided(self._cluster_id, rows, at)
            self._revision, self._since, self._until = revision, at, min([at + MAX_CLOCK_SKEW, *ends])
        return self._current

    def mark_unchanged(self, revision: int) -> None:
        """Record that the commit of this revision changed none of the inputs of `avoided`."""
        if self._revision == revision - 1:
            self._revision = revision


def avoided(cluster_id: int, at: datetime) -> dict[str, AvoidedNodes]:
    """Return for each owner the back-offs from nodes of the cluster that are in effect at time `at`."""
    return _avoided(cluster_id, _rows(cluster_id, at), at)


def _rows(cluster_id: int, at: datetime) -> list[Rejection]:
    return list(active(cluster_id, at).select_related("node").defer("node__report").order_by("id"))


def _avoided(cluster_id: int, rejections: Iterable[Rejection], at: datetime) -> dict[str, AvoidedNodes]:
    by_owner: dict[str, dict[str, list[Rejection]]] = defaultdict(lambda: defaultdict(list))
    for row in rejections:
        by_owner[row.owner][row.node.name].append(row)
    if not by_owner:
        return {}
    running = _running(cluster_id, {name for nodes in by_owner.values() for name in nodes}, at)
    return {
        owner: AvoidedNodes(
            {name: _node_rejections(rows, at, running[name]) for name, rows in nodes.items()},
            _owner_rejections(nodes, at),
        )
        for owner, nodes in by_owner.items()
    }


def _node_rejections(rows: list[Rejection], at: datetime, running: frozenset[str]) -> NodeRejections:
    last = rows[-1]
    return NodeRejections(len(rows), last.reason, _clock(last.until), at < last.until, running)


def _owner_rejections(nodes: dict[str, list[Rejection]], at: datetime) -> NodeRejections | None:
    backing_off = [
        row for rows in nodes.values() for row in rows if row.rest_until is not None and not row.ran_elsewhere
    ]
    last = max(backing_off, key=lambda row: row.pk, default=None)
    if last is None or last.rest_until is None or last.rest_until <= at:
        return None
    return NodeRejections(sum(map(len, nodes.values())), last.reason, _clock(last.rest_until), backs_off=True)


def _running(cluster_id: int, node_names: Iterable[str], at: datetime) -> dict[str, frozenset[str]]:
    """Return for each node the keys of the pods that ran on it at time `at`."""
    running: dict[str, set[str]] = defaultdict(set)
    rows = Pod.objects.filter(cluster_id=cluster_id, started_at__lte=at)
    rows = rows.filter(Q(finished_at=None) | Q(finished_at__gt=at))
    for names in batched(sorted(set(node_names))):
        for node, namespace, name in rows.filter(node__name__in=names).values_list("node__name", "namespace", "name"):
            running[node].add(f"{namespace}/{name}")
    return defaultdict(frozenset, {node: frozenset(keys) for node, keys in running.items()})


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M UTC")
