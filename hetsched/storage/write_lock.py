"""Write lock for SQLite: the writers of a process run in order of arrival.

SQLite lets waiting writers retry with growing pauses. The writer that has waited longest therefore retries least often,
and under load some requests wait for seconds while later requests succeed. The writers of a process therefore wait for
this lock in a queue, and only the first writer accesses the database. A writer that is inside a transaction or already
holds the lock (an on-commit callback) proceeds immediately, so that no writer waits for the lock while it holds a
resource that the lock holder waits for. The first writer of each process polls a lock on a file in the database's
folder every half millisecond; the operating system releases that lock when a process ends. After a wait as long as the
database's busy timeout, a writer accesses the database without the lock. PostgreSQL permits concurrent writers and does
not use this lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

PATIENCE_SECONDS = 20.0  # the busy timeout of SQLite; see the settings
PAUSE_SECONDS = 0.0005
_guard = threading.Lock()
_waiting: deque[threading.Lock] = deque()
_taken = [False]
_own = threading.local()  # `held` while the thread has the lock
_files: dict[tuple[int, str], int | None] = {}  # by process ID: a forked process would share the locks of its parent


@contextmanager
def write_transaction() -> Iterator[None]:
    """Run the block in a transaction, or in a savepoint of the running transaction; on SQLite writers start in order.

    Every transaction that writes uses this, because Django begins SQLite transactions by acquiring the database's only
    write lock.
    """
    with write_lock(), transaction.atomic():
        yield


@contextmanager
def write_lock() -> Iterator[None]:
    """Hold the write lock in the block; use it for a single statement that runs as its own transaction."""
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
    return True  # the lock was acquired just after the timeout


def _give() -> None:
    with _guard:
        if _waiting:
            _waiting.popleft().release()
        else:
            _taken[0] = False


def _lock(database: str) -> int | None:
    """Acquire the lock between processes; return its descriptor, or None without a lock file or after a timeout."""
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
    """Return the open lock file of a database, or None for an in-memory database or if the file cannot be created."""
    key = process, database
    if key not in _files and os.path.isfile(database):
        try:
            _files[key] = os.open(f"{database}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            _files[key] = None
    return _files.get(key)
