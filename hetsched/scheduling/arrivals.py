"""Place arriving pods of a live cluster before they have rows.

A pod that arrives alone is usually placed immediately. Its row, decision and reservation then need one transaction
instead of two, which halves the delay until its binding. This module schedules such pods on the snapshot and commits
the placements with `record_placed_arrivals`. All other pods become rows of the queue: pods that do not fit, that belong
to a gang, that have scheduling gates or a problem, or that a submission created. While pods in the queue are due, every
arriving pod joins the queue, so the queue order is preserved. If one batch decides all due pods, and no arriving pod
precedes any of them in queue order, the arriving pods wait for that batch instead. If more pods arrive than one
transaction accepts, the first pods in queue order are tried, with alternating namespaces at equal priority, and the
other pods are left for the next call. As for pods of the queue, the decision time is charged to the namespaces.
Invariant: a pod that is not committed is not assumed in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog
from django.conf import settings
from django.utils import timezone

from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import ClusterColumns, Contradiction
from hetsched.placement.actions.image_platforms import allowed_registries
from hetsched.placement.actions.submissions import build_pod_rows
from hetsched.placement.actions.watch.placed_arrivals import record_placed_arrivals
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod, lowest_active_priority
from hetsched.placement.scheduling_queue.decision_time import namespaces_over_share
from hetsched.placement.scheduling_result import Result
from hetsched.policies.effective import ActivePolicies, Chooser

from .arrival_buffer import ArrivalBuffer
from .arrival_order import ArrivalOrder
from .leases import Lease
from .node_labels import with_node_labels
from .scheduling_cycle import SchedulingCycle
from .scheduling_loop import count_batch

# A batch ends after LONGEST_SECONDS. If it has tried fewer pods than FEWEST_PODS by then, its pods take long to decide,
# and all undecided pods join the queue, where namespaces share the decision time. If no pod is being bound, the batch
# has at most FIRST_PODS and ends after FIRST_SECONDS, so that the first pods of a backlog are bound while the next are
# decided.
LONGEST_SECONDS, FEWEST_PODS, FIRST_SECONDS, FIRST_PODS = 0.5, 100, 0.05, 50
log = structlog.get_logger(__name__)


class PlacedBatch(msgspec.Struct, frozen=True):
    """The placements of one transaction, in the order of the decisions, and the handling of other arriving pods.

    Pods with keys in `tried` that are not placed join the queue. The remaining pods stay in the buffer for the next
    call if `others_wait` is True; otherwise they join the queue too. `is_after_queue` is True if nothing was tried,
    because the next batch of the queue comes first.
    """

    results: list[Result] = []
    tried: frozenset[str] = frozenset()
    others_wait: bool = False
    is_after_queue: bool = False


class ArrivalScheduler:
    """Scheduler of the arriving pods of one cluster, in the process that watches the cluster and is its leader."""

    def __init__(self, cache: SchedulerCache, name: str) -> None:
        self._cache = cache
        self._name = name
        self._cluster: Cluster | None = None
        self._definitions_revision = -1
        self._active: ActivePolicies | None = None  # the commit checks that these versions are still active
        self._chooser: Chooser | None = None  # has the rules as of the time when the columns were read
        self._chooser_columns: ClusterColumns | None = None
        self._order = ArrivalOrder()

    def place(
        self,
        arrivals: ArrivalBuffer,
        lease: Lease,
        follower_epoch: int,
        *,
        most: int,
        copies_labels: bool = False,
        is_first: bool = False,
        lag: float = 0.0,
    ) -> PlacedBatch:
        """Try the first of the arriving pods, at most `most`; place and commit the pods that fit now.

        With `copies_labels`, each reservation contains the labels that the API server will copy from the node to the
        pod, so that the watch confirmation of the binding changes nothing. `is_first` is True if no pod is being bound.
        `lag` is the maximum age in seconds of the known state of the cluster.
        Raises: Conflict if another transaction was committed on the cluster in the meantime.
        """
        if not arrivals or allowed_registries():
            return PlacedBatch()
        with self._cache.locked_snapshot(lag=lag) as snapshot:
            columns = self._cache.columns
            assert columns is not None
            if columns.follower_epoch != follower_epoch or columns.shadow_of:
                return PlacedBatch()
            if columns.has_due_pods:
                is_after_queue = self._comes_after_queue(arrivals, columns, most)
                return PlacedBatch(others_wait=is_after_queue, is_after_queue=is_after_queue)
            try:
                return self._place(
                    snapshot, columns, arrivals, lease, most=most, copies_labels=copies_labels, is_first=is_first
                )
            except Contradiction as refusal:
                log.info("arriving pods moved to the queue", cluster=lease.cluster_id, reason=str(refusal))
                return PlacedBatch()

    def _comes_after_queue(self, arrivals: ArrivalBuffer, columns: ClusterColumns, most: int) -> bool:
        """Return True if the due pods are at most `most` and no arriving pod precedes any of them in queue order."""
        policy = self._cache.default_policy()
        used_seconds = namespaces_over_share(columns.decision_time, timezone.now().timestamp())
        if policy is None or not policy.sorts_by_priority or used_seconds:
            return False
        lowest = lowest_active_priority(self._cache.cluster_id, most)
        return lowest is not None and all(
            pod.spec is None or pod.spec.priority <= lowest for pod in arrivals.pods.values()
        )

    def _place(
        self,
        snapshot: ClusterSnapshot,
        columns: ClusterColumns,
        arrivals: ArrivalBuffer,
        lease: Lease,
        *,
        most: int,
        copies_labels: bool,
        is_first: bool,
    ) -> PlacedBatch:
        active = self._active = self._active or ActivePolicies()
        default = active.specs([columns.policy_name]).get(columns.policy_name)
        if default is None:
            return PlacedBatch()
        policy = self._cache.policy(default)
        used_seconds = namespaces_over_share(columns.decision_time, timezone.now().timestamp())
        most = min(most, FIRST_PODS) if is_first else most
        direct, joining = self._order.first(arrivals, most, policy, snapshot.state, used_seconds)
        # While a deleted pod of the same name holds resources, the new pod joins the queue.
        pods = [spec for spec in direct if spec.key not in snapshot.state.placed_pods]
        rows = {row.key: row for row in self._rows(columns, pods, active)}
        pending = [_pending(row, -place) for place, row in enumerate(rows.values(), start=1)]
        specs = active.specs({columns.policy_name, *(pod.policy for pod in pending)})
        cycle = SchedulingCycle(self._cache, snapshot, specs, settings.HETSCHED_TOP_NODES, has_refused_evictions=False)
        digest, done = snapshot.state.digest(), False
        try:
            seconds = FIRST_SECONDS if is_first else LONGEST_SECONDS
            results, late = cycle.place(pending, policy, seconds, used_seconds)
            if cycle.failed:
                return PlacedBatch()
            others_wait = is_first or not late or len(pending) - len(late) >= FEWEST_PODS
            tried = frozenset([*joining, *(spec.key for spec in direct)]) - late
            if not results:
                return PlacedBatch(tried=tried, others_wait=others_wait)
            if copies_labels:
                results = with_node_labels(snapshot.state, results)
            spent = self._cache.seconds_to_charge()
            committed = record_placed_arrivals(
                lease.cluster_id,
                [(rows[result.waiting.spec.key], result) for result in results],
                revision=snapshot.revision,
                epoch=lease.epoch,
                snapshot=digest,
                spent=spent,
            )
            done = True
        finally:
            if not done:
                self._active = self._chooser = None
            if cycle.failed:
                self._cache.invalidate()
            elif not done:
                cycle.undo()
        self._cache.mark_charged(spent)
        self._cache.mark_committed(committed.revision, [result.waiting.spec.key for result in results])
        count_batch(self._name, results, cycle.took_seconds)
        return PlacedBatch(committed.results, tried, others_wait)

    def _rows(self, columns: ClusterColumns, pods: Sequence[PodSpec], active: ActivePolicies) -> list[Pod]:
        """Return unsaved rows of the pods, except pods whose request or policy is invalid."""
        if self._cluster is None or self._definitions_revision != columns.definitions_revision:
            self._cluster = Cluster.objects.get(pk=self._cache.cluster_id)
            self._definitions_revision = columns.definitions_revision
        self._cluster.policy_name = columns.policy_name
        if self._chooser is None or self._chooser_columns is not columns:
            self._chooser, self._chooser_columns = Chooser(self._cluster, active), columns
        rows = build_pod_rows(self._cluster, pods, "", None, Pod.WATCHED, self._chooser)
        return [row for row in rows if row.spec.ready]


def _pending(row: Pod, place: int) -> PendingPod:
    """Return a pending pod that has no row yet; `place`, a negative number, is used instead of its ID."""
    return PendingPod(place, None, row.spec, row.policy, row.policy_rule, row.state, 0, None, row.uid)
