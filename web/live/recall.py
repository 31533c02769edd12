"""Re-check the permissions of every socket within seconds of a change.

Each revocation raises the revision of the topic `access` in the same transaction (`hetsched/access/changes.py`). One
task of this process reads that revision from the database every second while sockets are open, so nothing depends on a
message that may be lost, and a thousand sockets cost one query. A socket passes the revision that the topic had before
its permissions were read, so a new socket does not check twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

import structlog

from hetsched.access.changes import TOPIC

from . import socket_reads

LOOK_SECONDS = 1.0
log = structlog.get_logger(__name__)


class _RevisionWatch:
    def __init__(self) -> None:
        self.number = -1
        self.changed = asyncio.Event()
        self.waiting = 0
        self.task: asyncio.Task[None] | None = None

    async def look(self) -> None:
        while self.waiting:
            try:
                number = (await socket_reads.revisions([TOPIC])).get(TOPIC, 0)
            except Exception as error:  # without the database no permission can change
                log.warning("rights not looked at", error=repr(error))
            else:
                if number != self.number:
                    self.number, seen = number, self.changed
                    self.changed = asyncio.Event()
                    seen.set()
            await asyncio.sleep(LOOK_SECONDS)
        self.task = None


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _RevisionWatch] = WeakKeyDictionary()


async def until_rights_change(number: int, at_most_seconds: float) -> None:
    """Wait until permissions changed after this revision of the topic, or until the timeout."""
    watch = _watches.setdefault(asyncio.get_running_loop(), _RevisionWatch())
    watch.waiting += 1
    try:
        if watch.task is None:
            watch.number = -1  # a revision read without listeners is outdated
            watch.task = asyncio.create_task(watch.look())
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_seconds):
                # The caller's revision may be newer than the watched one for up to a second.
                while watch.number <= number:
                    await watch.changed.wait()
    finally:
        watch.waiting -= 1
