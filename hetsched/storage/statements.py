"""Statements on their shortest way to the database.

Problem: what a cursor of Django does around a statement takes longer than SQLite takes to answer it; a pod that comes
to a live cluster by itself pays for some sixty of them.
Rule: on SQLite a statement goes to the open connection itself, its places turned into SQLite's once for each text.
What else a cursor does is done here too: the connection is opened, a transaction that is broken takes nothing more,
errors are Django's. Where somebody looks at statements (a wrapper, a log of queries), and on other databases, Django's
cursor is used.
Invariant: what comes back, and what is raised, is what Django's cursor would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX

_LONGEST_KEPT = 4096  # characters of a text that is likely to come again


def own() -> Any:
    """Return this thread's connection itself: each question to `django.db.connection` looks it up anew."""
    return connections[DEFAULT_DB_ALIAS]


def fetch(sql: str, values: Sequence[Any]) -> list[Any]:
    """Return the rows that a statement gives."""
    db = own()
    if _is_direct(db):
        with db.wrap_database_errors:
            rows: list[Any] = db.connection.execute(_for_sqlite(sql), values).fetchall()
            return rows
    with db.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def change(sql: str, values: Sequence[Any]) -> int:
    """Return how many rows a statement changed."""
    db = own()
    if _is_direct(db):
        with db.wrap_database_errors:
            return int(db.connection.execute(_for_sqlite(sql), values).rowcount)
    with db.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def change_many(sql: str, rows: Sequence[Sequence[Any]]) -> int:
    """Return how many rows a statement changed, once with each of these values."""
    db = own()
    if _is_direct(db):
        with db.wrap_database_errors:
            return int(db.connection.executemany(_for_sqlite(sql), rows).rowcount)
    if len(rows) == 1:  # one round trip less to PostgreSQL than a list of one
        return change(sql, rows[0])
    with db.cursor() as cursor:
        cursor.executemany(sql, rows)
        return int(cursor.rowcount)


def _is_direct(db: Any) -> bool:
    """Open the connection; tell whether nobody looks at what goes through it.

    Raises: TransactionManagementError where the transaction takes nothing more.
    """
    if db.vendor != "sqlite" or db.execute_wrappers or db.queries_logged:
        return False
    db.close_if_health_check_failed()
    db.ensure_connection()
    db.validate_no_broken_transaction()
    return True


def _for_sqlite(sql: str) -> str:
    return _turned(sql) if len(sql) <= _LONGEST_KEPT else _turn(sql)


def _turn(sql: str) -> str:
    return str(FORMAT_QMARK_REGEX.sub("?", sql)).replace("%%", "%")


_turned = lru_cache(maxsize=512)(_turn)
