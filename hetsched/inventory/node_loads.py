"""Change the load of nodes, under the cluster's lock.

`advance` is the first statement of every transaction that changes a cluster's inventory or allocations. It raises the
revision by 1 and thereby locks the row, so the next writer waits and then sees the new revision. A writer passes the
revision that its decision was based on. The decision is void if an allocation was added or a fact changed since that
revision; pods that started or ended do not invalidate the decision. `add_loads` then adds the loads to the node columns
and to the cluster's totals.
Invariant: a lost compare-and-set writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from django.db.models import Model

from hetsched.contracts.message import as_message
from hetsched.journal import counters, metric_names
from hetsched.storage.bulk_rows import update
from hetsched.storage.hot_statements import ADVANCE, CLUSTER, NODES

from .models import Cluster, Node

TOTALS = ("requested", "gpu_milli_used")
_LOAD_COLUMNS = ("requested", "pods", "gpu_milli_used")
_ANY = 2**62  # greater than any revision or epoch


class Conflict(Exception):
    """Another writer committed first, or there is a newer leader; nothing was written, and the caller may retry."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = as_message(message)


class Contradiction(Conflict):
    """Database constraints reject reservations of the transaction; a retry would fail in the same way.

    `pods` is the number of pods that were to be written together.
    """

    def __init__(self, message: str, pods: int) -> None:
        super().__init__(message)
        self.pods = pods


class Load(msgspec.Struct):
    """Resources added to a node; amounts are negative for removed resources."""

    requests: dict[str, int] = msgspec.field(default_factory=dict)
    pods: int = 0
    gpu_milli: int = 0

    def add(self, requests: Mapping[str, int], gpu_milli: int, sign: int = 1) -> None:
        for name, amount in requests.items():
            self.requests[name] = self.requests.get(name, 0) + sign * amount
        self.pods += sign
        self.gpu_milli += sign * gpu_milli


class ClusterColumns(NamedTuple):
    """The columns of a cluster that each scheduling batch reads, in the order of `hot_statements.CLUSTER_COLUMNS`.

    `follower_epoch` and `shadow_of` belong to the cluster's connection and are None for an offline cluster.
    """

    revision: int
    layout_revision: int
    inventory_revision: int
    definitions_revision: int
    forgotten_revision: int
    policy_name: str
    decision_time: dict[str, tuple[float, float]]
    follower_epoch: int | None
    shadow_of: str | None
    has_nominations: bool
    has_refused_evictions: bool
    has_rejections: bool
    has_displaceable_pods: bool
    has_due_pods: bool


def current_columns(cluster_id: int) -> ClusterColumns:
    """Read the current columns of a cluster. Raises: Cluster.DoesNotExist."""
    columns = CLUSTER.first(cluster=cluster_id)
    if columns is None:
        raise Cluster.DoesNotExist(f"cluster {cluster_id}")
    return ClusterColumns(*columns)


def advance(
    cluster_id: int,
    *,
    revision: int | None = None,
    epoch: int | None = None,
    is_exact: bool = False,
    places: bool = False,
) -> Cluster:
    """Raise the cluster's revision by 1, lock its row, and return the current row.

    With `is_exact`, any commit after `revision` is a conflict. Set `places` if the transaction inserts reservations:
    decisions in progress become void, and a later transaction (`write_placement_effects`) adds the reservations to the
    node loads.
    Raises: Conflict if a decision based on `revision` is void, or if `epoch` is not the current leader's epoch.
    """
    earliest, latest = (0, _ANY) if epoch is None else (epoch, epoch)
    decisive = _ANY if revision is None else revision
    newest = decisive if is_exact else _ANY
    rows: list[Cluster] = ADVANCE.rows(
        cluster=cluster_id,
        revision=revision or 0,
        newest=newest,
        decisive=decisive,
        earliest=earliest,
        latest=latest,
        places=int(places),
    )
    if not rows:
        if epoch is not None:
            stale = Cluster.objects.filter(pk=cluster_id).exclude(leader_epoch=epoch)
            for name in stale.values_list("name", flat=True):
                counters.add(metric_names.STALE_EPOCHS, name)
        raise Conflict(f"cluster {cluster_id} is no longer at revision {revision}, epoch {epoch}")
    return rows[0]


def add_loads(cluster: Cluster, loads: Mapping[int, Load]) -> dict[int, Node]:
    """Add loads to nodes and to the cluster's totals; return the changed nodes by id.

    The nodes are saved. The caller must save the fields `TOTALS` of the cluster together with its other changes.
    """
    nodes = {node.pk: node for node in NODES(ids=loads)}
    totals: dict[str, int] = defaultdict(int, cluster.requested)
    for node_id, load in loads.items():
        node = nodes[node_id]
        requested = dict(node.requested)
        for name, amount in load.requests.items():
            requested[name] = requested.get(name, 0) + amount
            totals[name] += amount
        node.requested = requested
        node.pods += load.pods
        node.gpu_milli_used += load.gpu_milli
        cluster.gpu_milli_used += load.gpu_milli
    cluster.requested = dict(sorted(totals.items()))
    write_loads(nodes.values())
    return nodes


def copy_load(source: Node, target: Node) -> None:
    """Copy the load columns of a node to another object of the same row."""
    for name in _LOAD_COLUMNS:
        setattr(target, name, getattr(source, name))


def write_loads(nodes: Iterable[Node]) -> None:
    """Write only the load columns of these nodes."""
    write_columns(nodes, _LOAD_COLUMNS)


def write_columns(rows: Iterable[Model], names: Collection[str]) -> None:
    """Write the named columns of many rows of one model without the huge CASE expression of `bulk_update`."""
    update(list(rows), names)
