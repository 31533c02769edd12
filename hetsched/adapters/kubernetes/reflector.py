"""Reflector: list and watch one kind of object, and detect when the known state is stale.

The reflector lists in pages, then watches from the list's resourceVersion. When a watch ends, the next one resumes
from the last version seen, which bookmarks advance. A 410 causes a relist, with backoff if it repeats before any other
event arrives. Each page is emitted before the next one is requested, so only one page is in memory. Objects missing
from the list are emitted as deletions after the last page. A server ends a watch after `WATCH_SECONDS`; the reflector
drops a watch without data for `QUIET_SECONDS`. After a failure, which is emitted as an event, the reflector backs off
for 1, 2, 4 … 30 s with jitter, or for Retry-After if that is longer (at most 30 s). A list older than a version already
seen is a failure, because an API server may return outdated data after a failover. If etcd was restored from a backup,
lists stay older, so the process must be restarted. A kind is listed in the newest API version that the server serves.
Source: Kubernetes documentation, "Efficient detection of changes"; KEP-5504 (versions compare as numbers); client-go's
reflector (names).
Invariants: after `Synced` the consumer has seen exactly the objects of one list; a watch starts from a version only
after all events up to that version were emitted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from hetsched.contracts.message import Message

from .api import Api, ApiFailure, Resource

WATCH_SECONDS = 60
QUIET_SECONDS = 75.0
LONGEST_WAIT_SECONDS = 30.0


class Upserted(msgspec.Struct, frozen=True):
    """An object that was added or modified; `body` is the API server's own JSON.

    `version` is the object's resourceVersion as a number, or 0 if it is not a number. If `is_watched`, the event comes
    from a watch, so all changes up to `version` have been emitted. Likewise in `Deleted`.
    """

    key: str
    body: bytes
    version: int = 0
    is_watched: bool = False


class Deleted(msgspec.Struct, frozen=True):
    """A deleted object; `body` is its last state, empty if a relist detected the deletion."""

    key: str
    body: bytes = b""
    version: int = 0
    is_watched: bool = False


class Synced(msgspec.Struct, frozen=True):
    """A list is complete (client-go: HasSynced): the events of its `count` objects have been emitted.

    All changes up to `version` have been emitted; likewise in `ServerResponded`.
    """

    count: int
    version: int = 0


class ServerResponded(msgspec.Struct, frozen=True):
    """The server responded, so the known objects were current at this moment."""

    version: int = 0


class Failed(msgspec.Struct, frozen=True):
    """A call failed, with an HTTP status if there was a response. The next attempt follows after `wait_seconds`."""

    reason: Message
    wait_seconds: float
    status: int = 0


Event = Upserted | Deleted | Synced | ServerResponded | Failed


class _ListedMeta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _ListedObject(msgspec.Struct):
    metadata: _ListedMeta = msgspec.field(default_factory=_ListedMeta)
    code: int = 0  # set for a Status in an ERROR event


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_object = msgspec.json.Decoder(_ListedObject)
_event = msgspec.json.Decoder(_Event)


class Reflector:
    """Lists and watches one kind of object; `sleep` may return early when the process shuts down."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        *,
        sleep: Callable[[float], None],
        chance: Callable[[], float] = random.random,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._api = api
        self._versions = resource.in_all_versions()
        self._resource = resource  # in the version that the server served last
        self._sleep = sleep
        self._chance = chance
        self._ended = ended
        self._known: dict[str, str] = {}  # key -> resourceVersion
        self._version = ""
        self._newest = 0  # the highest version seen in any list or watch
        self._failures = 0
        self._expired = 0  # consecutive 410 responses

    def events(self) -> Iterator[Event]:
        """Yield events until `ended` returns true."""
        while not self._ended():
            try:
                if not self._version:
                    yield from self._list()
                if self._version:
                    yield from self._watch()
            except ApiFailure as failure:
                if failure.status == 404:
                    self._version = ""  # list again: after an upgrade the server may serve another API version
                if failure.status == 410:
                    self._version = ""
                    self._expired += 1
                    if self._expired == 1:
                        continue
                    # successful lists in between reset the failure count; restore it so that the wait keeps growing
                    self._failures = max(self._failures, self._expired - 2)
                yield from self._fail(failure.text, failure.retry_after_seconds, failure.status)
            except msgspec.DecodeError as error:
                yield from self._fail(Message("a response cannot be read: {text}", text=str(error)))

    def _fail(self, reason: Message, at_least: float = 0.0, status: int = 0) -> Iterator[Event]:
        self._failures += 1
        longest = min(2.0 ** (self._failures - 1), LONGEST_WAIT_SECONDS)
        wait = max(longest * (0.5 + self._chance() / 2), min(at_least, LONGEST_WAIT_SECONDS))
        yield Failed(reason, wait, status)
        self._sleep(wait)

    def _list(self) -> Iterator[Event]:
        missing = set(self._known)
        count, version = 0, ""
        for items, version in self._pages():
            if _number(version) < self._newest:
                yield from self._fail(Message(_OUTDATED, version=version, other=self._newest))
                return
            self._newest = _number(version)  # even if this list ends early, the next list must not be older
            count += len(items)
            for body in items:
                meta = _object.decode(body).metadata
                key = _key(meta)
                missing.discard(key)
                if self._known.get(key) != meta.resource_version:
                    self._known[key] = meta.resource_version
                    yield Upserted(key, body, _number(meta.resource_version))
        for key in sorted(missing):
            del self._known[key]
            yield Deleted(key, version=_number(version))
        self._version, self._failures = version, 0
        yield Synced(count, _number(version))

    def _pages(self) -> Iterator[tuple[list[bytes], str]]:
        """Yield the pages of a list, in the newest API version that the server serves."""
        for resource in self._versions:
            self._resource = resource
            try:
                yield from self._api.list_pages(resource)
            except ApiFailure as failure:
                if failure.status != 404 or resource is self._versions[-1]:
                    raise
            else:
                return

    def _watch(self) -> Iterator[Event]:
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = self._resource.path()
        with self._api.stream(path, query, quiet_seconds=QUIET_SECONDS) as lines:
            yield ServerResponded()
            for line in lines:
                if self._ended():
                    return
                yield from self._events(line)
        yield ServerResponded()

    def _events(self, line: bytes) -> Iterator[Event]:
        event = _event.decode(line)
        body = bytes(event.object)
        found = _object.decode(body)
        if event.type == "ERROR":
            raise ApiFailure(found.code, "WatchEnded", body[:200].decode(errors="replace"))
        key, number = _key(found.metadata), _number(found.metadata.resource_version)
        # One event for each line: the consumer wakes up for each event.
        if event.type == "DELETED" and self._known.pop(key, None) is not None:
            yield Deleted(key, body, number, is_watched=True)
        elif event.type in ("BOOKMARK", "DELETED"):
            yield ServerResponded(number)
        else:
            self._known[key] = found.metadata.resource_version
            yield Upserted(key, body, number, is_watched=True)
        # Advance only after the event was emitted: a resumed watch skips everything up to this version.
        self._version, self._failures, self._expired = found.metadata.resource_version, 0, 0
        self._newest = max(self._newest, number)


_OUTDATED = (
    "the resource version {version} of the list is older than {other}, which was received before; if the cluster was "
    "restored from a backup, restart this process"
)


def _number(version: str) -> int:
    """Return a resourceVersion as a number, or 0 if it is not one (aggregated API servers may use other formats)."""
    return int(version) if version.isdecimal() else 0


def object_key(body: bytes) -> str:
    """Return `namespace/name` of an object, or its name if it has no namespace."""
    return _key(_object.decode(body).metadata)


def _key(meta: _ListedMeta) -> str:
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
