"""Run database calls of sockets in the single thread that Channels reserves for them.

A call that may wait for a lock runs in another thread (`in_own_thread`), so that it does not delay the other sockets.
Channels closes the database connection after each call. SQLite reads schema and settings for each new connection, so
hundreds of sockets that reconnect at the same time would have to wait for the thread. An SQLite connection therefore
stays open for `KEPT_SECONDS`, or until a call on it fails. Other databases use their connection pool.
Queries that arrive while the thread is busy run together in its next batch; equal queries run once (`QueryBatcher`).
Invariant: no query gets a result that was read before the query was made, or the error of another query.
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
# Queries per batch: enough to outweigh the cost of waking the thread, but few enough that other calls run in between.
MOST_TOGETHER = 50
P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_kept: dict[str, Any] = {}  # database alias -> the latest connection opened in the database thread


class _InDatabase(SyncToAsync[P, T]):
    def thread_handler(self, loop: Any, *args: Any, **kwargs: Any) -> Any:
        _close_expired()
        try:
            return super().thread_handler(loop, *args, **kwargs)
        finally:
            _close_expired()


def in_database(call: Callable[P, T]) -> SyncToAsync[P, T]:
    """Wrap a function that reads rows so that it can be awaited."""
    return _InDatabase(call, thread_sensitive=True)


class _InOwnThread(SyncToAsync[P, T]):
    def thread_handler(self, loop: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().thread_handler(loop, *args, **kwargs)
        finally:
            connections.close_all()


def in_own_thread(call: Callable[P, T]) -> SyncToAsync[P, T]:
    """Wrap a rare function that may wait for a lock of the database so that it can be awaited."""
    return _InOwnThread(call, thread_sensitive=False)


class _PendingQueries(Generic[K, T]):
    """Queries of one event loop that wait for the next batch."""

    def __init__(self) -> None:
        self.waiting: dict[K, asyncio.Future[T]] = {}
        self.answering: asyncio.Task[None] | None = None


class QueryBatcher(Generic[K, T]):
    """Batcher of the database queries of many sockets: runs equal queries once, and different queries in one call.

    `wrap` selects the thread of the calls: `in_database` or `in_own_thread`.
    """

    def __init__(self, answer: Callable[[K], T], wrap: Callable[[Callable[[], Any]], Any] = in_database) -> None:
        self._answer = answer
        self._wrap = wrap
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _PendingQueries[K, T]] = WeakKeyDictionary()

    async def __call__(self, key: K) -> T:
        loop = asyncio.get_running_loop()
        asked = self._loops.setdefault(loop, _PendingQueries())
        future = asked.waiting.get(key)
        if future is None:
            future = asked.waiting[key] = loop.create_future()
            future.add_done_callback(_retrieve_exception)
        if asked.answering is None:
            asked.answering = loop.create_task(self._run_batches(asked))
        return await asyncio.shield(future)

    async def _run_batches(self, asked: _PendingQueries[K, T]) -> None:
        try:
            while asked.waiting:
                turn = {key: asked.waiting.pop(key) for key in list(islice(asked.waiting, MOST_TOGETHER))}
                try:
                    for future, (answer, error) in zip(turn.values(), await self._run_batch(list(turn)), strict=True):
                        if error is None:
                            future.set_result(answer)
                        else:
                            future.set_exception(error)
                finally:
                    for future in turn.values():
                        future.cancel()  # has an effect only after an exception: on futures without a result
        finally:
            asked.answering = None

    async def _run_batch(self, keys: list[K]) -> list[tuple[Any, Exception | None]]:
        found: list[tuple[Any, Exception | None]] = await self._wrap(lambda: [self._run_query(key) for key in keys])()
        return found

    def _run_query(self, key: K) -> tuple[Any, Exception | None]:
        try:
            return self._answer(key), None
        except Exception as error:  # the error is reported to the query's caller; the other queries still run
            _close_expired()
            return None, error


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future, so that asyncio does not log it if all callers have been cancelled."""
    if not future.cancelled():
        future.exception()


def _close_expired() -> None:
    now = time.monotonic()
    for connection in connections.all(initialized_only=True):
        is_new = _kept.get(connection.alias) is not connection.connection
        if connection.vendor == "sqlite" and connection.connection is not None and is_new:
            _kept[connection.alias] = connection.connection
            connection.close_at = now + KEPT_SECONDS
        connection.close_if_unusable_or_obsolete()
