"""Run SQL statements on PostgreSQL, which keeps the plans of those that a connection repeats.

Django's cursor writes the values into the text, and PostgreSQL then parses and plans each text again. Here the values
are sent separately. This module is imported only with PostgreSQL, because the import of psycopg takes time and memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX
from psycopg.adapt import PyFormat
from psycopg.types.numeric import Int8Dumper

LONGEST_KEPT = 4096  # in characters; the plan of a long text needs much memory


def execute(db: Any, sql: str, values: Sequence[Any]) -> Any:
    """Send a statement on a connection of Django; return a cursor with its result."""
    kept = len(sql) <= LONGEST_KEPT
    text: Any = _numbered(sql) if kept else _number(sql)
    return _cursor(db.connection).execute(text, values, prepare=None if kept else False)


def execute_many(db: Any, sql: str, rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement once with each of these rows of values; return the number of changed rows."""
    text: Any = _numbered(sql)
    cursor = _cursor(db.connection)
    cursor.executemany(text, rows)
    return int(cursor.rowcount)


def _cursor(connection: Any) -> Any:
    # psycopg chooses the type of an integer by its value, and PostgreSQL would keep a plan for each combination.
    if connection.adapters.get_dumper(int, PyFormat.AUTO) is not Int8Dumper:
        connection.adapters.register_dumper(int, Int8Dumper)
    return psycopg.RawCursor(connection)


def _number(sql: str) -> str:
    numbers = itertools.count(1)
    return str(FORMAT_QMARK_REGEX.sub(lambda _: f"${next(numbers)}", sql)).replace("%%", "%")


_numbered = lru_cache(maxsize=512)(_number)
