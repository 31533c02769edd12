"""Named locks held until the end of a transaction, for counts and single rows in tables with many writers.

Two transactions that do not see each other's uncommitted rows could both count the same free slot, and two transactions
that acquire the same locks in different order deadlock. A caller therefore acquires all its locks at once, before it
writes a row; the names are locked in sorted order. A name locked twice in one transaction does not wait. SQLite has one
writer and needs
no lock. If two transactions deadlock nevertheless, the database ends one of them and `retry_on_deadlock` runs it again.
Source: PostgreSQL documentation, "Advisory Locks" and "Deadlocks".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from django.db import OperationalError, connection

_TRIES = 4
_DEADLOCK = "40P01"
T = TypeVar("T")


def lock(names: Iterable[str]) -> None:
    """Lock these names until the transaction ends; wait for other holders."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for name in sorted(set(names)):
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def retry_on_deadlock(write: Callable[[], T]) -> T:
    """Run a function that is one transaction, again if the database ended it to resolve a deadlock.

    Raises: the errors of `write`; the deadlock itself inside an outer transaction, which has failed by then.
    """
    for _ in range(_TRIES - 1):
        try:
            return write()
        except OperationalError as error:
            if connection.in_atomic_block or getattr(error.__cause__, "sqlstate", "") != _DEADLOCK:
                raise
    return write()
