"""Writers of one process, one after the other in the order in which they came, where the database has one writer.

Problem: SQLite lets those who wait for its one writer ask again in growing pauses: whoever waited longest asks least
often, and of many requests at once some wait for seconds while others come and go.
Rule: within a process writers queue here and only the first asks the database. Whoever is in a transaction already, or
has the turn, as what runs after a commit may, goes on at once: nobody waits for a turn while holding what its holder
waits for. A turn is waited for as long as the database is; then it is asked all the same. PostgreSQL has many writers:
there is no queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

PATIENCE_SECONDS = 20.0  # of SQLite itself, see the settings
_guard = threading.Lock()
_waiting: deque[threading.Lock] = deque()
_taken = [False]
_own = threading.local()  # `held` while the thread has the turn


@contextmanager
def turn() -> Iterator[None]:
    """Wait until it is this thread's turn to write, and hold the turn for the block."""
    alone = connection.vendor == "sqlite" and not connection.in_atomic_block and not getattr(_own, "held", False)
    held = alone and _take()
    if held:
        _own.held = True
    try:
        yield
    finally:
        if held:
            _own.held = False
            _give()


def _take() -> bool:
    with _guard:
        if not _taken[0]:
            _taken[0] = True
            return True
        own = threading.Lock()
        own.acquire()
        _waiting.append(own)
    if own.acquire(timeout=PATIENCE_SECONDS):
        return True
    with _guard:
        if own in _waiting:
            _waiting.remove(own)
            return False
    return True  # it was given at the last moment


def _give() -> None:
    with _guard:
        if _waiting:
            _waiting.popleft().release()
        else:
            _taken[0] = False
