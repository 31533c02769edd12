"""Read many tables as they were at one moment, while others write; and the time that all processes share.

Rule: one transaction that sees one state and writes nothing: REPEATABLE READ on PostgreSQL, a deferred transaction on
SQLite, whose writers never wait for its readers. Inside a transaction that runs already, that one's view is used. What
is held is never freed, nor taken over, by the clock of one process: one that was set wrong would do it early.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.db import connection, transaction


@contextmanager
def one_moment() -> Iterator[None]:
    """Let all queries of the block see the same state."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        # Django would begin IMMEDIATE and keep writers waiting.
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ROLLBACK")


def shared_now() -> datetime:
    """Return the time by the clock of the database."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT clock_timestamp()")
            told: datetime = cursor.fetchone()[0]
            return told
        cursor.execute("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')")
        return datetime.fromisoformat(cursor.fetchone()[0]).replace(tzinfo=UTC)


_CLOCK = {"sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')", "postgresql": "clock_timestamp()"}


def clock() -> str:
    """Return the time by the clock of the database as SQL, for a column that keeps one; to be sent with parameters."""
    return _CLOCK[connection.vendor]
