"""Writers one after the other, those of a process in the order in which they came, where the database has one writer.

Problem: SQLite lets those who wait for its one writer ask again in growing pauses: whoever waited longest asks least
often, and of many requests at once some wait for seconds while others come and go.
Rule: within a process writers queue here and only the first asks the database. Whoever is in a transaction already, or
has the turn, as what runs after a commit may, goes on at once: nobody waits for a turn while holding what its holder
waits for. The first ones of several processes ask for a lock of a file beside the database instead, every half
millisecond; the system gives it back when a process ends. A turn is waited for as long as the database is; then it is
asked all the same. PostgreSQL has many writers: there is no queue.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

PATIENCE_SECONDS = 20.0  # of SQLite itself, see the settings
PAUSE_SECONDS = 0.0005
_guard = threading.Lock()
_waiting: deque[threading.Lock] = deque()
_taken = [False]
_own = threading.local()  # `held` while the thread has the turn
_files: dict[tuple[int, str], int | None] = {}  # by process, for one that was forked shares the locks of its parent


@contextmanager
def turn() -> Iterator[None]:
    """Wait until it is this thread's turn to write, and hold the turn for the block."""
    alone = connection.vendor == "sqlite" and not connection.in_atomic_block and not getattr(_own, "held", False)
    held = alone and _take()
    if not held:
        yield
        return
    _own.held = True
    file = None
    try:
        file = _lock(str(connection.settings_dict["NAME"]))
        yield
    finally:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
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


def _lock(database: str) -> int | None:
    """Wait for the turn among processes and return its file; None where there is none, or the wait was too long."""
    file = _file(os.getpid(), database)
    until = time.monotonic() + PATIENCE_SECONDS
    while file is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(PAUSE_SECONDS)
        else:
            return file
    return None


def _file(process: int, database: str) -> int | None:
    """Return the open file beside a database; None for one that is no file, or where nothing may be written."""
    key = process, database
    if key not in _files and os.path.isfile(database):
        try:
            _files[key] = os.open(f"{database}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            _files[key] = None
    return _files.get(key)
