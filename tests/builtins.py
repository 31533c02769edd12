"""The built-in policies for tests, created once per process and copied by their rows afterwards.

Faked here: on SQLite, in real time and inside a test's transaction, the rows that the first `ensure_builtins` of the
process wrote are inserted again, with their keys, if their tables are as empty as they were then. Otherwise
`ensure_builtins` runs.
"""

from __future__ import annotations

from typing import Any

import time_machine
from django.db import connection

from hetsched.policies.actions import ensure_builtins

Rows = list[tuple[Any, ...]]
_copied: dict[str, Rows] = {}


def builtin_policies() -> None:
    """Create the built-in policies that do not exist yet."""
    real_time = not time_machine.escape_hatch.is_travelling()
    if connection.vendor != "sqlite" or not connection.in_atomic_block or not real_time:
        ensure_builtins()
    elif not _copied:
        _create_and_copy()
    elif any(_rows(table, limit=1) for table in _copied):
        ensure_builtins()
    else:
        with connection.cursor() as cursor:
            for table, rows in _copied.items():
                values = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({values})", rows)


def _create_and_copy() -> None:
    before = {table: _rows(table) for table in connection.introspection.table_names()}
    ensure_builtins()
    after = {table: _rows(table) for table in before}
    changed = [table for table in before if before[table] != after[table]]
    if not any(before[table] for table in changed):
        _copied.update({table: after[table] for table in changed})


def _rows(table: str, limit: int = -1) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} ORDER BY rowid LIMIT {limit}")
        return cursor.fetchall()
