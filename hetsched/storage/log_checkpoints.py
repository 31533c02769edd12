"""Checkpoints of SQLite's write-ahead log in a background thread.

By default, SQLite copies the log to the database file during the commit that makes the log longer than 1,000 pages.
This commit waits until the disk has written both files, and all other writers wait with it. The informer process
therefore copies the log in a thread at short intervals. A commit of any process copies the log only if the log is
longer than the limit in the settings, which happens if the informer process does not run, or if commits follow each
other so closely that the log never starts again. PostgreSQL does the same in its own process.
The ADR `0029-background-checkpoints` contains the measurement.
Source: sqlite.org/wal.html, "Checkpointing".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import Error as DatabaseError
from django.db import connection

CHECKPOINT_SECONDS = 0.5
_copying = threading.Lock()  # SQLite rejects a copy while another one runs
log = structlog.get_logger(__name__)


@contextmanager
def background_checkpoints() -> Iterator[None]:
    """Copy the log every `CHECKPOINT_SECONDS` while the block runs; do nothing on PostgreSQL."""
    if connection.vendor != "sqlite":
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_run, args=(ended,), name="checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def checkpoint() -> tuple[int, int]:
    """Copy the log as far as no reader needs the old pages; return the pages in the log and the copied pages.

    Writers and readers do not wait for the copy. A second call waits for the first.
    """
    with _copying, connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        _, pages, copied = cursor.fetchone()
    return pages, copied


def checkpoint_before_read() -> None:
    """Copy the log before a read that takes seconds; do nothing on PostgreSQL.

    A log that is not copied completely cannot start again while a reader needs it. If it is longer than the limit,
    every commit until then copies it. This happens after the first list of a large cluster.
    """
    if connection.vendor == "sqlite":
        checkpoint()


def _run(ended: threading.Event) -> None:
    try:
        while not ended.wait(CHECKPOINT_SECONDS):
            try:
                checkpoint()
            except DatabaseError as error:
                log.warning("the log of the database was not copied", reason=str(error))
    finally:
        connection.close()
