"""The engine's state of a cluster, out of the database, and kept warm.

Problem: a decision needs the whole cluster in memory; loading it for each batch costs more than deciding.
Rule: the state is a fold: nodes and what was booked when their usage was sampled (`Cluster.baseline_revision`), then
every booking and release since. `Warm` keeps it and applies what happened since its revision: facts of single nodes,
releases, bookings. Other nodes or names, facts that could complete otherwise what is held on a node, samples of usage,
and whatever else it cannot follow make it fold anew.
Invariant: a warm state equals a rebuilt one in every column, whatever happened in between. Gangs that rest after a
failure go on resting in a state that this process folds anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from django.db.models import Q

from hetsched.contracts.policy import PolicySpec
from hetsched.engine.cycle import Scheduler
from hetsched.engine.policy import Policy, compile_policy
from hetsched.engine.registry import Registry, load_registry
from hetsched.engine.state import ClusterState
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.policies.effective import active_specs

from .models import Reservation

_KEPT_POLICIES = 16
# Facts that say nothing of what is held on a node: changed ones are taken in as they are.
_LIGHT = ("ready", "unschedulable", "taints", "labels", "annotations", "problems", "source", "observed_at", "uid")
# Where placements exist only here, so does what runs: nobody else has to end it.
_EVICTING = frozenset({ClusterKind.OFFLINE, ClusterKind.DEMO})


class Loaded(msgspec.Struct):
    """A state and the revisions of the cluster it is a fold of; `evicts`: its scheduler may take pods off nodes."""

    state: ClusterState
    node_ids: dict[str, int]
    revision: int
    evicts: bool
    written: set[int] = msgspec.field(default_factory=set)  # later revisions whose bookings the state has already


def load_state(cluster_id: int, *, at_revision: int | None = None) -> Loaded:
    """Fold a cluster's rows into a state, as it is now or, with the present inventory, as it was at a revision.

    The revision is read before the rows; a booking written in between is left to the next refresh.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    revision = cluster.revision if at_revision is None else at_revision
    nodes = list(Node.objects.filter(cluster_id=cluster_id).only("id", "name", "report", "unschedulable"))
    baseline = min(cluster.baseline_revision, revision)
    rows = Reservation.objects.filter(cluster_id=cluster_id, revision__lte=revision)
    # What came and went since the baseline leaves no trace, however long the history is.
    alive = Q(released_revision=None) | Q(released_revision__gt=revision)
    alive |= Q(revision__lte=baseline, released_revision__gt=baseline)
    booked = list(rows.filter(alive).select_related("pod", "node").only(*_BOOKING).order_by("revision", "id"))
    early = [reservation for reservation in booked if reservation.revision <= baseline]
    running = [msgspec.structs.replace(r.pod.spec, node_name=r.node.name, allocation=r.allocation) for r in early]
    reports = [effective_report(node) for node in nodes]
    state = ClusterState.of(cluster.definitions, nodes=reports, running=running)
    for reservation in early:
        if reservation.released_revision is not None and reservation.released_revision <= revision:
            state.forget(reservation.pod.key)
    for reservation in booked[len(early) :]:
        if reservation.released_revision is None or reservation.released_revision > revision:
            _assume(state, reservation)
    return Loaded(state, {node.name: node.pk for node in nodes}, revision, cluster.kind in _EVICTING)


_BOOKING = (
    "id", "revision", "released_revision", "allocation", "node__name", "pod__namespace", "pod__name", "pod__spec",
)  # fmt: skip


def _assume(state: ClusterState, reservation: Reservation) -> None:
    row = state.row_of[reservation.node.name]
    state.assume(state.compile(reservation.pod.spec), row, reservation.allocation)


def _has(loaded: Loaded, revision: int) -> bool:
    """Tell whether the state has what was booked at a revision."""
    return revision <= loaded.revision or revision in loaded.written


