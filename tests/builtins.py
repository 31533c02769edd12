"""The built-in policies for tests, created once per process and then copied as rows.

`ensure_builtins` runs only the first time in a process. After that, its rows are inserted again if the test uses SQLite
and real time, runs inside a transaction, and has no clusters, no policies and no policy events yet. Keys of journal
rows continue after the existing ones, and times are as long ago as at the first creation. In all other cases
`ensure_builtins` runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import time_machine
from django.db import connection
from django.utils import timezone

from hetsched.inventory.models import Cluster
from hetsched.journal.models import Topic
from hetsched.policies.actions import ensure_builtins
from hetsched.policies.models import Policy, PolicyRevision

Row = tuple[Any, ...]
_added: dict[str, list[Row]] = {}
_copied_at: list[datetime] = []


def builtin_policies() -> None:
    """Create the built-in policies that do not exist yet."""
    real_time = not time_machine.escape_hatch.is_travelling()
    if connection.vendor != "sqlite" or not connection.in_atomic_block or not real_time or not _is_first():
        ensure_builtins()
    elif not _added:
        _create_and_copy()
    else:
        age = timezone.now() - _copied_at[0]
        with connection.cursor() as cursor:
            for table, rows in _added.items():
                values = ", ".join(["%s"] * len(rows[0]))
                moved = [_moved(row, _last(table), age) for row in rows]
                cursor.executemany(f"INSERT INTO {table} VALUES ({values})", moved)


def _is_first() -> bool:
    """Return whether there are no clusters, no policies and no event about a policy."""
    present = (Cluster.objects, Policy.objects, PolicyRevision.objects, Topic.objects.filter(name="policies"))
    return not any(rows.exists() for rows in present)


def _create_and_copy() -> None:
    last = {table: _last(table) for table in connection.introspection.table_names()}
    ensure_builtins()
    _copied_at.append(timezone.now())
    for table, key in last.items():
        if rows := _rows(table, after=key):
            _added[table] = [_moved(row, -key, timedelta()) for row in rows]


def _moved(row: Row, offset: int, age: timedelta) -> Row:
    """Return the row with its key (if it is a number) and its times shifted."""
    key, *rest = row
    times = (value + age if isinstance(value, datetime) else value for value in rest)
    return (key + offset if isinstance(key, int) else key, *times)


def _last(table: str) -> int:
    return int(_query(f"SELECT COALESCE(MAX(rowid), 0) FROM {table}")[0][0])


def _rows(table: str, *, after: int) -> list[Row]:
    return _query(f"SELECT * FROM {table} WHERE rowid > {after} ORDER BY rowid")


def _query(statement: str) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()
