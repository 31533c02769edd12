"""Watches of a live cluster: one reflector thread per resource, one queue of their events, and the sync states.

A consumer takes the events from `events` and notes each one in `states`, in one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import structlog
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.reflector import Deleted, Event, Failed, Reflector, ServerResponded, Synced, Upserted
from hetsched.adapters.kubernetes.resources import REQUIRED, RESTRICTIVE
from hetsched.inventory.node_events import STALE

MAX_OPTIONAL_FAILURES = 5  # these failures take at least 15 seconds; a server that is only busy responds sooner
# While more events are queued, the reflector threads wait.
_MOST_QUEUED, _FULL_SECONDS = 5000, 0.01
# cluster id -> time.monotonic() of the last iteration; the liveness check fails if a time is too old
iterated_at: dict[int, float] = {}
log = structlog.get_logger(__name__)

ResourceEvent = tuple[Resource, Event]


def resource_name(resource: Resource) -> str:
    """Return `<plural>.<group>`, or the plural of a resource of the core group."""
    return f"{resource.plural}.{resource.group}".rstrip(".")


class SyncState:
    """The sync state of one resource.

    All changes up to the resourceVersion `position` were noted. `changed_version` is that of the latest change, or None
    if a version was not a number.
    """

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.position = 0
        self.changed_version: int | None = 0
        self.synced_at: datetime | None = None
        self.alive_at: datetime | None = None
        self.lists = 0
        self.failures = self.status = 0
        self.reason = ""

    def may_lack(self, resource: Resource) -> bool:
        """Return True for an optional resource that is not served, denied, or failing repeatedly."""
        is_failing = self.failures >= MAX_OPTIONAL_FAILURES and resource not in RESTRICTIVE
        return resource not in REQUIRED and (self.status in (403, 404) or is_failing)

    def note(self, event: Event) -> None:
        """Record an event that is about to be processed."""
        if isinstance(event, Upserted):
            self.keys.add(event.key)
            self._note_change(event)
        elif isinstance(event, Deleted):
            self.keys.discard(event.key)
            self._note_change(event)
        elif isinstance(event, Synced):
            self.lists += 1
            self.synced_at = timezone.now()
            self.position = event.version
        elif isinstance(event, Failed):
            self.failures, self.reason, self.status = self.failures + 1, event.reason, event.status
            return
        elif isinstance(event, ServerResponded):
            self.failures = self.status = 0
            self.position = max(self.position, event.version)
        self.alive_at = datetime.now(UTC)  # without the lookup of a setting, because every event is noted

    def _note_change(self, event: Upserted | Deleted) -> None:
        if self.changed_version is not None:
            self.changed_version = max(self.changed_version, event.version) if event.version else None
        if event.is_watched:
            self.position = max(self.position, event.version)


class ResourceWatches:
    """The reflectors of one cluster, until `ended` is set or `stop` is called."""

    def __init__(self, cluster_id: int, api: Api, ended: threading.Event, resources: Sequence[Resource]) -> None:
        # `_queue_events` enforces the limit: a `queue.Queue` with a limit takes seven times as long for each event.
        self.events: queue.SimpleQueue[ResourceEvent] = queue.SimpleQueue()
        self.states = {resource: SyncState() for resource in resources}
        self._required = [known for resource, known in self.states.items() if resource in REQUIRED]
        self.has_failed = False  # a reflector thread ended by an unexpected error
        self._cluster_id = cluster_id
        self._api = api
        self._ended = ended
        self._is_stopped = False

    def start(self) -> None:
        """Start one reflector thread per resource."""
        for resource in self.states:
            name = f"watch {resource.plural}"
            threading.Thread(target=self._run_reflector, args=(resource,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End the reflector threads; a thread in a watch ends with the next data of the server."""
        self._is_stopped = True

    def note_iteration(self) -> float:
        """Record that the consumer has completed an iteration; return the time."""
        now = iterated_at[self._cluster_id] = time.monotonic()
        return now

    @property
    def is_failing(self) -> bool:
        """Return True if a required resource cannot be listed or watched at present."""
        return any(known.failures for resource, known in self.states.items() if resource in REQUIRED)

    def is_synced(self) -> bool:
        """Return True if every resource has synced, except optional resources that are not available."""
        return all(known.synced_at is not None or known.may_lack(kind) for kind, known in self.states.items())

    def is_fresh(self) -> bool:
        """Return True if the API server responded for every required resource within `STALE`, like `is_synced`."""
        since = datetime.now(UTC) - STALE
        for known in self._required:  # a loop, because each arriving pod checks this several times
            if known.synced_at is None or known.alive_at is None or known.alive_at < since:
                return False
        return True

    def changed_versions(self) -> dict[str, int] | None:
        """Return the version of the latest change of each resource, by its name; None if a version is not a number."""
        found = {resource_name(resource): known.changed_version for resource, known in self.states.items()}
        numbers = {name: version for name, version in found.items() if version is not None}
        return numbers if len(numbers) == len(found) else None

    def has_reached(self, versions: Mapping[str, int]) -> bool:
        """Return True if all changes up to these versions of the resources were noted."""
        positions = {resource_name(resource): known.position for resource, known in self.states.items()}
        return all(position >= versions.get(name, 0) for name, position in positions.items())

    def _has_ended(self) -> bool:
        return self._is_stopped or self._ended.is_set()

    def _sleep(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def _run_reflector(self, resource: Resource) -> None:
        try:
            self._queue_events(resource)
        # Without this resource the store would become stale unnoticed, so the consumer must start again.
        except Exception:
            log.exception("reflector ended", cluster=self._cluster_id, kind=resource.plural)
            self.has_failed = True

    def _queue_events(self, resource: Resource) -> None:
        reflector = Reflector(self._api, resource, sleep=self._sleep, ended=self._has_ended)
        for event in reflector.events():
            while self.events.qsize() >= _MOST_QUEUED and not self._has_ended():
                self._sleep(_FULL_SECONDS)
            self.events.put((resource, event))
