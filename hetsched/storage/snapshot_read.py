"""Consistent reads of several tables while other transactions write, and the clock that all processes share.

A snapshot read is one read-only transaction: REPEATABLE READ on PostgreSQL, a deferred transaction on SQLite, whose
writers never wait for its readers. Inside a running transaction the view of that transaction is used. Reservations and
locks expire by the clock of the database and never by the clock of a process, because a wrong clock would expire them
early.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import DateTimeField, Expression


@contextmanager
def consistent_reads() -> Iterator[None]:
    """Give all queries in the block the same view of the database."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        # Django would send BEGIN IMMEDIATE, which blocks writers.
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ROLLBACK")


def database_now() -> datetime:
    """Return the time of the database clock."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT clock_timestamp()")
            now: datetime = cursor.fetchone()[0]
            return now
        cursor.execute("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')")
        return datetime.fromisoformat(cursor.fetchone()[0]).replace(tzinfo=UTC)


_CLOCK = {"sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')", "postgresql": "clock_timestamp()"}


class DatabaseClock(Expression):
    """Time of the database clock while the statement runs, also inside a long transaction."""

    output_field = DateTimeField()

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return _CLOCK[connection.vendor], []


def clock() -> str:
    """Return the SQL for the time of the database clock; run it with parameters, because `%` is doubled in it."""
    return _CLOCK[connection.vendor]
