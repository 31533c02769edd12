"""When rights changed anywhere, every socket of this process looks at its own again within seconds.

Rule: whoever takes a right away raises the number of the topic `access` in the same transaction
(`hetsched/access/changes.py`). One task of this process reads that number from the database every second while sockets
are open, so nothing depends on a message that may be lost, and a thousand sockets cost one query. A socket says which
number the topic had before its rights were read: none looks twice because it has just come.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

import structlog

from hetsched.access.changes import TOPIC

from . import reading

LOOK_SECONDS = 1.0
log = structlog.get_logger(__name__)


class _Watch:
    def __init__(self) -> None:
        self.number = -1
        self.changed = asyncio.Event()
        self.waiting = 0
        self.task: asyncio.Task[None] | None = None

    async def look(self) -> None:
        while self.waiting:
            try:
                number = (await reading.revisions([TOPIC])).get(TOPIC, 0)
            except Exception as error:  # the database is away: nobody's rights change meanwhile
                log.warning("rights not looked at", error=repr(error))
            else:
                if number != self.number:
                    self.number, seen = number, self.changed
                    self.changed = asyncio.Event()
                    seen.set()
            await asyncio.sleep(LOOK_SECONDS)
        self.task = None


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()


async def until_rights_change(number: int, at_most_seconds: float) -> None:
    """Wait until somebody's rights changed after the topic had this number, or that long."""
    watch = _watches.setdefault(asyncio.get_running_loop(), _Watch())
    watch.waiting += 1
    try:
        if watch.task is None:
            watch.number = -1  # what was read while nobody listened tells nothing
            watch.task = asyncio.create_task(watch.look())
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_seconds):
                # It may be behind what this one has seen, for a second.
                while watch.number <= number:
                    await watch.changed.wait()
    finally:
        watch.waiting -= 1
