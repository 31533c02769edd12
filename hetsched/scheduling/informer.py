"""The informer of a live cluster: list and watch its API server and write the changes to the database.

One thread per resource runs a reflector. A single thread collects events for `COLLECT_SECONDS`, at most `MOST_EVENTS`,
and writes them through `placement.actions.watch`. A pending pod without a node ends the collection early, so it is
written without delay; events that arrive until then are written with it.
Nothing is written before all required resources have synced. At that point nodes and pods that are in the database but
not in the lists are treated as deleted. A write that loses the revision check is retried.
Arriving pods stay in the `ArrivalBuffer` until they are placed or written to the queue.
Invariants: events of one object are written in order; an informer that lost its lease writes nothing.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import Error as DatabaseError

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.adapters.kubernetes.resources import NODES, OPTIONAL, PODS, REQUIRED, SCHEDULING_POLICIES
from hetsched.contracts.message import shortened
from hetsched.contracts.objects.observed import Changes, Handover
from hetsched.inventory.models import Node, Sync
from hetsched.inventory.staleness import report_staleness
from hetsched.journal import counters
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, apply_changes
from hetsched.placement.actions.terminating_pods import RELEASED_AT_ONCE, release_orphaned_pods
from hetsched.placement.lifecycle import HOLDING, LISTED, QUEUED
from hetsched.placement.models import Pod
from hetsched.placement.queries.pod_counts import batch_counts, publish_counts, stop_batching_counts
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.cluster_policies import apply_policy_objects
from hetsched.scheduling.leases import Lease, following

from .arrival_buffer import ArrivalBuffer
from .arrivals import PlacedBatch
from .informer_host import InformerHost
from .resource_watches import ResourceWatches, resource_name
from .standby import Standby, TakeoverPhases

_NODE = b'"nodeName":'  # the JSON of a pod contains this key once the pod is assigned to a node
COLLECT_SECONDS = 0.05
RELEASE_SECONDS = 0.5  # interval at which reservations of force-deleted pods are checked
REWRITE_AFTER = timedelta(seconds=1)
MOST_EVENTS = 500
REPORT_SECONDS, MAX_REPORT_SECONDS = 4.0, 10.0
MOST_CONFLICTS = 20
log = structlog.get_logger(__name__)


class Informer:
    """Informer of one cluster, under one lease, until the lease is lost or the process ends.

    With `standby`, it continues the watches of a standby that has caught up.
    """

    def __init__(
        self,
        lease: Lease,
        api: Api,
        ended: threading.Event,
        kinds: Sequence[Resource] | None = None,
        is_leader: Callable[[], bool] = lambda: True,
        host: InformerHost | None = None,
        standby: Standby | None = None,
        phases: TakeoverPhases | None = None,
    ) -> None:
        self.lease = lease
        self.ended = ended
        self._host = host
        self._busy = False
        self._is_leader = is_leader
        self._standby = standby
        self._phases = phases or TakeoverPhases(lease)
        if standby is None:
            self._store = InformerStore()
            resources = (*REQUIRED, *OPTIONAL) if kinds is None else kinds
            self.watches = ResourceWatches(lease.cluster_id, api, ended, resources)
        else:
            self._store, self.watches = standby.store, standby.watches
        self._lease_lost = False
        self.has_applied = False  # the first lists are in the rows
        self._has_changes = False
        self._arrivals = ArrivalBuffer()
        self._policies_listed = False
        self._lease_checked_at = self._reported_at = self._orphans_checked_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Return True if no pod waits for the decision of this process or for its binding."""
        host = self._host
        return self.has_applied and (host is None or not (host.is_due or self._arrivals or host.bindings.count))

    def run(self) -> None:
        """Run until the lease is lost or the process ends; release the leases before the bindings in flight finish."""
        self.start()
        batch_counts(self.lease.cluster_id)
        handover = None
        try:
            while not self._is_ended():
                self.iterate()
                publish_counts(self.lease.cluster_id)
            handover = self._handover()
        finally:
            self.watches.stop()
            with suppress(DatabaseError):
                self._release(handover)
            with suppress(DatabaseError):
                stop_batching_counts(self.lease.cluster_id)
            if self._host is not None:
                self._host.close()

    def _handover(self) -> Handover | None:
        """Return the watch position of the rows, or None if some noted events are not in the rows."""
        versions = self.watches.changed_versions()
        if versions is None or self._must_end or self._has_changes or not self.has_applied:
            return None
        return Handover(self.lease.epoch, versions)

    def _release(self, handover: Handover | None) -> None:
        """Release the leases. The lease of the watch is last, because another process waits for it."""
        if self._host is not None:
            self._host.release_leadership()
        following.release(self.lease, follower_handover=handover)
        log.info(
            "informer lease released", cluster=self.lease.cluster_id, epoch=self.lease.epoch, complete=bool(handover)
        )

    def start(self) -> None:
        """Start to list and watch, unless the standby has started."""
        if self._standby is None:
            self.watches.start()

    def iterate(self) -> None:
        """Collect events, write them, run one scheduling iteration, and renew the lease."""
        self._collect_events()
        if self.has_applied or self.watches.is_synced():
            self._apply_policies()
            self._apply()
        self._release_orphans()
        if self._host is not None:
            waiting = {"has_events": not self.watches.events.empty(), "has_arrivals": bool(self._arrivals)}
            may_decide, self._busy = self._may_decide(), False
            if may_decide:
                is_due = self._host.iterate(**waiting)
                may_place = bool(self._arrivals) and not self._host.is_saturated
                self._busy = is_due or may_place or self._host.bindings.has_unsent
            else:
                self._host.bindings.advance()  # bindings without a valid lease end here, unsent
            if self._host.has_decided:
                self._phases.note_decision()
        now = self.watches.note_iteration()
        if now - self._lease_checked_at > settings.HETSCHED_LEASE_SECONDS / 3:
            self._lease_checked_at = now
            self._lease_lost = self._lease_lost or not following.renew(self.lease)
        is_idle = self.watches.events.empty() and not self._arrivals
        if now - self._reported_at > (REPORT_SECONDS if is_idle else MAX_REPORT_SECONDS) and not self._must_end:
            self._reported_at = now
            self._write_sync()

    def _may_decide(self) -> bool:
        """Return whether this process may schedule pods: it leads the cluster, and its data is in sync."""
        return self.has_applied and not self._must_end and self._is_leader() and self.watches.is_fresh()

    def _release_orphans(self) -> None:
        """Release reservations of force-deleted pods when their grace periods end; a periodic task is the fallback.

        Each iteration releases a few of many due reservations.
        """
        now = time.monotonic()
        if self.has_applied and not self._must_end and now - self._orphans_checked_at > RELEASE_SECONDS:
            self._orphans_checked_at = now
            with suppress(Conflict, DatabaseError):
                released = release_orphaned_pods(self.lease.cluster_id, rewrite_after=REWRITE_AFTER)
                if released == RELEASED_AT_ONCE:
                    self._orphans_checked_at -= RELEASE_SECONDS

    @property
    def _must_end(self) -> bool:
        """Return True if this informer may not write any more, or misses the events of a resource."""
        return self._lease_lost or self.watches.has_failed

    def _is_ended(self) -> bool:
        return self._must_end or self.ended.is_set()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _collect_events(self) -> None:
        """Feed the informer store with the events of the next `COLLECT_SECONDS`.

        While pods are pending, only the events that are queued already are collected.
        """
        until = time.monotonic() + COLLECT_SECONDS
        only_queued, events = self._busy, self.watches.events
        for _ in range(MOST_EVENTS):
            remaining = 0.0 if only_queued else until - time.monotonic()
            try:
                resource, event = events.get(timeout=remaining) if remaining > 0 else events.get_nowait()
            except queue.Empty:
                break
            known = self.watches.states[resource].keys
            if resource is PODS and isinstance(event, Deleted):
                self._arrivals.note_deleted(event.key)
            elif resource is PODS and isinstance(event, Upserted) and event.key not in known:
                self._arrivals.note_new(event.key)
            self.watches.states[resource].note(event)
            if isinstance(event, Upserted | Deleted):
                if self._is_confirmation(resource, event):
                    continue
                self._store.feed(resource, event)
                self._has_changes = True
                is_pending_pod = (
                    self._host is not None
                    and resource is PODS
                    and isinstance(event, Upserted)
                    and _NODE not in event.body
                )
                only_queued = only_queued or is_pending_pod

    def _is_confirmation(self, resource: Resource, event: Upserted | Deleted) -> bool:
        """Return True if an event only confirms a binding of this process; such events are not fully parsed."""
        if self._host is None or resource is not PODS or not self._host.bindings.is_confirmation(event):
            return False
        assert isinstance(event, Upserted)
        if not self._store.only_binds(event):
            return False
        self._store.skip(event)
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    def _apply_policies(self) -> None:
        """Apply changed SchedulingPolicy objects before the pods that name them."""
        known = self.watches.states.get(SCHEDULING_POLICIES)
        if known is None:
            return
        policies = self._store.take_policies()
        listed_keys = None if self._policies_listed or known.synced_at is None else known.keys
        if not policies and listed_keys is None:
            return
        try:
            changed = apply_policy_objects(self.lease.cluster_id, policies, epoch=self.lease.epoch, listed=listed_keys)
        except Conflict as conflict:
            log.info("policy watch ended", cluster=self.lease.cluster_id, reason=str(conflict))
            self._lease_lost = True
            return
        self._policies_listed = self._policies_listed or listed_keys is not None
        if changed:
            self._store.read_pods_of(changed)
            self._has_changes = True
            dispatch.wake(self.lease.cluster_id, dispatch.REPORT)

    def _apply(self) -> None:
        """Write the collected changes; place the arriving pods, or write them to the queue."""
        has_late_events = self._host is not None and self._host.bindings.has_unprocessed
        if self._has_changes or has_late_events or not self.has_applied:
            if self._host is not None:
                for event in self._host.bindings.take_unprocessed():
                    self._store.feed_skipped(event)
            changes = self._store.take() if self._standby is None else self._take_over(self._standby)
            self._has_changes = False
            if not self.has_applied:
                self._phases.end("sync")
                self._complete_lists(changes)
                self._phases.end("comparison with the rows")
            elif self._host is not None:
                self._host.bindings.remove_confirmations(changes)
            accepts = self._host is not None and not self._must_end and self._is_leader()
            changes.pods = self._arrivals.take(changes.pods, accepts=accepts)
            if (changes or not self.has_applied) and not self._write_until_committed(changes):
                return
            if not self.has_applied:
                self.has_applied = True
                # Exclude the listed objects from garbage collection: they are long-lived, and a collection of them
                # takes longer than the processing of an event.
                gc.freeze()
                self._write_sync()
                self._phases.end("first write")
                self._phases.complete(nodes=len(changes.nodes), pods=len(changes.pods), arrivals=len(self._arrivals))
        if self._arrivals:
            self._place_arrivals()

    def _take_over(self, standby: Standby) -> Changes:
        """Return the changes that the previous informer did not write; pending pods among them are arriving pods."""
        self._standby = None
        changes = standby.take()
        for pod in changes.pods:
            self._arrivals.note_new(pod.key)
        return changes

    def _complete_lists(self, changes: Changes) -> None:
        """Add the nodes and pods that were deleted while no informer ran, and exclude known pods from the arrivals."""
        if self._host is not None:
            # acquire the lease before the first pods are due; otherwise a worker woken for them becomes the leader
            self._host.acquire_leadership()
        changes.nodes_gone, changes.pods_gone = self._missing_from_lists()
        changes.bound = set()  # no earlier state is stored for these bindings, so shadow mode cannot compare them
        known = Pod.objects.filter(cluster_id=self.lease.cluster_id, state__in=LISTED)
        self._arrivals.exclude(f"{namespace}/{name}" for namespace, name in known.values_list("namespace", "name"))

    def _place_arrivals(self) -> None:
        """Place a batch of the arriving pods, and write those that join the queue."""
        batch = PlacedBatch()
        if self._host is not None and self._may_decide():
            batch = self._host.place_arrivals(self._arrivals, self.lease.epoch)
        placed = {result.waiting.spec.key for result in batch.results}
        queued = self._arrivals.settle(placed=placed, tried=batch.tried, others_wait=batch.others_wait)
        if queued:
            self._write_until_committed(Changes(pods=queued))

    def _write_until_committed(self, changes: Changes) -> bool:
        """Write changes, and retry after each conflict; return False if the lease was lost."""
        for attempt in range(MOST_CONFLICTS):
            try:
                self._write(changes)
                return True
            except Conflict as conflict:
                log.info("changes conflicted with another writer", cluster=self.lease.cluster_id, reason=str(conflict))
                if not following.renew(self.lease):
                    self._lease_lost = True
                    return False
                time.sleep(min(0.01 * 2**attempt, 1.0))
        raise RuntimeError(f"cluster {self.lease.cluster_id}: the changes could not be written")

    def _write(self, changes: Changes) -> None:
        leaves_effects = self._host is not None and self._host.leaves_effects
        followed = apply_changes(self.lease.cluster_id, changes, epoch=self.lease.epoch, leaves_effects=leaves_effects)
        if self._host is not None:
            cache = cache_of(self.lease.cluster_id)
            if followed.arrivals_only:
                cache.mark_unchanged(followed.revision)
            else:
                cache.expire()

    def _missing_from_lists(self) -> tuple[list[str], list[str]]:
        """Return the nodes and pods that are in the database but not in the first lists."""
        cluster_id = self.lease.cluster_id
        nodes = set(Node.objects.filter(cluster_id=cluster_id).values_list("name", flat=True))
        states = [state.value for state in (*HOLDING, *QUEUED)]
        rows = Pod.objects.filter(cluster_id=cluster_id, state__in=states).exclude(origin__in=Pod.NOWHERE)
        pods = {f"{namespace}/{name}" for namespace, name in rows.values_list("namespace", "name")}
        return (
            sorted(nodes - self.watches.states[NODES].keys),
            sorted(pods - self.watches.states[PODS].keys),
        )

    def _write_sync(self) -> None:
        """Write the sync state of every resource."""
        quarantined = list(self._store.quarantined.values())
        rows = [
            Sync(
                cluster_id=self.lease.cluster_id,
                resource=resource_name(resource),
                required=resource in REQUIRED,
                epoch=self.lease.epoch,
                synced_at=known.synced_at if self.has_applied and self._is_leader() else None,
                alive_at=known.alive_at,
                objects_count=len(known.keys),
                relists=known.lists,
                failures=known.failures,
                reason=shortened(known.reason, 500),
                quarantined=tuple(item for item in quarantined if item.kind == resource.plural)[:20],
            )
            for resource, known in self.watches.states.items()
        ]
        columns = [
            "required", "epoch", "synced_at", "alive_at", "objects_count", "relists", "failures", "reason",
            "quarantined",
        ]  # fmt: skip
        Sync.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["cluster", "resource"], update_fields=columns
        )
        report_staleness(self.lease.cluster_id)
        counters.flush()
