"""Snapshots of a cluster: the engine's state, loaded from the database.

A load first builds the state of the nodes and of the reservations that existed when the usage of the nodes was sampled
(`Cluster.baseline_revision` or, if later, `Node.sampled_revision`); then it applies every later reservation and
release. Nominated pods are assumed in addition to their victims, so that no pod of lower priority is placed on the
resources of the victims. The reservations on a node may therefore exceed its capacity; the node then accepts no pod.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from sys import intern
from typing import NamedTuple

import msgspec
from django.db.models import F, Q, QuerySet

from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.completion import CompletedAllocations
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.status import ProtectedPods
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.storage.batches import batched
from hetsched.storage.hot_statements import RESERVATION

from .models import Eviction, Nomination, Reservation
from .shared_parts import SharedParts

_ROWS_AT_ONCE = 1000
# In clusters without kubelets, victims can be removed immediately.
_EVICTING = frozenset({ClusterKind.OFFLINE, ClusterKind.DEMO})
_NOMINATING = frozenset({ClusterKind.KUBERNETES})
_NODE = ("id", "name", "report", "unschedulable", "sampled_revision")
_NOMINATION = (
    "id", "revision", "ended_revision", "allocation", "node__name", "pod__namespace", "pod__name", "pod__spec",
)  # fmt: skip


class ReservationColumns(NamedTuple):
    """The columns of a reservation that a snapshot needs, in the order of `hot_statements.RESERVATION`.

    `changed_spec` is the request after an in-place change. Creating models took three quarters of the time of a load.
    """

    revision: int
    released_revision: int | None
    allocation: Allocation
    changed_spec: PodSpec | None
    node: str
    namespace: str
    pod_name: str
    uid: str
    pod_spec: PodSpec

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    @property
    def spec(self) -> PodSpec:
        """The pod during this reservation, with its uid in the cluster, which the kubelet uses to identify it."""
        spec = self.pod_spec if self.changed_spec is None else self.changed_spec
        return spec if spec.uid == self.uid else msgspec.structs.replace(spec, uid=self.uid)

    def is_active_at(self, revision: int) -> bool:
        """Return True if the reservation is not released yet at a revision."""
        return self.released_revision is None or self.released_revision > revision


class Nominee(msgspec.Struct, frozen=True):
    """A nominated pod in the state: assumed on `node` until its `victims` (keys, uids) have ended."""

    node: str
    victims: frozenset[tuple[str, str]]


class ClusterSnapshot(msgspec.Struct):
    """The engine state of a cluster at one cluster revision.

    `evicts` is True if victims can be removed immediately. `nominates` is True if victims are evicted through the API
    server. `nominees` contains the nominated pods that are assumed in the state.
    """

    state: ClusterState
    node_ids: dict[str, int]
    revision: int
    evicts: bool
    nominates: bool = False
    completed: CompletedAllocations = msgspec.field(default_factory=CompletedAllocations)
    nominees: dict[str, Nominee] = msgspec.field(default_factory=dict)
    committed_revisions: set[int] = msgspec.field(
        default_factory=set
    )  # later revisions whose reservations are already in the state


def load_state(cluster_id: int, *, at_revision: int | None = None) -> ClusterSnapshot:
    """Load the engine state of a cluster: the current state, or the reservations of a revision on the current nodes.

    The revision is read before the rows, so the next refresh adds reservations that were written between these reads.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    revision = cluster.revision if at_revision is None else at_revision
    nodes = list(Node.objects.filter(cluster_id=cluster_id).only(*_NODE))
    baseline = min(cluster.baseline_revision, revision)
    sampled = {node.name: min(max(node.sampled_revision, baseline), revision) for node in nodes}
    rows = Reservation.objects.filter(cluster_id=cluster_id, revision__lte=revision)
    # Skip reservations that began and ended since the baseline: they have no effect, and there may be many.
    alive = Q(released_revision=None) | Q(released_revision__gt=revision)
    alive |= Q(revision__lte=baseline, released_revision__gt=baseline)
    since = F("node__sampled_revision")
    alive |= Q(revision__lte=since, released_revision__gt=since)
    reserved = _columns(rows.filter(alive))
    sampled_reservations = [
        reservation
        for reservation in reserved
        if reservation.revision <= sampled[reservation.node] and reservation.is_active_at(sampled[reservation.node])
    ]
    running = [
        msgspec.structs.replace(reservation.spec, node_name=reservation.node, allocation=reservation.allocation)
        for reservation in sampled_reservations
    ]
    reports = [effective_report(node) for node in nodes]
    state = ClusterState.of(cluster.definitions, nodes=reports, running=running, clocked=True)
    for reservation in sampled_reservations:
        if reservation.released_revision is not None and reservation.released_revision <= revision:
            state.forget(reservation.key)
    snapshot = ClusterSnapshot(state, {node.name: node.pk for node in nodes}, revision, cluster.kind in _EVICTING)
    for reservation in reserved:
        if reservation.revision > sampled[reservation.node] and reservation.is_active_at(revision):
            assume(state, reservation, snapshot.completed)
    for reservation in sampled_reservations:
        if reservation.is_active_at(revision):
            snapshot.completed.note(state, state.placed_pods[reservation.key], reservation.allocation)
    if cluster.kind in _NOMINATING:
        snapshot.nominates = True
        state.spared = ProtectedPods(foreign=True)
        nominations = Nomination.objects.filter(cluster_id=cluster_id, revision__lte=revision)
        assume_nominated(snapshot, nominations.filter(Q(ended_revision=None) | Q(ended_revision__gt=revision)))
    snapshot.completed.complete(state)
    return snapshot


