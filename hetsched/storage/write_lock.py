"""Write lock of SQLite: writers of a process run in order of arrival.

SQLite lets waiting writers retry with growing pauses. The writer that waits longest thus retries least often, and under
load some requests wait for seconds while later requests succeed. Within a process, writers therefore queue here and
only the first asks
the database. A writer that is inside a transaction or holds the lock already (an on-commit callback) proceeds at once,
so that no writer waits for the lock while it holds something that the lock holder waits for. The first writers of
several processes poll a lock on a file next to the database every half millisecond; the system releases it when a
process ends. The wait for the lock is as long as the database's own wait; then the writer asks the database directly.
PostgreSQL has many writers and uses no queue.
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

PATIENCE_SECONDS = 20.0  # the busy timeout of SQLite, see the settings
PAUSE_SECONDS = 0.0005
_guard = threading.Lock()
_waiting: deque[threading.Lock] = deque()
_taken = [False]
_own = threading.local()  # `held` while the thread has the lock
_files: dict[tuple[int, str], int | None] = {}  # by process ID: a forked process would share the locks of its parent


@contextmanager
def write_transaction() -> Iterator[None]:
    """Run the block in a transaction, or in a savepoint of the running one; on SQLite writers start in order.

    Every transaction that writes uses this: Django begins SQLite transactions with the lock of the only writer.
    """
    with write_lock(), transaction.atomic():
        yield


@contextmanager
def write_lock() -> Iterator[None]:
    """Take the write lock for the block; for one statement that is a transaction of its own."""
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
    return True  # the lock was assigned just after the timeout


def _give() -> None:
    with _guard:
        if _waiting:
            _waiting.popleft().release()
        else:
            _taken[0] = False


def _lock(database: str) -> int | None:
    """Wait for the lock among processes and return its file; None without a file or after a timeout."""
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
    """Return the open lock file of a database; None for an in-memory database, or where the file cannot be created."""
    key = process, database
    if key not in _files and os.path.isfile(database):
        try:
            _files[key] = os.open(f"{database}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            _files[key] = None
    return _files.get(key)
