"""Locks by name, held to the end of a transaction, for what is counted or written once in a table of many writers.

Problem: two transactions that each count what the other has not committed yet both find room for one more; and two that
take the same locks in different order wait for each other for ever.
Rule: whoever needs several names takes them at once; they are taken in the order of their names, before any row is
written. The same name twice in one transaction is no wait. SQLite has one writer, who needs none. Where two
transactions wait for each other all the same, the database ends one of them, which is carried out again.
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
    """Hold these names until the transaction ends; wait for whoever holds one of them."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for name in sorted(set(names)):
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def undisturbed(write: Callable[[], T]) -> T:
    """Carry out what is one transaction of its own, again where it was ended so that another could go on.

    Raises: whatever `write` raises; the deadlock itself inside another transaction, which is over by then.
    """
    for _ in range(_TRIES - 1):
        try:
            return write()
        except OperationalError as error:
            if connection.in_atomic_block or getattr(error.__cause__, "sqlstate", "") != _DEADLOCK:
                raise
    return write()
