"""Calls of sockets into the database, in the one thread that Channels keeps for them.

Problem: Channels closes a connection after each call; SQLite reads a schema and settings anew with each that is opened,
and hundreds of sockets that come back at once wait for one another, most of the time for the thread to be woken.
Rule: a connection to SQLite is kept for `KEPT_SECONDS`, or until something failed on it; any other is left to its pool.
What sockets ask while the thread is busy is asked in one turn of it, and what is the same, once (`Together`).
Invariant: nobody is answered by what was read before they asked, or by what is wrong with another's question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync
from django.db import connections

KEPT_SECONDS = 60.0
# In one turn of the thread: so many that a turn is worth it, so few that others come between.
MOST_TOGETHER = 50
P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_kept: dict[str, Any] = {}  # by alias: what was opened last in that thread


class _InDatabase(SyncToAsync[P, T]):
    def thread_handler(self, loop: Any, *args: Any, **kwargs: Any) -> Any:
        _close_old()
        try:
            return super().thread_handler(loop, *args, **kwargs)
        finally:
            _close_old()


def in_database(call: Callable[P, T]) -> SyncToAsync[P, T]:
    """Make a function that reads rows one that can be awaited."""
    return _InDatabase(call, thread_sensitive=True)


class _Asked(Generic[K, T]):
    """What waits for its turn in one event loop."""

    def __init__(self) -> None:
        self.waiting: dict[K, asyncio.Future[T]] = {}
        self.answering: asyncio.Task[None] | None = None


class Together(Generic[K, T]):
    """A question to the database that many sockets ask at the same time."""

    def __init__(self, answer: Callable[[K], T]) -> None:
        self._answer = answer
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Asked[K, T]] = WeakKeyDictionary()

    async def __call__(self, key: K) -> T:
        loop = asyncio.get_running_loop()
        asked = self._loops.setdefault(loop, _Asked())
        future = asked.waiting.get(key)
        if future is None:
            future = asked.waiting[key] = loop.create_future()
            future.add_done_callback(_noticed)
        if asked.answering is None:
            asked.answering = loop.create_task(self._take_turns(asked))
        return await asyncio.shield(future)

    async def _take_turns(self, asked: _Asked[K, T]) -> None:
        try:
            while asked.waiting:
                turn = {key: asked.waiting.pop(key) for key in list(islice(asked.waiting, MOST_TOGETHER))}
                try:
                    for future, (answer, error) in zip(turn.values(), await self._in_turn(list(turn)), strict=True):
                        if error is None:
                            future.set_result(answer)
                        else:
                            future.set_exception(error)
                finally:
                    for future in turn.values():
                        future.cancel()  # does nothing to one that is answered
        finally:
            asked.answering = None

    async def _in_turn(self, keys: list[K]) -> list[tuple[Any, Exception | None]]:
        return await in_database(lambda: [self._one(key) for key in keys])()

    def _one(self, key: K) -> tuple[Any, Exception | None]:
        try:
            return self._answer(key), None
        except Exception as error:  # told to who asked; the others' questions are asked all the same
            _close_old()
            return None, error


def _noticed(future: asyncio.Future[Any]) -> None:
    """Have an error count as seen also where everybody who asked has left meanwhile."""
    if not future.cancelled():
        future.exception()


def _close_old() -> None:
    now = time.monotonic()
    for connection in connections.all(initialized_only=True):
        is_new = _kept.get(connection.alias) is not connection.connection
        if connection.vendor == "sqlite" and connection.connection is not None and is_new:
            _kept[connection.alias] = connection.connection
            connection.close_at = now + KEPT_SECONDS
        connection.close_if_unusable_or_obsolete()
