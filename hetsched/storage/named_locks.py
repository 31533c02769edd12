"""Named locks that are held until the end of a transaction, to serialize counts and the use of single rows.

Two transactions that do not see each other's uncommitted rows could both count the same free slot, and two transactions
that acquire the same locks in different order deadlock. A caller therefore acquires all its locks in one call, and the
names are locked in sorted order. Locking a name again in the same transaction does not wait, unless a shared lock
becomes an exclusive one. SQLite has a single writer and needs no locks. If two transactions deadlock nevertheless, for
example because both share a lock and need it exclusively, the database aborts one of the two, and `retry_on_deadlock`
runs it again.
Source: PostgreSQL documentation, "Advisory Locks" and "Deadlocks".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from django.db import OperationalError, connection

from .statements import fetch

_TRIES = 4
_DEADLOCK = "40P01"
T = TypeVar("T")


def lock(names: Iterable[str], *, shared: bool = False) -> None:
    """Lock these names until the transaction ends; shared locks conflict only with exclusive locks."""
    if connection.vendor == "postgresql":
        function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
        for name in sorted(set(names)):
            fetch(f"SELECT {function}(hashtextextended(%s, 0))", [name])


def retry_on_deadlock(write: Callable[[], T]) -> T:
    """Run a function that is one transaction; run it again if the database aborted it to resolve a deadlock.

    Raises: the errors of `write`; inside an outer transaction the deadlock itself, because that transaction has failed
    too.
    """
    for _ in range(_TRIES - 1):
        try:
            return write()
        except OperationalError as error:
            if connection.in_atomic_block or getattr(error.__cause__, "sqlstate", "") != _DEADLOCK:
                raise
    return write()
