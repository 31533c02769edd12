"""The scheduling loop: decide and record batches of pending pods for the process that hosts it.

Hosts are the informer process of a live cluster (`informer_host`) and a Celery task (`worker_host`), which serves
offline clusters and takes over from an informer process that died or lags. The host elects the leader, decides when to
iterate, and binds the placed pods or leaves them to the binding task.
One iteration refreshes the snapshot, decides a batch and records it by compare-and-set. A lost compare-and-set discards
the batch. If database constraints reject a batch, the next batch is half as large, until only the pod or gang that
causes the rejection is left. It gets the verdict *not now* with the reason `LedgerRefused`, and the other pods are
decided as usual. A node whose reservations are rejected repeatedly is quarantined. No transaction is open while the
engine runs.
Invariant: pods that are assumed in the snapshot but not recorded are removed after any failure.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog
from django.conf import settings
from django.utils import timezone

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.policy import Policy
from hetsched.inventory.node_loads import current_columns
from hetsched.journal import counters, metric_names
from hetsched.placement.actions import Conflict, Contradiction, record
from hetsched.placement.actions.reservation_conflicts import record_reservation_conflicts
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.active_queue import PendingPod, first_active_pods
from hetsched.placement.scheduling_queue.decision_time import namespaces_over_share
from hetsched.placement.scheduling_result import Result
from hetsched.policies.effective import active_specs

from .leases import Lease
from .node_labels import with_node_labels
from .scheduling_cycle import SchedulingCycle

LONGEST_BATCH_SECONDS = 2.5  # a pod that arrives during a batch waits until the batch ends
log = structlog.get_logger(__name__)


class Host(Protocol):
    """The process that runs a scheduling loop under the leader lease of its cluster."""

    @property
    def binds(self) -> bool:
        """Return True if the host binds the placed pods itself; the commit of a batch then moves them to *binding*."""

    @property
    def leaves_effects(self) -> bool:
        """Return True if the host will write the effects of its earlier placements of arriving pods."""

    @property
    def copies_labels(self) -> bool:
        """Return True if the API server copies labels of the node to the pods that this host binds."""

    def may_decide(self) -> bool:
        """Return True if the cluster's data is in sync and the cluster is not in shadow mode."""

    def still_leads(self, lease: Lease) -> bool:
        """Return True if the lease is still held after the snapshot load, which may take longer than the lease."""


class BatchState(enum.StrEnum):
    """The result of an iteration's batch; a batch that is not recorded is discarded."""

    RECORDED = "recorded"
    REFUSED = "refused"  # rejected by database constraints: the next batch is half as large
    LOST = "lost"  # another process wrote first


class Iteration(msgspec.Struct, frozen=True):
    """The result of one iteration: `results` is empty if no pod was due, and `more` is True if further pods are due."""

    state: BatchState = BatchState.RECORDED
    results: Sequence[Result] = ()
    more: bool = False


