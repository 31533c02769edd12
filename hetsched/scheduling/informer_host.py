"""Host of the scheduling loop in the informer process of a live cluster; it runs after each write of watch events.

If one worker scheduled a pod and a second worker bound it, each woken through the message broker, the wake-ups alone
would take longer than the whole scheduling and binding cycle of kube-scheduler.
The informer process holds the same leader lease as any worker. Between two batches of changes it runs one iteration of
the scheduling loop, and `BindingsInFlight` binds the recorded placements. The state *binding* is recorded together with
the reservation, before the first API call.
None of this needs a broker message. If this process dies, lags or loses its lease, the workers' periodic tasks take
over: they decide due pods while there is no leader, and a pod that is *binding* for longer than
`binding_cycle.CLAIM_AFTER` is claimed by a worker.
Invariants: one thread decides and writes; no transaction is open during an API call; every write carries the epoch.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from hetsched.adapters.kubernetes.api import Api
from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, can_bind_now, write_placement_effects
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import has_active_pods
from hetsched.storage.log_checkpoints import checkpoint_before_read

from . import binding_cycle
from .arrival_buffer import ArrivalBuffer
from .arrivals import ArrivalScheduler, PlacedBatch
from .bindings_in_flight import BACKLOG_SECONDS, BindingsInFlight
from .interpreter_priority import low_priority
from .leases import Lease, leading
from .scheduling_loop import BatchState, SchedulingLoop

POLL_SECONDS = 0.5  # polling interval of the queue when no change is reported
REFRESH_SECONDS = 2.0
LARGE_CLUSTER_NODES = 1000  # from this size on, loading a snapshot takes seconds
MAX_BATCH_PODS = 200  # pods per batch: the pods of one batch are bound while the next batch is decided
# Bindings in flight. While the API server is slow, arriving pods are decided in small batches as bindings end: after a
# full batch, no pod would be decided until as many bindings have ended.
MAX_BINDINGS = 600
MIN_ARRIVALS = 25
# Pause while bindings wait for room on the connections and nothing else is due, so that responses arrive together.
RESPONSE_SECONDS = 0.005
REPORT_SECONDS, MAX_REPORT_SECONDS = 2.0, 3.0
# Longest age of the state of the cluster for which an arriving pod is decided without a query. If another process
# commits in between, the placement is rejected, and the age is zero for EXACT_SECONDS.
MOST_LAG, EXACT_SECONDS = 0.05, 1.0
# Time after the last decision of a backlog in which its bindings are sent before the accepted ones are confirmed.
BACKLOG_END_SECONDS = 1.0
# Longest delay of `write_placement_effects` without a backlog; the transaction that confirms the bindings usually
# writes them earlier.
EFFECTS_SECONDS = 0.6
log = structlog.get_logger(__name__)


def _load_snapshot(cache: SchedulerCache) -> None:
    """Load the snapshot in the background, at low interpreter priority so that event handling is not delayed."""
    try:
        checkpoint_before_read()
        with low_priority, cache.locked_snapshot():
            pass
    finally:
        connection.close()


class InformerHost:
    """Host of the scheduling loop that binds the placed pods itself.

    `has_decided` is True once it has recorded a decision.
    """

    binds = True

    def __init__(self, cluster: Cluster, api: Api, is_leader: Callable[[], bool] = lambda: True) -> None:
        self._cluster = cluster
        self._is_elected = is_leader
        self._holder = f"{socket.gethostname()}/{os.getpid()}"
        self.has_decided = False
        self._lease: Lease | None = None
        self._lease_checked_at = self._polled_at = self._refreshed_at = -float(settings.HETSCHED_LEASE_SECONDS)
        self._due = True
        self._is_deciding = False
        self._loop = SchedulingLoop(self, cluster.pk, cluster.name, MAX_BATCH_PODS)
        self._arrivals = ArrivalScheduler(self._loop.cache, cluster.name)
        self._exact_until = float("-inf")  # until then, each arriving pod is decided on the current state
        self._backlog_at = float("-inf")  # when pods of a backlog waited last
        self._placed_at: float | None = None  # when the first placement without effects was committed
        self._threads = ThreadPoolExecutor(binding_cycle.AT_ONCE, thread_name_prefix="bind")
        self.bindings = BindingsInFlight(cluster, api, self._threads, self._may_bind)
        self._refresh_task: Future[None] | None = None
        self._unreported_since: float | None = None
        dispatch.route_locally(cluster.pk, dispatch.SCHEDULE, self.mark_due)
        dispatch.route_locally(cluster.pk, dispatch.REPORT, self._report_later)

    @property
    def is_due(self) -> bool:
        """Return True if the queue may contain due pods, and at first until this process has decided as the leader."""
        return self._due or self._is_deciding

    def mark_due(self) -> None:
        """Mark that the queue may have changed."""
        self._due = True

    def acquire_leadership(self) -> None:
        """Acquire the leader lease if it is free."""
        self._has_lease(time.monotonic())

    def release_leadership(self) -> None:
        """Release the leader lease; nothing is decided any more, but bindings in flight continue.

        Their reservations are committed, so another leader of this installation counts them and leaves the pods to the
        bindings in flight for `binding_cycle.CLAIM_AFTER`.
        """
        dispatch.route_to_workers(self._cluster.pk, dispatch.SCHEDULE)
        dispatch.route_to_workers(self._cluster.pk, dispatch.REPORT)
        if self._lease is not None:
            leading.release(self._lease)

    def close(self) -> None:
        """Release the leader lease and finish the bindings in flight."""
        try:
            self.release_leadership()
        finally:
            self.bindings.close()

    def place_arrivals(self, arrivals: ArrivalBuffer, follower_epoch: int) -> PlacedBatch:
        """Place and commit the first of the arriving pods, and start to bind them.

        If they come after the next batch of the queue, this batch is decided first. If more pods are due then, they
        join the queue, so that they are decided with these.
        """
        batch = self._place_arrivals(arrivals, follower_epoch)
        if batch.is_after_queue:
            self._decide_batch()
            batch = self._place_arrivals(arrivals, follower_epoch)
        return PlacedBatch() if batch.is_after_queue else batch

    def _place_arrivals(self, arrivals: ArrivalBuffer, follower_epoch: int) -> PlacedBatch:
        now = time.monotonic()
        if self.bindings.unproven or not self._has_lease(now):
            return PlacedBatch()
        assert self._lease is not None
        batch = PlacedBatch(others_wait=True)
        try:
            if not self.is_saturated:
                most = min(MAX_BATCH_PODS, MAX_BINDINGS - self.bindings.count)
                batch = self._arrivals.place(
                    arrivals,
                    self._lease,
                    follower_epoch,
                    most=most,
                    copies_labels=self.copies_labels,
                    is_first=not self.bindings.count,
                    lag=0.0 if self._due or now < self._exact_until else MOST_LAG,
                )
        except Conflict as conflict:
            self._exact_until = now + EXACT_SECONDS
            log.info("arriving pods will be retried", cluster=self._cluster.pk, reason=str(conflict))
            self._check_lease_next()
        if batch.results:
            self.has_decided = True
            self.bindings.start(self._lease, batch.results)
            if self._placed_at is None:
                self._placed_at = now
        return batch

    @property
    def copies_labels(self) -> bool:
        """Return True unless the API server was last seen to copy no labels of the node to a pod."""
        return self.bindings.copies_labels

    @property
    def leaves_effects(self) -> bool:
        """Return True while this process has recent placements, whose effects it will write."""
        return self._placed_at is not None and time.monotonic() - self._placed_at < BACKLOG_SECONDS

    @property
    def is_saturated(self) -> bool:
        """Return True if so many bindings are in flight that no further pod is decided."""
        return self.bindings.count > MAX_BINDINGS - MIN_ARRIVALS

    def iterate(self, *, has_events: bool = False, has_arrivals: bool = False) -> bool:
        """Run one scheduling iteration and write binding results; return True if more work is due immediately.

        `has_events` and `has_arrivals` are true if the informer has unread events or arriving pods.
        """
        may_place = (has_arrivals and not self.is_saturated) or (self._due and self._has_room)
        if self.bindings.has_unsent and not (has_events or may_place):
            time.sleep(RESPONSE_SECONDS)
        self.bindings.advance()
        self.bindings.take_results()
        self._is_deciding = True
        try:
            more = self._decide()
        finally:
            self._is_deciding = False
        now = time.monotonic()
        has_backlog = self._has_backlog(now, is_deciding=has_arrivals or more or self.bindings.has_unsent)
        if self.bindings.confirm_due(now, is_idle=not (has_events or has_backlog), has_backlog=has_backlog):
            self._placed_at = None  # this transaction has written the effects
        self._write_placement_effects(now, BACKLOG_SECONDS if has_backlog else EFFECTS_SECONDS)
        self._wake_reports(now, has_backlog)
        return more

    def _has_backlog(self, now: float, *, is_deciding: bool) -> bool:
        """Return True if confirmations would delay the bindings of a backlog: also shortly after its last decision."""
        if is_deciding:
            self._backlog_at = now
        return is_deciding or (
            self.bindings.count > binding_cycle.AT_ONCE and now - self._backlog_at < BACKLOG_END_SECONDS
        )

    def may_decide(self) -> bool:
        """Return True unless the cluster has entered shadow mode; the informer has already checked the sync state."""
        return not is_in_shadow(self._cluster.pk)

    def still_leads(self, lease: Lease) -> bool:
        """Return True: the lease is renewed at intervals, and the compare-and-set checks the epoch of the lease."""
        return True

    def _may_bind(self, lease: Lease) -> bool:
        """Return True while this process holds `lease`, and its installation the Lease in the cluster.

        Also called from binder threads.
        """
        return self._lease == lease and self._is_elected()

    @property
    def _has_room(self) -> bool:
        """Return True if a full batch of pods may be decided."""
        return self.bindings.count <= MAX_BINDINGS - MAX_BATCH_PODS

    def _decide(self) -> bool:
        now = time.monotonic()
        if not self._due and now - self._polled_at < POLL_SECONDS:
            return False
        if self.bindings.unproven or not self._has_room or not self._has_lease(now):
            return False
        return self._decide_batch()

    def _decide_batch(self) -> bool:
        """Decide a batch of due pods under the lease; return True if more pods are due."""
        now = time.monotonic()
        assert self._lease is not None
        self._polled_at, self._due = now, False
        try:
            if not has_active_pods(self._cluster.pk):
                self._refresh_snapshot(now)
                return False
            iteration = self._loop.iterate(self._lease)
        except DatabaseError as error:
            log.warning("nothing decided", cluster=self._cluster.pk, reason=str(error))
            return False
        if iteration.state is BatchState.LOST:
            self._check_lease_next()
        self.has_decided = self.has_decided or bool(iteration.results)
        self.bindings.start(self._lease, [result for result in iteration.results if can_bind_now(result)])
        self._due = iteration.more
        return iteration.more

    def _refresh_snapshot(self, now: float) -> None:
        """Apply external changes to the snapshot every `REFRESH_SECONDS`, so that the next pod does not wait for them.

        The first refresh loads the whole cluster. For a large cluster it runs in the background while events are
        handled.
        """
        cache = self._loop.cache
        if now - self._refreshed_at <= REFRESH_SECONDS or not (self._refresh_task is None or self._refresh_task.done()):
            return
        self._refreshed_at = now
        if cache.is_cold and Cluster.objects.filter(pk=self._cluster.pk, node_count__gte=LARGE_CLUSTER_NODES).exists():
            self._refresh_task = self._threads.submit(_load_snapshot, cache)
        else:
            with cache.locked_snapshot():
                self._refreshed_at = now

    def _has_lease(self, now: float) -> bool:
        """Return True if the leader lease is held; acquire or renew it at intervals."""
        if now - self._lease_checked_at < settings.HETSCHED_LEASE_SECONDS / (3 if self._lease else 30):
            return self._lease is not None
        self._lease_checked_at = now
        if self._lease is not None and not leading.renew(self._lease):
            self._lease = None
        if self._lease is None:
            self._lease = leading.take(self._cluster.pk, self._holder)
        return self._lease is not None

    def _check_lease_next(self) -> None:
        """Renew the lease before the next decision, to find out if another leader was elected."""
        self._lease_checked_at = -settings.HETSCHED_LEASE_SECONDS

    def _write_placement_effects(self, now: float, longest_seconds: float) -> None:
        """Write the effects of committed placements on other rows, unless another transaction wrote them already."""
        if self._placed_at is not None and now - self._placed_at >= longest_seconds:
            self._placed_at = None
            self._loop.cache.mark_unchanged(write_placement_effects(self._cluster.pk))

    def _report_later(self) -> None:
        if self._unreported_since is None:
            self._unreported_since = time.monotonic()

    def _wake_reports(self, now: float, busy: bool) -> None:
        """Wake the workers that report decisions, at intervals and preferably while no pods are pending."""
        waited = 0.0 if self._unreported_since is None else now - self._unreported_since
        if waited > MAX_REPORT_SECONDS or (waited > REPORT_SECONDS and not busy and not self.bindings.count):
            self._unreported_since = None
            dispatch.send(self._cluster.pk, dispatch.REPORT)