class Warm:
    """One cluster's state in this process, with schedulers per policy revision. Use it inside `held`."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._loaded: Loaded | None = None
        self._policies: dict[tuple[str, int], Policy] = {}
        self._schedulers: dict[tuple[str, int], Scheduler] = {}
        self._resting: dict[str, float] = {}  # gangs in back-off, which no row tells of
        self._registry: Registry = load_registry()
        self._lock = threading.RLock()

    @contextmanager
    def held(self, seconds: float = -1) -> Iterator[Loaded]:
        """Give the state as it is in the database now, for this thread alone.

        Raises: TimeoutError where others have it for more than `seconds`.
        """
        if not self._lock.acquire(timeout=max(seconds, 0) if seconds != -1 else -1):
            raise TimeoutError(f"the state of cluster {self.cluster_id} is in use")
        try:
            yield self._refreshed()
        finally:
            self._lock.release()

    def _refreshed(self) -> Loaded:
        rows = Cluster.objects.values_list("revision", "layout_revision", "inventory_revision")
        revision, layout_revision, inventory_revision = rows.get(pk=self.cluster_id)
        loaded = self._loaded
        if loaded is None or layout_revision > loaded.revision:
            return self._rebuild()
        if inventory_revision > loaded.revision and not self._take_nodes(loaded):
            return self._rebuild()
        if loaded.revision == revision:
            return loaded
        if not self._catch_up(loaded, revision):
            return self._rebuild()
        return loaded

    def _rebuild(self) -> Loaded:
        self.forget()
        self._loaded = load_state(self.cluster_id)
        self._loaded.state.gangs.resting = self._resting
        return self._loaded

    def _take_nodes(self, loaded: Loaded) -> bool:
        """Apply changed facts of single nodes; return whether that was possible."""
        state = loaded.state
        rows = Node.objects.filter(cluster_id=self.cluster_id, changed_revision__gt=loaded.revision)
        for node in rows.only("id", "name", "report", "unschedulable").order_by("id"):
            report = effective_report(node)
            if not state.fits_layout(report):
                return False
            known = state.reports[state.row_of[report.name]]
            if msgspec.structs.replace(known, **{name: getattr(report, name) for name in _LIGHT}) != report:
                return False
            state.apply_report(report)
        return True

    def _catch_up(self, loaded: Loaded, revision: int) -> bool:
        """Apply bookings and releases up to `revision`; return whether that was possible."""
        if revision < loaded.revision:
            return False
        since, until = Q(revision__gt=loaded.revision), Q(released_revision__gt=loaded.revision)
        rows = Reservation.objects.filter(since | until, cluster_id=self.cluster_id, revision__lte=revision)
        changed = list(rows.select_related("pod", "node").only(*_BOOKING).order_by("revision", "id"))
        # Asked after the rows: a release that was forgotten before they were read is not among them.
        if Cluster.objects.filter(pk=self.cluster_id, forgotten_revision__gt=loaded.revision).exists():
            return False
        state, written = loaded.state, loaded.written
        for reservation in changed:
            end = reservation.released_revision
            if _has(loaded, reservation.revision) and end is not None and end <= revision and end not in written:
                state.forget(reservation.pod.key)
        for reservation in changed:
            released = reservation.released_revision is not None and reservation.released_revision <= revision
            if not _has(loaded, reservation.revision) and not released:
                if reservation.node.name not in state.row_of:
                    return False
                _assume(state, reservation)
        loaded.revision = revision
        loaded.written = {at for at in written if at > revision}
        return True

    def policy(self, spec: PolicySpec) -> Policy:
        """Return a policy revision, compiled once."""
        key = (spec.name, spec.version)
        known = self._policies.get(key)
        if known is None or known.spec != spec:
            if len(self._policies) >= _KEPT_POLICIES:
                self._policies.clear()
            known = self._policies[key] = compile_policy(spec, self._registry)
        return known

    def default_policy(self) -> Policy | None:
        """Return the active revision of the cluster's default policy, by which its queue is ordered."""
        name = Cluster.objects.values_list("policy_name", flat=True).get(pk=self.cluster_id)
        spec = active_specs({name}).get(name)
        return None if spec is None else self.policy(spec)

    def scheduler(self, spec: PolicySpec) -> Scheduler:
        """Return the scheduler of a policy revision on the present state."""
        assert self._loaded is not None
        key, policy = (spec.name, spec.version), self.policy(spec)
        known = self._schedulers.get(key)
        if known is None or known.policy is not policy:
            if len(self._schedulers) >= _KEPT_POLICIES:
                self._schedulers.clear()
            known = self._schedulers[key] = Scheduler(self._loaded.state, policy, evicts=self._loaded.evicts)
        return known

    def recorded(self, revision: int) -> None:
        """Note that what was assumed here is written, as the cluster's `revision`."""
        assert self._loaded is not None
        if revision == self._loaded.revision + 1:
            self._loaded.revision = revision
        else:
            self._loaded.written.add(revision)  # what others wrote in between is still to come

    def forget(self) -> None:
        """Drop the state; the next use folds anew."""
        self._loaded = None
        self._schedulers.clear()


_warm: dict[int, Warm] = {}
_warm_lock = threading.Lock()


def warm(cluster_id: int) -> Warm:
    """Return this process's warm copy of a cluster."""
    with _warm_lock:
        found = _warm.get(cluster_id)
        if found is None:
            found = _warm[cluster_id] = Warm(cluster_id)
        return found


def fork(cluster_id: int) -> tuple[ClusterState, int]:
    """Return a copy of the present state for a what-if, which may change it, and the revision it shows."""
    with warm(cluster_id).held() as loaded:
        return loaded.state.fork(), loaded.revision