class SchedulingLoop:
    """The scheduling loop of one cluster; an iteration decides at most `most` pods."""

    def __init__(self, host: Host, cluster_id: int, name: str, most: int) -> None:
        self.cache = cache_of(cluster_id)
        self._host = host
        self._cluster_id = cluster_id
        self._name = name
        self._most = self._limit = most

    def iterate(self, lease: Lease) -> Iteration:
        """Decide and record one batch under `lease`."""
        try:
            found = self._decide(lease)
        except Contradiction as refusal:
            counters.add(metric_names.BATCHES, self._name, BatchState.REFUSED.value)
            log.warning("batch refused", cluster=self._cluster_id, pods=refusal.pods, reason=str(refusal))
            self._most = max(1, min(self._most, refusal.pods) // 2)
            return Iteration(BatchState.REFUSED, more=True)
        except Conflict as conflict:
            counters.add(metric_names.BATCHES, self._name, BatchState.LOST.value)
            log.info("batch lost", cluster=self._cluster_id, epoch=lease.epoch, reason=str(conflict))
            return Iteration(BatchState.LOST, more=True)
        self._most = min(2 * self._most, self._limit)
        return found

    def _decide(self, lease: Lease) -> Iteration:
        """Decide and record one batch.

        Raises: Conflict; Contradiction if database constraints reject the reservations of several pods.
        """
        if not self._host.may_decide():
            return Iteration()
        with self.cache.locked_snapshot() as snapshot:
            # The cache keeps the snapshot that was just loaded, so that the next iteration need not load it again.
            if not self._host.still_leads(lease):
                raise Conflict("another leader was elected")
            # The pods are read after the revision: any later change to them makes the compare-and-set fail.
            where = {"revision": snapshot.revision, "epoch": lease.epoch, "snapshot": snapshot.state.digest()}
            pods, policy = self._due_pods()
            pods, is_behind = self._without_placed(pods, snapshot)
            if not pods:
                return Iteration(more=is_behind)
            columns = self.cache.columns
            assert columns is not None
            specs, refused = _specs(pods, policy), columns.has_refused_evictions
            cycle = SchedulingCycle(
                self.cache, snapshot, specs, settings.HETSCHED_TOP_NODES, has_refused_evictions=refused
            )
            done = False
            try:
                used_seconds = namespaces_over_share(columns.decision_time, timezone.now().timestamp())
                seconds = min(settings.HETSCHED_LEASE_SECONDS / 4, LONGEST_BATCH_SECONDS)
                results = cycle.decide(pods, policy, seconds, self._most, used_seconds)
                if self._host.copies_labels:
                    results = with_node_labels(snapshot.state, results)
                results = self._record(cycle, results, where)
                done = not cycle.failed
            finally:
                if not done:
                    self.cache.invalidate()
        count_batch(self._name, results, cycle.took_seconds)
        more = is_behind or len(results) < len(pods) or len(pods) >= self._limit
        return Iteration(results=results, more=more)

    def _due_pods(self) -> tuple[list[PendingPod], Policy | None]:
        """Return the pods from which the next batch is chosen, and the default policy, which orders them."""
        policy = self.cache.default_policy()
        return first_active_pods(self._cluster_id, policy, self._limit, self.cache.decision_seconds), policy

    def _without_placed(self, pods: list[PendingPod], snapshot: ClusterSnapshot) -> tuple[list[PendingPod], bool]:
        """Return the pods without those that are placed in the snapshot, and whether the snapshot is behind.

        Another process may release a pod after the snapshot was refreshed and before the pods are read. A release voids
        no decision, so the commit would not reject a decision on such a pod.
        """
        placed, nominees = snapshot.state.placed_pods, snapshot.nominees
        behind = {pod.spec.key for pod in pods if pod.spec.key in placed and pod.spec.key not in nominees}
        # The other members of their gangs wait too: otherwise the released pods would count as placed members.
        gangs = {gang_key(pod.spec) for pod in pods if pod.spec.key in behind} - {None}
        waiting = [pod for pod in pods if pod.spec.key not in behind and gang_key(pod.spec) not in gangs]
        if len(waiting) == len(pods) or current_columns(self._cluster_id).revision == snapshot.revision:
            return pods, False
        return waiting, True

    def _record(self, cycle: SchedulingCycle, results: list[Result], where: dict[str, Any]) -> list[Result]:
        """Commit a batch; if database constraints reject a single pod or gang, record it as *not now*."""
        where["spent"] = spent = self.cache.seconds_to_charge()
        try:
            at = record(
                self._cluster_id,
                results,
                binding=self._host.binds,
                leaves_effects=self._host.leaves_effects,
                **where,
            )
        except Contradiction as refusal:
            if self._most > 1:
                raise
            nodes = {result.node_id for result in results if result.node_id is not None}
            out_of_use = record_reservation_conflicts(self._cluster_id, nodes)
            if out_of_use:
                log.error("node quarantined", cluster=self._cluster_id, nodes=out_of_use, reason=str(refusal))
            results = [_set_aside(result, refusal) for result in results]
            at = record(self._cluster_id, results, **where)
            cycle.failed = True
        self.cache.mark_committed(at, [result.waiting.spec.key for result in results])
        self.cache.mark_charged(spent)
        self.cache.expire()  # its columns still state that these pods are due
        return results


def _specs(pods: Sequence[PendingPod], policy: Policy | None) -> dict[str, PolicySpec]:
    """Return the active policies that these pods name."""
    names = {pod.policy for pod in pods}
    known = {} if policy is None else {policy.spec.name: policy.spec}
    return known if names == known.keys() else active_specs(names)


def count_batch(name: str, results: Sequence[Result], took_seconds: Sequence[float]) -> None:
    """Update the metrics of a recorded batch."""
    counters.add(metric_names.BATCHES, name, BatchState.RECORDED.value)
    for seconds in took_seconds:
        counters.observe(metric_names.DECISION_SECONDS, seconds, name)
    for result in results:
        counters.add(metric_names.DECISIONS, name, result.verdict.value)
        if result.waiting.flushed and result.verdict is Verdict.PLACED:
            counters.add(metric_names.FLUSHED, name)
        for reason in result.reasons:
            counters.add(metric_names.REASONS, name, reason.plugin, reason.code)


def _set_aside(result: Result, refusal: Contradiction) -> Result:
    """Return the result *not now* for a pod whose placement the database constraints reject."""
    log.error(
        "placement rejected by the database", pod=result.waiting.spec.key, node=result.node_name, reason=str(refusal)
    )
    message = Message("the placement conflicts with an existing reservation that the scheduler cache does not contain")
    reason = Reason("LedgerRefused", "ledger", 0, message)
    waiting = result.waiting
    summary = Message("{pod} waits: {detail}", pod=waiting.spec.key, detail=message)
    refused = Result(waiting, Verdict.NOT_NOW, summary, result.policy_name, result.policy_version, reasons=(reason,))
    waits = WaitsFor("ledger", (Event.POD_RELEASED, Event.TIME), Message("the release of the conflicting reservation"))
    return msgspec.structs.replace(refused, waits_for=(waits,))
