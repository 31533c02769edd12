"""The scheduler cache: the engine's state of a cluster, loaded from the database and updated incrementally.

A decision needs the whole cluster in memory, and loading it for each batch would take longer than the decisions.
A load first builds the state of the nodes and of the reservations that existed when the usage of the nodes was sampled
(`Cluster.baseline_revision` or, if later, `Node.sampled_revision`); then it applies every later reservation and
release. `SchedulerCache` keeps the state and applies changes since its revision: facts of single nodes, releases,
reservations. On changed nodes, GPUs and CPUs are then chosen again for the reservations that name none
(`CompletedAllocations`). It loads the state again after other changes: nodes added, removed or renamed, facts that
could change the GPUs and CPUs chosen in this way, usage samples, and any other change that it cannot apply. Nominated
pods are assumed in addition to their victims, so that no pod of lower priority is placed on the resources of the
victims. The reservations on a node may therefore exceed its capacity; the node then accepts no pod.
Invariant: an incrementally updated state equals a reloaded one in every column, after any sequence of changes. Gangs in
back-off stay in back-off when this process reloads the state.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter

import msgspec
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.completion import CompletedAllocations
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import Registry, load_registry
from hetsched.engine.framework.status import ProtectedPods
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.inventory.node_loads import ClusterColumns, current_columns
from hetsched.policies.effective import active_specs
from hetsched.storage.batches import batched
from hetsched.storage.hot_statements import CHANGED_RESERVATIONS, RESERVATION

from .models import Eviction, Nomination, Reservation
from .scheduling_queue.node_backoffs import AvoidedNodesCache

_MAX_CACHED_POLICIES = 16
# Facts that do not affect the reservations of a node: changed values are applied directly.
_INDEPENDENT_FACTS = (
    "ready", "unschedulable", "taints", "labels", "annotations", "problems", "source", "observed_at", "uid",
    "addresses",
)  # fmt: skip
# In clusters without kubelets, victims can be removed immediately.
_EVICTING = frozenset({ClusterKind.OFFLINE, ClusterKind.DEMO})
_NOMINATING = frozenset({ClusterKind.KUBERNETES})


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
    sampled = {node.pk: min(max(node.sampled_revision, baseline), revision) for node in nodes}
    rows = Reservation.objects.filter(cluster_id=cluster_id, revision__lte=revision)
    # Skip reservations that began and ended since the baseline: they have no effect, and there may be many.
    alive = Q(released_revision=None) | Q(released_revision__gt=revision)
    alive |= Q(revision__lte=baseline, released_revision__gt=baseline)
    since = F("node__sampled_revision")
    alive |= Q(revision__lte=since, released_revision__gt=since)
    reserved = list(rows.filter(alive).select_related("pod", "node").only(*RESERVATION).order_by("revision", "id"))
    sampled_reservations = [
        reservation
        for reservation in reserved
        if reservation.revision <= sampled[reservation.node_id]
        and _is_active_at(reservation, sampled[reservation.node_id])
    ]
    running = [
        msgspec.structs.replace(_spec(reservation), node_name=reservation.node.name, allocation=reservation.allocation)
        for reservation in sampled_reservations
    ]
    reports = [effective_report(node) for node in nodes]
    state = ClusterState.of(cluster.definitions, nodes=reports, running=running, clocked=True)
    for reservation in sampled_reservations:
        if reservation.released_revision is not None and reservation.released_revision <= revision:
            state.forget(reservation.pod.key)
    snapshot = ClusterSnapshot(state, {node.name: node.pk for node in nodes}, revision, cluster.kind in _EVICTING)
    for reservation in reserved:
        if reservation.revision > sampled[reservation.node_id] and _is_active_at(reservation, revision):
            _assume(state, reservation, snapshot.completed)
    for reservation in sampled_reservations:
        if _is_active_at(reservation, revision):
            snapshot.completed.note(state, state.placed_pods[reservation.pod.key], reservation.allocation)
    if cluster.kind in _NOMINATING:
        snapshot.nominates = True
        state.spared = ProtectedPods(foreign=True)
        nominations = Nomination.objects.filter(cluster_id=cluster_id, revision__lte=revision)
        _assume_nominated(snapshot, nominations.filter(Q(ended_revision=None) | Q(ended_revision__gt=revision)))
    snapshot.completed.complete(state)
    return snapshot


def state_of(node_ids: Collection[int]) -> ClusterState:
    """Load only these nodes with their active reservations, as the current transaction sees them."""
    nodes: list[Node] = []
    reserved: list[Reservation] = []
    for some in batched(sorted(node_ids)):
        nodes += Node.objects.filter(pk__in=some).only(*_NODE)
        reserved += (
            Reservation.objects.filter(node__in=some, active=True).select_related("pod", "node").only(*RESERVATION)
        )
    state = ClusterState([effective_report(node) for node in nodes])
    completed = CompletedAllocations()
    for reservation in sorted(reserved, key=attrgetter("revision", "pk")):
        _assume(state, reservation, completed)
    completed.complete(state)
    return state


def _is_active_at(reservation: Reservation, revision: int) -> bool:
    """Return True if the reservation is not released yet at a revision."""
    return reservation.released_revision is None or reservation.released_revision > revision


_NODE = ("id", "name", "report", "unschedulable", "sampled_revision")
_NOMINATION = (
    "id", "revision", "ended_revision", "allocation", "node__name", "pod__namespace", "pod__name", "pod__spec",
)  # fmt: skip


def _assume_nominated(snapshot: ClusterSnapshot, nominations: QuerySet[Nomination]) -> None:
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


def _assume(state: ClusterState, reservation: Reservation, completed: CompletedAllocations) -> None:
    row = state.row_of[reservation.node.name]
    completed.assume(state, state.compile(_spec(reservation)), row, reservation.allocation)


def _spec(reservation: Reservation) -> PodSpec:
    """Return the pod of a reservation with its uid in the cluster, which the kubelet uses to identify it."""
    spec, uid = reservation.request, reservation.pod.uid
    return spec if spec.uid == uid else msgspec.structs.replace(spec, uid=uid)


def _contains_revision(snapshot: ClusterSnapshot, revision: int) -> bool:
    """Return True if the state contains the reservations of a revision."""
    return revision <= snapshot.revision or revision in snapshot.committed_revisions


class SchedulerCache:
    """The cached state of one cluster in this process, and a scheduler for each policy revision in use.

    Use it inside `locked_snapshot`.
    """

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._snapshot: ClusterSnapshot | None = None
        self._policies: dict[tuple[str, int], Policy] = {}
        self._schedulers: dict[tuple[str, int], Scheduler] = {}
        self._gang_backoffs: dict[str, float] = {}  # gangs in back-off, which are not stored in rows
        self._avoided = AvoidedNodesCache(cluster_id)
        self.columns: ClusterColumns | None = None  # as read at the last refresh of the state
        self._has_nominations = self._has_rejections = True  # at the latest revision; unknown for earlier revisions
        self.decision_seconds: dict[str, float] = defaultdict(
            float
        )  # seconds of decisions per namespace, not written yet
        self._registry: Registry = load_registry()
        self._lock = threading.RLock()

    @property
    def is_cold(self) -> bool:
        """Return True if the next use loads the state from the database."""
        return self._snapshot is None

    @contextmanager
    def locked_snapshot(self, seconds: float = -1) -> Iterator[ClusterSnapshot]:
        """Refresh the state from the database and yield it; other threads wait until the `with` block ends.

        Raises: TimeoutError if the lock is not free within `seconds`.
        """
        if not self._lock.acquire(timeout=max(seconds, 0) if seconds != -1 else -1):
            raise TimeoutError(f"the scheduler cache of cluster {self.cluster_id} is in use")
        try:
            snapshot = self._refresh()
            if not snapshot.evicts:  # for clusters with kubelets, which may reject pods
                snapshot.state.avoided = self._avoided.current(
                    snapshot.revision, timezone.now(), any_rejections=self._has_rejections
                )
            yield snapshot
        finally:
            self._lock.release()

    def _refresh(self) -> ClusterSnapshot:
        snapshot = self._load_current()
        snapshot.completed.complete(snapshot.state)
        return snapshot

    def _load_current(self) -> ClusterSnapshot:
        """Return the state of the cluster's current revision; the allocations in its `completed` may be outdated."""
        current = self.columns = current_columns(self.cluster_id)
        self._has_nominations, self._has_rejections = current.has_nominations, current.has_rejections
        snapshot = self._snapshot
        if snapshot is None or current.layout_revision > snapshot.revision:
            return self._rebuild()
        if current.inventory_revision > snapshot.revision and not self._apply_node_reports(snapshot):
            return self._rebuild()
        if current.definitions_revision > snapshot.revision:
            snapshot.state.redefine(Cluster.objects.only("definitions").get(pk=self.cluster_id).definitions)
        if snapshot.revision == current.revision:
            return snapshot
        if not self._catch_up(snapshot, current.revision):
            return self._rebuild()
        return snapshot

    def _rebuild(self) -> ClusterSnapshot:
        self.invalidate()
        self._snapshot = load_state(self.cluster_id)
        self._snapshot.state.gangs.backoff_until = self._gang_backoffs
        return self._snapshot

    def _apply_node_reports(self, snapshot: ClusterSnapshot) -> bool:
        """Apply changed facts of single nodes; return False if that is not possible."""
        state = snapshot.state
        rows = Node.objects.filter(cluster_id=self.cluster_id, changed_revision__gt=snapshot.revision)
        for node in rows.only("id", "name", "report", "unschedulable").order_by("id"):
            report = effective_report(node)
            if not state.fits_layout(report):
                return False
            known = state.reports[state.row_of[report.name]]
            independent = {name: getattr(report, name) for name in _INDEPENDENT_FACTS}
            if known.numa is not None and report.numa is not None:
                # Grants that the kubelet reports are applied directly: they are not part of any reservation.
                independent["numa"] = msgspec.structs.replace(known.numa, grants=report.numa.grants)
            if msgspec.structs.replace(known, **independent) != report:
                return False
            state.apply_report(report)
        return True

    def _catch_up(self, snapshot: ClusterSnapshot, revision: int) -> bool:
        """Apply reservations and releases up to `revision`; return False if that is not possible."""
        if revision < snapshot.revision:
            return False
        changed = CHANGED_RESERVATIONS(cluster=self.cluster_id, since=snapshot.revision, until=revision)
        # Read the revision after the rows, so that it covers every release that was deleted before the rows were read.
        if current_columns(self.cluster_id).forgotten_revision > snapshot.revision:
            return False
        state, written = snapshot.state, snapshot.committed_revisions
        nominated = self._changed_nominations(snapshot, revision)
        for nomination in nominated:
            if snapshot.nominees.pop(nomination.pod.key, None) is not None:
                state.forget(nomination.pod.key)
        for reservation in changed:
            end = reservation.released_revision
            if (
                _contains_revision(snapshot, reservation.revision)
                and end is not None
                and end <= revision
                and end not in written
            ):
                state.forget(reservation.pod.key)
        for reservation in changed:
            released = reservation.released_revision is not None and reservation.released_revision <= revision
            if not _contains_revision(snapshot, reservation.revision) and not released:
                if reservation.node.name not in state.row_of:
                    return False
                _assume(state, reservation, snapshot.completed)
        active_ids = [one.pk for one in nominated if one.ended_revision is None or one.ended_revision > revision]
        if active_ids:
            _assume_nominated(snapshot, Nomination.objects.filter(pk__in=active_ids))
        snapshot.revision = revision
        snapshot.committed_revisions = {at for at in written if at > revision}
        return True

    def _changed_nominations(self, snapshot: ClusterSnapshot, revision: int) -> list[Nomination]:
        """Return the nominations that began or ended since the state's revision, up to `revision`, by id.

        A nomination that is neither in the state nor active at the latest revision has no effect on the state.
        """
        if not snapshot.nominates or not (self._has_nominations or snapshot.nominees):
            return []
        changed = Q(revision__gt=snapshot.revision) | Q(ended_revision__gt=snapshot.revision)
        rows = Nomination.objects.filter(changed, cluster_id=self.cluster_id, revision__lte=revision)
        columns = "ended_revision", "pod__namespace", "pod__name"
        return list(rows.select_related("pod").only(*columns).order_by("id"))

    def policy(self, spec: PolicySpec) -> Policy:
        """Return a compiled policy revision from the cache; compile it at its first use."""
        key = (spec.name, spec.version)
        known = self._policies.get(key)
        if known is None or known.spec != spec:
            if len(self._policies) >= _MAX_CACHED_POLICIES:
                self._policies.clear()
            known = self._policies[key] = compile_policy(spec, self._registry, implied=True)
        return known

    def default_policy(self) -> Policy | None:
        """Return the active revision of the cluster's default policy, which orders its queue."""
        name = current_columns(self.cluster_id).policy_name
        spec = active_specs({name}).get(name)
        return None if spec is None else self.policy(spec)

    def scheduler(self, spec: PolicySpec) -> Scheduler:
        """Return the scheduler of a policy revision on the current state."""
        assert self._snapshot is not None
        key, policy = (spec.name, spec.version), self.policy(spec)
        known = self._schedulers.get(key)
        if known is None or known.policy is not policy:
            if len(self._schedulers) >= _MAX_CACHED_POLICIES:
                self._schedulers.clear()
            evicts = self._snapshot.evicts or self._snapshot.nominates
            known = self._schedulers[key] = Scheduler(self._snapshot.state, policy, evicts=evicts)
        return known

    def mark_committed(self, revision: int, pods: Iterable[str] = ()) -> None:
        """Record that the commit of the cluster's `revision` contains the pods (keys) that are assumed in the state."""
        assert self._snapshot is not None
        for key in pods:
            placed = self._snapshot.state.placed_pods.get(key)
            if placed is not None:  # its allocation in the state is the committed one
                self._snapshot.completed.note(self._snapshot.state, placed, placed.allocation)
        if revision == self._snapshot.revision + 1:
            self._snapshot.revision = revision
        else:
            # The revisions in between, which other writers committed, must still be applied.
            self._snapshot.committed_revisions.add(revision)

    def mark_unchanged(self, revision: int) -> None:
        """Record that the calling process committed this revision without a change to the state."""
        if self._lock.acquire(blocking=False):
            try:
                if self._snapshot is not None and self._snapshot.revision == revision - 1:
                    self._snapshot.revision = revision
                    self._avoided.mark_unchanged(revision)
            finally:
                self._lock.release()

    def invalidate(self) -> None:
        """Drop the state; the next use loads it from the database."""
        self._snapshot = None
        self._schedulers.clear()


_caches: dict[int, SchedulerCache] = {}
_caches_lock = threading.Lock()


def cache_of(cluster_id: int) -> SchedulerCache:
    """Return this process's cached state of a cluster."""
    with _caches_lock:
        found = _caches.get(cluster_id)
        if found is None:
            found = _caches[cluster_id] = SchedulerCache(cluster_id)
        return found


def fork(cluster_id: int) -> tuple[ClusterState, int]:
    """Return a copy of the current state, which a simulation may modify, and the revision that the state represents."""
    with cache_of(cluster_id).locked_snapshot() as snapshot:
        snapshot.state.digest()  # compute the digests of the rows once: copies share them and hash only changed rows
        return snapshot.state.fork(), snapshot.revision
