"""The scheduler cache: the snapshot of a cluster, updated incrementally.

A decision needs the whole cluster in memory, and loading it for each batch would take longer than the decisions.
`SchedulerCache` keeps a snapshot and applies changes since its revision: facts of single nodes, releases, reservations.
On changed nodes, GPUs and CPUs are then chosen again for the reservations that name none (`CompletedAllocations`). It
loads the snapshot again after other changes: nodes added, removed or renamed, facts that could change the GPUs and CPUs
chosen in this way, usage samples, and any other change that it cannot apply.
Invariant: an incrementally updated state equals a reloaded one in every column, after any sequence of changes. Gangs in
back-off stay in back-off when this process reloads the state.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
from django.db.models import Q
from django.utils import timezone

from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import Registry, load_registry
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import ClusterColumns, current_columns
from hetsched.policies.effective import active_specs
from hetsched.storage.hot_statements import CHANGED_RESERVATIONS

from .cluster_snapshot import (
    ClusterSnapshot,
    ReservationColumns,
    assume,
    assume_nominated,
    contains_revision,
    load_state,
)
from .models import Nomination
from .scheduling_queue.decision_time import NOTED_SECONDS
from .scheduling_queue.node_backoffs import AvoidedNodesCache

_MAX_CACHED_POLICIES = 16
_MANY = 10**9  # a process that lives long decides many pods in batches
# Facts that do not affect the reservations of a node: changed values are applied directly.
_INDEPENDENT_FACTS = (
    "ready", "unschedulable", "taints", "labels", "annotations", "problems", "source", "observed_at", "uid",
    "addresses", "declared_features", "image_sizes",
)  # fmt: skip


class SchedulerCache:
    """The cached state of one cluster in this process, and a scheduler for each policy revision in use.

    Use it inside `locked_snapshot`.
    """

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._snapshot: ClusterSnapshot | None = None
        self._policies: dict[tuple[str, int], Policy] = {}
        self._schedulers: dict[tuple[str, int], Scheduler] = {}
        self._batch_schedulers: dict[str, BatchScheduler] = {}
        self._gang_backoffs: dict[str, float] = {}  # gangs in back-off, which are not stored in rows
        self._avoided = AvoidedNodesCache(cluster_id)
        self.columns: ClusterColumns | None = None  # as read at the last refresh of the state
        self._refreshed_at = float("-inf")
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
    def locked_snapshot(self, seconds: float = -1, *, lag: float = 0.0) -> Iterator[ClusterSnapshot]:
        """Refresh the state from the database and yield it; other threads wait until the `with` block ends.

        With `lag`, changes of other processes since a refresh that is less than `lag` seconds old may be missing. The
        revision of the snapshot is then older than that of the cluster, so a commit on exactly this revision fails.
        Raises: TimeoutError if the lock is not free within `seconds`.
        """
        if not self._lock.acquire(timeout=max(seconds, 0) if seconds != -1 else -1):
            raise TimeoutError(f"the scheduler cache of cluster {self.cluster_id} is in use")
        try:
            snapshot = self._refresh(lag)
            if not snapshot.evicts:  # for clusters with kubelets, which may reject pods
                snapshot.state.avoided = self._avoided.current(
                    snapshot.revision, timezone.now(), any_rejections=self._has_rejections
                )
            yield snapshot
        finally:
            self._lock.release()

    def _refresh(self, lag: float) -> ClusterSnapshot:
        now = time.monotonic()
        if self._snapshot is not None and now - self._refreshed_at < lag:
            return self._snapshot
        snapshot = self._load_current()
        self._refreshed_at = now
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
        rows = CHANGED_RESERVATIONS(cluster=self.cluster_id, since=snapshot.revision, until=revision)
        changed = [ReservationColumns(*columns) for columns in rows]
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
                contains_revision(snapshot, reservation.revision)
                and end is not None
                and end <= revision
                and end not in written
            ):
                state.forget(reservation.key)
        for reservation in changed:
            if not contains_revision(snapshot, reservation.revision) and reservation.is_active_at(revision):
                if reservation.node not in state.row_of:
                    return False
                assume(state, reservation, snapshot.completed)
        active_ids = [one.pk for one in nominated if one.ended_revision is None or one.ended_revision > revision]
        if active_ids:
            assume_nominated(snapshot, Nomination.objects.filter(pk__in=active_ids))
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
        assert self.columns is not None
        name = self.columns.policy_name
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
                self._batch_schedulers.clear()
            evicts = self._snapshot.evicts or self._snapshot.nominates
            known = self._schedulers[key] = Scheduler(self._snapshot.state, policy, evicts=evicts)
        return known

    def batch_scheduler(self, spec: PolicySpec) -> BatchScheduler:
        """Return the compiled loop of a policy revision on the current state; loads the machine code if necessary."""
        scheduler = self.scheduler(spec)
        known = self._batch_schedulers.get(spec.name)
        if known is None or known.scheduler is not scheduler:
            known = self._batch_schedulers[spec.name] = BatchScheduler(scheduler, expected=_MANY, shortest=1)
        return known

    def seconds_to_charge(self) -> dict[str, float]:
        """Return the decision seconds per namespace that are large enough to be written with the next commit."""
        return {name: seconds for name, seconds in self.decision_seconds.items() if seconds >= NOTED_SECONDS}

    def mark_charged(self, namespaces: Iterable[str]) -> None:
        """Record that the decision seconds of these namespaces were committed."""
        for namespace in namespaces:
            del self.decision_seconds[namespace]

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

    def expire(self) -> None:
        """Let the next use refresh the state, whatever lag it permits."""
        self._refreshed_at = float("-inf")

    def invalidate(self) -> None:
        """Drop the state; the next use loads it from the database."""
        self._snapshot = None
        self._schedulers.clear()
        self._batch_schedulers.clear()


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
