"""Calls of sockets into the database, in the one thread that Channels keeps for them.

Problem: Channels closes a connection after each call; SQLite reads a schema and settings anew with each that is opened,
and hundreds of sockets that come back at once wait for one another.
Rule: a connection to SQLite is kept for `KEPT_SECONDS`, or until something failed on it; any other is left to its pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import SyncToAsync
from django.db import connections

KEPT_SECONDS = 60.0
P = ParamSpec("P")
T = TypeVar("T")
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


def _close_old() -> None:
    now = time.monotonic()
    for connection in connections.all(initialized_only=True):
        is_new = _kept.get(connection.alias) is not connection.connection
        if connection.vendor == "sqlite" and connection.connection is not None and is_new:
            _kept[connection.alias] = connection.connection
            connection.close_at = now + KEPT_SECONDS
        connection.close_if_unusable_or_obsolete()
