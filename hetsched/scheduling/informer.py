"""Follow a live cluster: list and watch its API server and write the changes to the database.

One thread per resource runs a reflector. A single applier collects events for `GATHER_SECONDS`, at most `MOST_EVENTS`,
and writes them through `placement.actions.follow`. A pending pod without a node ends the collection early, so it is
written without delay; events that arrive until then are written with it.
Nothing is written before all required resources have synced. At that point rows of the database that are missing from
the lists are treated as deleted. A write that loses the revision check is retried.
Invariants: events of one object are written in order; a follower that lost its lease writes nothing.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Event, Failed, Reflector, ServerResponded, Synced, Upserted
from hetsched.adapters.kubernetes.resources import NODES, OPTIONAL, PODS, REQUIRED, SCHEDULING_POLICIES
from hetsched.contracts.message import shortened
from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.models import Node, Sync
from hetsched.inventory.node_events import STALE
from hetsched.inventory.staleness import report_staleness
from hetsched.journal import counters
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, follow
from hetsched.placement.actions.terminating_pods import release_orphaned_pods
from hetsched.placement.lifecycle import HOLDING, QUEUED
from hetsched.placement.models import Pod
from hetsched.placement.queries.pod_counts import count_always, count_seldom, count_up
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.cluster_policies import follow_policies
from hetsched.scheduling.leases import Lease, following

from .informer_host import InformerHost

_NODE = b'"nodeName":'  # present in the JSON of a pod that has a node
GATHER_SECONDS = 0.05
RELEASE_SECONDS = 0.5  # interval at which reservations of force-deleted pods are checked
RENEW_HOLDS = timedelta(seconds=1)
MOST_EVENTS = 500
REPORT_SECONDS = 2.0
MOST_CONFLICTS = 20
OPTIONAL_TRIES = 5  # at least 15 seconds: a server that is merely busy responds within that time
# Time of the last iteration per cluster; liveness fails when one is too old.
iterated_at: dict[int, float] = {}
log = structlog.get_logger(__name__)

News = tuple[Resource, Event]


class Informer:
    """Informer of one cluster, under one lease, until the lease is lost or the process ends."""

    def __init__(
        self,
        lease: Lease,
        api: Api,
        ended: threading.Event,
        kinds: Sequence[Resource] | None = None,
        leads: Callable[[], bool] = lambda: True,
        host: InformerHost | None = None,
    ) -> None:
        self.lease = lease
        self.ended = ended
        self._host = host
        self._busy = False
        self._api = api
        self._leads = leads
        self._kinds = (*REQUIRED, *OPTIONAL) if kinds is None else kinds
        self._news: queue.Queue[News] = queue.Queue(maxsize=20_000)
        self._mirror = InformerStore()
        self._known: dict[Resource, _Known] = {resource: _Known() for resource in self._kinds}
        self._lost = False
        self._begun = False
        self._changed = False
        self._policies_listed = False
        self._renewed = self._reported_at = self._released = time.monotonic()

    def run(self) -> None:
        """Run until the lease is lost or the process ends."""
        self.start()
        count_seldom(self.lease.cluster_id)
        try:
            while not self._over():
                self.iterate()
                count_up(self.lease.cluster_id)
        finally:
            with suppress(DatabaseError):
                count_always(self.lease.cluster_id)
            self._lost = True  # also ends the reflector threads, whatever the cause
            if self._host is not None:
                self._host.close()
        following.give_up(self.lease)

    def start(self) -> None:
        """Start one reflector thread per resource."""
        for resource in self._kinds:
            threading.Thread(target=self._watch, args=(resource,), name=f"watch {resource.plural}", daemon=True).start()

    def iterate(self) -> None:
        """Collect events, write them, run one scheduling iteration, and renew the lease."""
        self._gather()
        if self._begun or self._in_step():
            self._apply_policies()
            self._apply()
        self._release()
        if self._host is not None:
            self._busy = self._begun and not self._lost and self._leads() and self._fresh() and self._host.iterate()
        now = iterated_at[self.lease.cluster_id] = time.monotonic()
        if now - self._renewed > settings.HETSCHED_LEASE_SECONDS / 3:
            self._renewed = now
            # a reflector thread may have set it in the meantime
            self._lost = not following.renew(self.lease) or self._lost
        if now - self._reported_at > REPORT_SECONDS and not self._lost:
            self._reported_at = now
            self._write_sync()

    def _release(self) -> None:
        """Release the reservations of force-deleted pods when their grace periods end; the sweep is the fallback."""
        now = time.monotonic()
        if self._begun and not self._lost and now - self._released > RELEASE_SECONDS:
            self._released = now
            with suppress(Conflict, DatabaseError):
                release_orphaned_pods(self.lease.cluster_id, rewrite_after=RENEW_HOLDS)

    def _over(self) -> bool:
        return self._lost or self.ended.is_set()

    def _sleep(self, seconds: float) -> None:
        self.ended.wait(seconds)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _watch(self, resource: Resource) -> None:
        try:
            self._read(resource)
        except Exception:  # without this resource the store would go stale unnoticed: restart the whole informer
            log.exception("reflector ended", cluster=self.lease.cluster_id, kind=resource.plural)
            self._lost = True

    def _read(self, resource: Resource) -> None:
        reflector = Reflector(self._api, resource, sleep=self._sleep, ended=self._over)
        for event in reflector.events():
            while not self._over():
                try:
                    self._news.put((resource, event), timeout=1)
                    break
                except queue.Full:
                    continue

    def _gather(self) -> None:
        """Feed the informer store with the events of the next `GATHER_SECONDS`.

        While pods are pending, take only the events that are queued already.
        """
        until = time.monotonic() + GATHER_SECONDS
        hurry = self._busy
        for _ in range(MOST_EVENTS):
            left = 0.0 if hurry else until - time.monotonic()
            try:
                resource, event = self._news.get(timeout=left) if left > 0 else self._news.get_nowait()
            except queue.Empty:
                break
            self._known[resource].note(event)
            if isinstance(event, Upserted | Deleted):
                if self._is_confirmation(resource, event):
                    continue
                self._mirror.feed(resource, event)
                self._changed = True
                waits = (
                    self._host is not None
                    and resource is PODS
                    and isinstance(event, Upserted)
                    and _NODE not in event.body
                )
                hurry = hurry or waits

    def _is_confirmation(self, resource: Resource, event: Upserted | Deleted) -> bool:
        """Return whether an event only confirms a binding of this process; such events are not parsed."""
        if self._host is None or resource is not PODS or not self._host.bindings.is_confirmation(event):
            return False
        assert isinstance(event, Upserted)
        if not self._mirror.only_binds(event):
            return False
        self._mirror.pass_over(event)
        return True

    def _in_step(self) -> bool:
        """Return whether every resource has synced, except optional ones that this API server does not serve."""
        return all(
            known.synced_at is not None or (resource not in REQUIRED and known.is_unavailable)
            for resource, known in self._known.items()
        )

    def _fresh(self) -> bool:
        """Return whether every required resource was heard from within `STALE`, as `in_step` checks on the rows."""
        since = timezone.now() - STALE
        return all(
            known.synced_at is not None and known.alive_at is not None and known.alive_at >= since
            for resource, known in self._known.items()
            if resource in REQUIRED
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def _apply_policies(self) -> None:
        """Apply changed SchedulingPolicy objects before the pods that name them."""
        known = self._known.get(SCHEDULING_POLICIES)
        if known is None:
            return
        seen = self._mirror.take_policies()
        listed = None if self._policies_listed or known.synced_at is None else known.keys
        if not seen and listed is None:
            return
        try:
            changed = follow_policies(self.lease.cluster_id, seen, epoch=self.lease.epoch, listed=listed)
        except Conflict as conflict:
            log.info("policy watch ended", cluster=self.lease.cluster_id, reason=str(conflict))
            self._lost = True
            return
        self._policies_listed = self._policies_listed or listed is not None
        if changed:
            self._mirror.read_pods_of(changed)
            self._changed = True
            dispatch.wake(self.lease.cluster_id, dispatch.REPORT)

    def _apply(self) -> None:
        passes = self._host is not None and self._host.bindings.has_unprocessed
        if not (self._changed or passes) and self._begun:
            return
        if self._host is not None:
            for event in self._host.bindings.take_unprocessed():
                self._mirror.feed_late(event)
        changes = self._mirror.take()
        self._changed = False
        if not self._begun:
            if self._host is not None:
                # before the first pods become due; otherwise a worker woken for them becomes the leader
                self._host.lead()
            changes.nodes_gone, changes.pods_gone = self._missing_from_lists()
            changes.bound = set()  # no stored state precedes these bindings, so shadow mode cannot review them
        elif self._host is not None:
            self._host.bindings.remove_confirmations(changes)
        if not changes and self._begun:
            return
        for attempt in range(MOST_CONFLICTS):
            try:
                self._write(changes)
                break
            except Conflict as conflict:
                log.info("changes lost the revision check", cluster=self.lease.cluster_id, reason=str(conflict))
                if not following.renew(self.lease):
                    self._lost = True
                    return
                time.sleep(min(0.01 * 2**attempt, 1.0))
        else:
            raise RuntimeError(f"cluster {self.lease.cluster_id}: changes could not be written")
        if not self._begun:
            self._begun = True
            # the listed objects are long-lived: a garbage collection of them takes longer than one event
            gc.freeze()
            self._write_sync()

    def _write(self, changes: Changes) -> None:
        followed = follow(self.lease.cluster_id, changes, epoch=self.lease.epoch)
        if followed.arrivals_only and self._host is not None:
            cache_of(self.lease.cluster_id).passed(followed.revision)

    def _missing_from_lists(self) -> tuple[list[str], list[str]]:
        """Return the nodes and pods that the database has but the first lists do not."""
        cluster_id = self.lease.cluster_id
        nodes = set(Node.objects.filter(cluster_id=cluster_id).values_list("name", flat=True))
        states = [state.value for state in (*HOLDING, *QUEUED)]
        rows = Pod.objects.filter(cluster_id=cluster_id, state__in=states).exclude(origin__in=Pod.NOWHERE)
        pods = {f"{namespace}/{name}" for namespace, name in rows.values_list("namespace", "name")}
        return (
            sorted(nodes - self._known[NODES].keys),
            sorted(pods - self._known[PODS].keys),
        )

    def _write_sync(self) -> None:
        """Write the sync state of every resource."""
        quarantined = list(self._mirror.quarantined.values())
        rows = [
            Sync(
                cluster_id=self.lease.cluster_id,
                resource=f"{resource.plural}.{resource.group}".rstrip("."),
                required=resource in REQUIRED,
                epoch=self.lease.epoch,
                synced_at=known.synced_at if self._begun and self._leads() else None,
                alive_at=known.alive_at,
                objects_count=len(known.keys),
                relists=known.lists,
                failures=known.failures,
                reason=shortened(known.reason, 500),
                quarantined=tuple(odd for odd in quarantined if odd.kind == resource.plural)[:20],
            )
            for resource, known in self._known.items()
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


class _Known:
    """Sync state of one resource."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.synced_at: datetime | None = None
        self.alive_at: datetime | None = None
        self.lists = 0
        self.failures = self.status = 0
        self.reason = ""

    @property
    def is_unavailable(self) -> bool:
        """Whether the API server lacks this resource, denies access to it, or fails repeatedly."""
        return self.status in (403, 404) or self.failures >= OPTIONAL_TRIES

    def note(self, event: Event) -> None:
        if isinstance(event, Upserted):
            self.keys.add(event.key)
        elif isinstance(event, Deleted):
            self.keys.discard(event.key)
        elif isinstance(event, Synced):
            self.lists += 1
            self.synced_at = timezone.now()
        elif isinstance(event, Failed):
            self.failures, self.reason, self.status = self.failures + 1, event.reason, event.status
            return
        elif isinstance(event, ServerResponded):
            self.failures = self.status = 0
        self.alive_at = timezone.now()