def state_of(node_ids: Collection[int]) -> ClusterState:
    """Load only these nodes with their active reservations, as the current transaction sees them."""
    nodes: list[Node] = []
    reserved: list[ReservationColumns] = []
    for some in batched(sorted(node_ids)):
        nodes += Node.objects.filter(pk__in=some).only(*_NODE)
        reserved += _columns(Reservation.objects.filter(node__in=some, active=True))
    state = ClusterState([effective_report(node) for node in nodes])
    completed = CompletedAllocations()
    for reservation in sorted(reserved, key=attrgetter("revision")):  # those of one revision are in order already
        assume(state, reservation, completed)
    completed.complete(state)
    return state


def _columns(rows: QuerySet[Reservation]) -> list[ReservationColumns]:
    """Return reservations in the order in which they began; equal parts of their pods are the same objects."""
    found = rows.order_by("revision", "id").values_list(*RESERVATION)
    share = SharedParts()
    # Read in parts, because the JSON of all rows would need more memory than the decoded pods.
    return [
        ReservationColumns(
            revision, released, share.allocation(allocation), changed, intern(node), namespace, name, uid,
            share.spec(spec),
        )
        for revision, released, allocation, changed, node, namespace, name, uid, spec in found.iterator(_ROWS_AT_ONCE)
    ]  # fmt: skip


def assume_nominated(snapshot: ClusterSnapshot, nominations: QuerySet[Nomination]) -> None:
    """Assume nominated pods on their nodes in addition to their victims."""
    state = snapshot.state
    rows = nominations.select_related("pod", "node").only(*_NOMINATION).order_by("revision", "id")
    found = {row.pk: row for row in rows}
    victims: dict[int, set[tuple[str, str]]] = {pk: set() for pk in found}
    evictions = Eviction.objects.filter(nomination_id__in=found).select_related("victim")
    for eviction in evictions.only("nomination_id", "victim__namespace", "victim__name", "victim__uid"):
        victims[eviction.nomination_id or 0].add((eviction.victim.key, eviction.victim.uid))
    for row in found.values():
        if row.node.name in state.row_of and row.pod.key not in state.placed_pods:
            request = state.compile(row.pod.spec)
            snapshot.completed.assume(state, request, state.row_of[row.node.name], row.allocation)
            snapshot.nominees[row.pod.key] = Nominee(row.node.name, frozenset(victims[row.pk]))


def assume(state: ClusterState, reservation: ReservationColumns, completed: CompletedAllocations) -> None:
    row = state.row_of[reservation.node]
    completed.assume(state, state.compile(reservation.spec), row, reservation.allocation)


def contains_revision(snapshot: ClusterSnapshot, revision: int) -> bool:
    """Return True if the state contains the reservations of a revision."""
    return revision <= snapshot.revision or revision in snapshot.committed_revisions
