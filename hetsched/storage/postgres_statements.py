"""Send SQL statements to PostgreSQL without Django's cursor.

The values are sent separately from the text. PostgreSQL plans each statement for its values and the present sizes of
the tables: a plan that a connection keeps stays that of small tables until the next ANALYZE. With 30,000 new pods, an
update of pods took 32 instead of 1.1 ms with such a plan. A connection therefore keeps a plan only if the caller
states that it does not depend on sizes. An INSERT of values needs half the time of PostgreSQL with a kept plan.
This module is imported only with PostgreSQL, because the import of psycopg takes time and memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX

_LONGEST_KEPT = 4096  # in characters; longer SQL texts are unlikely to repeat
_RUNS_WITHOUT_PLAN = 5  # a rare statement is not prepared, which would need one more round trip


def execute(db: Any, sql: str, values: Sequence[Any], *, keep_plan: bool = False) -> Any:
    """Send a statement on a connection of Django; return a cursor with its result."""
    connection: psycopg.Connection[Any] = db.connection
    cursor = psycopg.RawCursor(connection)
    if not keep_plan:
        return cursor.execute(_for_postgres(sql), values, prepare=False)
    before = connection.prepare_threshold  # by default None: Django's own statements keep no plans
    connection.prepare_threshold = _RUNS_WITHOUT_PLAN
    try:
        return cursor.execute(_for_postgres(sql), values)
    finally:
        connection.prepare_threshold = before


def _for_postgres(sql: str) -> Any:
    return _numbered(sql) if len(sql) <= _LONGEST_KEPT else _number(sql)


def _number(sql: str) -> str:
    if "%%" not in sql:  # the expression needs three times as long for many values
        first, *others = sql.split("%s")
        return "".join([first, *(f"${number}{part}" for number, part in enumerate(others, start=1))])
    numbers = itertools.count(1)
    return str(FORMAT_QMARK_REGEX.sub(lambda _: f"${next(numbers)}", sql)).replace("%%", "%")


_numbered = lru_cache(maxsize=512)(_number)
