"""List and watch: a copy of one kind of object that is never silently old.

Problem: watches end, stall, are dropped by a busy server and forget their history; a copy that misses one deletion
books a node that is gone.
Rule: list in pages, then watch from the list's version. A watch that ends is resumed from the last version seen
(bookmarks move it along); 410 means list again, at once the first time and like a failure where it comes again before
anything else was heard. A list is compared with what is known, so that what went in between
comes out as a deletion. A server ends a watch after `WATCH_SECONDS`; a watch that says nothing for longer than
`QUIET_SECONDS` is given up. What cannot be read is a failure like any other. Failures wait 1, 2, 4 … 30 s with jitter,
or as long as the server asks for; each is told. A list that is older than what was seen already, as one API server of
several may give it after a failover, is a failure too: what is known stays until a list has caught up. Where etcd was
restored from a backup none ever does, and the process has to be started anew.
Source: Kubernetes documentation, "Efficient detection of changes" and, for versions that compare as numbers, KEP-5504;
client-go's reflector for the names.
Invariants: after `SYNCED` the consumer has seen exactly the objects of one list; a version is never used before all
events up to it were handed on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from .api import Api, ApiFailure, Resource

WATCH_SECONDS = 60
QUIET_SECONDS = 75.0
LONGEST_WAIT_SECONDS = 30.0


class Seen(msgspec.Struct, frozen=True):
    """An object as it is now; `body` is the API server's own JSON."""

    key: str
    body: bytes


class Gone(msgspec.Struct, frozen=True):
    """An object that is no more; `body` is its last state, empty where only its absence was noticed."""

    key: str
    body: bytes = b""


class Synced(msgspec.Struct, frozen=True):
    """Everything up to a list of `count` objects has been handed on."""

    count: int


class Alive(msgspec.Struct, frozen=True):
    """The server spoke: what is known was true just now."""


class Failed(msgspec.Struct, frozen=True):
    """A call failed, with an HTTP status if there was an answer; the next try comes after `wait_seconds`."""

    reason: str
    wait_seconds: float
    status: int = 0


Event = Seen | Gone | Synced | Alive | Failed


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    code: int = 0  # of a Status, in an ERROR event


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_object = msgspec.json.Decoder(_Object)
_event = msgspec.json.Decoder(_Event)


class Reflector:
    """Follows one kind of object; `sleep` may return early when the process is asked to end."""

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
        self._resource = resource
        self._sleep = sleep
        self._chance = chance
        self._ended = ended
        self._known: dict[str, str] = {}  # key -> version
        self._version = ""
        self._newest = 0  # the latest version that was ever seen
        self._failures = 0
        self._expired = 0  # times in a row that the version was too old

    def events(self) -> Iterator[Event]:
        """Yield what happens, until `ended`."""
        while not self._ended():
            try:
                if not self._version:
                    yield from self._list()
                if self._version:
                    yield from self._watch()
            except ApiFailure as failure:
                if failure.status == 410:
                    self._version = ""
                    self._expired += 1
                    if self._expired == 1:
                        continue
                    self._failures = max(self._failures, self._expired - 2)  # lists that succeed in between set it back
                yield from self._fail(str(failure), failure.retry_after_seconds, failure.status)
            except msgspec.DecodeError as error:
                yield from self._fail(f"an answer cannot be read: {error}")

    def _fail(self, reason: str, at_least: float = 0.0, status: int = 0) -> Iterator[Event]:
        self._failures += 1
        longest = min(2.0 ** (self._failures - 1), LONGEST_WAIT_SECONDS)
        wait = max(longest * (0.5 + self._chance() / 2), min(at_least, LONGEST_WAIT_SECONDS))
        yield Failed(reason, wait, status)
        self._sleep(wait)

    def _list(self) -> Iterator[Event]:
        items, version = self._api.list_all(self._resource)
        if _number(version) < self._newest:
            yield from self._fail(
                f"the list is of version {version}, and {self._newest} was seen already; "
                "if the cluster was restored from a backup, start this process anew"
            )
            return
        missing = set(self._known)
        for body in items:
            meta = _object.decode(body).metadata
            key = _key(meta)
            missing.discard(key)
            if self._known.get(key) != meta.resource_version:
                self._known[key] = meta.resource_version
                yield Seen(key, body)
        for key in sorted(missing):
            del self._known[key]
            yield Gone(key)
        self._version, self._newest, self._failures = version, _number(version), 0
        yield Synced(len(items))

    def _watch(self) -> Iterator[Event]:
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = self._resource.path()
        with self._api.stream(path, query, quiet_seconds=QUIET_SECONDS) as lines:
            yield Alive()
            for line in lines:
                if self._ended():
                    return
                yield from self._heard(line)
        yield Alive()

    def _heard(self, line: bytes) -> Iterator[Event]:
        event = _event.decode(line)
        body = bytes(event.object)
        found = _object.decode(body)
        if event.type == "ERROR":
            raise ApiFailure(found.code, "WatchEnded", body[:200].decode(errors="replace"))
        key = _key(found.metadata)
        if event.type == "DELETED":
            if self._known.pop(key, None) is not None:
                yield Gone(key, body)
        elif event.type != "BOOKMARK":
            self._known[key] = found.metadata.resource_version
            yield Seen(key, body)
        # Only now: what was handed on is what a resumed watch may leave out.
        self._version, self._failures, self._expired = found.metadata.resource_version, 0, 0
        self._newest = max(self._newest, _number(self._version))
        yield Alive()


def _number(version: str) -> int:
    """Return a version as a number; those of other API servers than Kubernetes' own need not be one."""
    return int(version) if version.isdecimal() else 0


def _key(meta: _Meta) -> str:
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
