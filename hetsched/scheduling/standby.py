"""Warm standby for a live cluster that another process watches and schedules.

A standby lists and watches the API server like the informer, and refreshes the scheduler cache of this process, but
writes no row of the cluster. When it acquires the lease, it becomes the informer without another list. It keeps the
changes that the rows do not contain yet, so that the first write of the informer is small.
The store of the standby may be older than the rows, because the previous informer may have received events earlier.
Writing old events again would, for example, reserve resources for a pod that has ended. An informer therefore releases
its lease together with the resourceVersions of the latest changes in the rows (`Handover`), and the standby receives
the events up to these versions first. If there is no such record, because the informer was killed or is of an earlier
release, the caller starts a new informer, which lists again.
Source: kube-scheduler starts its informers before its leader election (cmd/kube-scheduler/app/server.go).
Invariants: a standby writes no row of the cluster; its store becomes the informer's only if it contains every event
that is in the rows.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection as database

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.adapters.kubernetes.resources import OPTIONAL, REQUIRED
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Connection
from hetsched.inventory.node_events import has_definitions, unchanged_nodes
from hetsched.placement.actions.watch.batches import unchanged_pods
from hetsched.placement.scheduler_cache import SchedulerCache, cache_of

from .leases import Lease
from .resource_watches import ResourceWatches

COLLECT_SECONDS = 0.05
POLL_SECONDS = 0.25  # a released lease is acquired within this time
COMPARE_SECONDS = 1.0  # interval of comparisons with the rows, once every object was compared
COMPARED_AT_ONCE = 500
REFRESH_SECONDS = 2.0
MOST_EVENTS = 2000
CATCH_UP_SECONDS = 2.0  # longer than the delay of a watch event; a list takes about as long
RETRY_SECONDS = 1.0
log = structlog.get_logger(__name__)

T = TypeVar("T")


class Standby:
    """Standby of one cluster, until it acquires the lease, `ended` is set or the cluster is disconnected.

    `is_warm` is True once every listed object was compared with the rows and the scheduler cache is loaded.
    """

    def __init__(
        self, cluster_id: int, api: Api, ended: threading.Event, kinds: Sequence[Resource] | None = None
    ) -> None:
        resources = (*REQUIRED, *OPTIONAL) if kinds is None else kinds
        self.watches = ResourceWatches(cluster_id, api, ended, resources)
        self.store = InformerStore()
        self.is_warm = False
        self._cluster_id = cluster_id
        self._api = api
        self._ended = ended
        self._nodes: dict[str, NodeReport] = {}
        self._pods: dict[str, ObservedPod] = {}
        self._definitions: ClusterContent | None = None
        self._uncompared: set[str] = set()  # names of nodes and keys of pods
        self._polled_at = self._compared_at = self._refreshed_at = float("-inf")
        self._refresh_took = 0.0

    def wait_for_lease(self, take: Callable[[], Lease | None]) -> Lease | None:
        """Keep the caches current until `take` returns a lease; return None if the standby ended without one."""
        self.watches.start()
        while not self._ended.is_set() and not self.watches.has_failed:
            self._collect_events()
            self.watches.note_iteration()
            try:
                now = time.monotonic()
                if now - self._polled_at >= POLL_SECONDS:
                    self._polled_at = now
                    lease = take()
                    if lease is not None:
                        return lease
                if self.watches.is_synced():
                    self._update(now)
            except DatabaseError as error:
                log.warning("the standby cannot read the database", cluster=self._cluster_id, reason=str(error))
                database.close()
                self._ended.wait(RETRY_SECONDS)
            except Connection.DoesNotExist:
                break
        self.watches.stop()
        return None

    def has_caught_up(self, lease: Lease, api: Api) -> bool:
        """Wait for the events up to the handover of the previous informer; return False if the store may be older.

        `api` is the client of the cluster's current connection.
        """
        reason = self._reason_to_list(lease, api)
        if reason:
            log.info("the standby lists again", cluster=self._cluster_id, reason=reason)
        return not reason

    def _reason_to_list(self, lease: Lease, api: Api) -> str:
        if api is not self._api:
            return "the connection of the cluster was changed"
        if not self.is_warm:
            return "it is not warm"
        handover = Connection.objects.values_list("follower_handover", flat=True).get(pk=self._cluster_id)
        if handover is None or handover.epoch != lease.epoch - 1:
            return "the previous informer released its lease without the versions in the rows"
        deadline = time.monotonic() + min(CATCH_UP_SECONDS, settings.HETSCHED_LEASE_SECONDS / 3)
        while not self.watches.has_reached(handover.versions):
            if time.monotonic() > deadline or self._ended.is_set() or self.watches.has_failed:
                return "it has not received all events that are in the rows"
            self._collect_events()
        return ""

    def take(self) -> Changes:
        """Return the changes that the rows may lack. Deletions are not included: the informer compares the lists."""
        self._merge(self.store.take())
        changes = Changes(
            nodes=list(self._nodes.values()), pods=list(self._pods.values()), definitions=self._definitions
        )
        self._nodes, self._pods, self._definitions = {}, {}, None
        return changes

    def _collect_events(self) -> None:
        """Feed the store with the events of the next `COLLECT_SECONDS`."""
        until = time.monotonic() + COLLECT_SECONDS
        for _ in range(MOST_EVENTS):
            try:
                resource, event = self.watches.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            self.watches.states[resource].note(event)
            if isinstance(event, Upserted | Deleted):
                self.store.feed(resource, event)

    def _update(self, now: float) -> None:
        """Compare changed objects with the rows, and refresh the scheduler cache.

        Raises: Connection.DoesNotExist if the cluster was disconnected; DatabaseError.
        """
        if self._uncompared or now - self._compared_at >= COMPARE_SECONDS:
            self._compared_at = now
            self._merge(self.store.take())
            self._drop_unchanged()
        # A large cluster that reloads its snapshot often must not keep the standby from polling for the lease.
        if now - self._refreshed_at >= max(REFRESH_SECONDS, 5 * self._refresh_took):
            if not Connection.objects.filter(pk=self._cluster_id).exists():
                raise Connection.DoesNotExist
            warm_up(cache_of(self._cluster_id))
            self._refreshed_at = time.monotonic()
            self._refresh_took = self._refreshed_at - now
        if not self.is_warm and not self._uncompared:
            self.is_warm = True
            log.info("standby is warm", cluster=self._cluster_id, objects=self._object_count())

    def _merge(self, changes: Changes) -> None:
        """Add changes of the store.

        Events without a lasting state (reboots, bindings and ends of containers) are dropped: the informer at that time
        has processed them. After a start, an informer does not know of them either.
        """
        for report in changes.nodes:
            self._nodes[report.name] = report
        for pod in changes.pods:
            self._pods[pod.key] = pod
        self._uncompared.update(report.name for report in changes.nodes)
        self._uncompared.update(pod.key for pod in changes.pods)
        self._remove(changes.nodes_gone, self._nodes)
        self._remove(changes.pods_gone, self._pods)
        if changes.definitions is not None:
            self._definitions = changes.definitions

    def _drop_unchanged(self) -> None:
        """Drop some of the nodes, pods and definitions whose rows contain the same state."""
        if self._definitions is not None and has_definitions(self._cluster_id, self._definitions):
            self._definitions = None
        nodes = _rotated(self._nodes)
        self._uncompared.difference_update(report.name for report in nodes)
        self._remove(unchanged_nodes(self._cluster_id, nodes), self._nodes)
        pods = _rotated(self._pods)
        self._uncompared.difference_update(pod.key for pod in pods)
        self._remove(unchanged_pods(self._cluster_id, pods), self._pods)

    def _remove(self, names: Iterable[str], found: dict[str, NodeReport] | dict[str, ObservedPod]) -> None:
        for name in names:
            found.pop(name, None)
            self._uncompared.discard(name)

    def _object_count(self) -> int:
        return sum(len(known.keys) for known in self.watches.states.values())


class TakeoverPhases:
    """Durations of the phases of a takeover, from the acquired lease to the first decision, for the log.

    The first phase begins with this object, and each other phase with the end of the phase before it. An informer
    without a standby has the same phases.
    """

    def __init__(self, lease: Lease) -> None:
        self._log = log.bind(cluster=lease.cluster_id, epoch=lease.epoch)
        self._began = self._phase_began = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._has_decided = False

    def end(self, phase: str) -> None:
        """Record the duration of `phase`, which ends now."""
        now = time.monotonic()
        self._seconds[phase] = round(now - self._phase_began, 2)
        self._phase_began = now

    def complete(self, **details: object) -> None:
        """Log the durations once the informer has written its first changes and may decide."""
        self._log.info("informer took over", seconds=self._elapsed(), phases=self._seconds, **details)

    def note_decision(self) -> None:
        """Log the time of the first decision; without pending pods, it includes the time until a pod arrives."""
        if not self._has_decided:
            self._has_decided = True
            self._log.info("informer made its first decision", seconds=self._elapsed())

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 2)


def warm_up(cache: SchedulerCache) -> None:
    """Load or refresh the snapshot of a cluster, and compile its default policy. Nothing is written."""
    with cache.locked_snapshot():
        policy = cache.default_policy()
        if policy is not None:
            cache.scheduler(policy.spec)


def _rotated(found: dict[str, T]) -> list[T]:
    """Return the first values, at most `COMPARED_AT_ONCE`, and move them to the end."""
    keys = list(islice(found, COMPARED_AT_ONCE))
    values = [found.pop(key) for key in keys]
    found.update(zip(keys, values, strict=True))
    return values
