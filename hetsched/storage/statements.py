"""Run SQL statements with little overhead.

A Django cursor adds more time to a statement than SQLite needs to run it, and each new pod of a live cluster causes
some sixty statements. A statement is therefore sent directly to the open connection; its placeholders are converted to
those of the database once per SQL text. In all other respects a statement behaves as with a cursor: the connection is
opened if necessary, a broken transaction rejects statements, and errors are Django's. The Django cursor is used with
execute wrappers or a query log.
Invariant: results and errors are the same as those of a Django cursor, except for the types of values on PostgreSQL.
Django's cursor writes the values into the SQL text; a direct statement sends them separately: texts and None without a
type, and integers with the smallest type that contains them. If the statement itself does not determine the type, as in
`concat(%s, 'b')` or `%s IS NULL`, the value needs a cast (`%s::text`). Two equal values are different parameters, so an
expression with a parameter cannot be repeated in GROUP BY.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX

_LONGEST_KEPT = 4096  # in characters; longer SQL texts are unlikely to repeat


def own() -> Any:
    """Return this thread's connection; using `django.db.connection` would look it up at each attribute access."""
    return connections[DEFAULT_DB_ALIAS]


def fetch(sql: str, values: Sequence[Any], db: Any = None, *, keep_plan: bool = False) -> list[Any]:
    """Return the rows of a statement; `db` is the result of `own`, if the caller has it, as in the other functions.

    `keep_plan` is True if the best plan on PostgreSQL does not depend on the values and the sizes of the tables; see
    `postgres_statements`. Use it only inside a transaction: if a migration changes the type of a result, the statement
    fails, and the rollback discards the plan.
    """
    db = db or own()
    if _is_direct(db):
        with db.wrap_database_errors:
            rows: list[Any] = _execute(db, sql, values, keep_plan).fetchall()
            return rows
    with db.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def change(sql: str, values: Sequence[Any], db: Any = None, *, keep_plan: bool = False) -> int:
    """Run a statement, as `fetch` does; return the number of rows that it changed."""
    db = db or own()
    if _is_direct(db):
        with db.wrap_database_errors:
            return int(_execute(db, sql, values, keep_plan).rowcount)
    with db.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def change_many(sql: str, rows: Sequence[Sequence[Any]], db: Any = None) -> int:
    """Run a statement once with each of these rows of values; return the number of changed rows."""
    if not rows:
        return 0
    db = db or own()
    if len(rows) == 1:  # saves a round trip to PostgreSQL
        return change(sql, rows[0], db)
    if db.vendor == "sqlite" and _is_direct(db):
        with db.wrap_database_errors:
            return int(db.connection.executemany(_for_sqlite(sql), rows).rowcount)
    with db.cursor() as cursor:
        cursor.executemany(sql, rows)
        return int(cursor.rowcount)


def _is_direct(db: Any) -> bool:
    """Open the connection; return True if statements can skip the cursor: no wrappers and no query log are in use.

    Raises: TransactionManagementError in a broken transaction.
    """
    if db.execute_wrappers or db.queries_logged:
        return False
    db.close_if_health_check_failed()
    db.ensure_connection()
    db.validate_no_broken_transaction()
    return True


def _execute(db: Any, sql: str, values: Sequence[Any], keep_plan: bool) -> Any:
    """Send a statement directly; return a cursor with its result."""
    if db.vendor == "sqlite":
        return db.connection.execute(_for_sqlite(sql), values)
    from .postgres_statements import execute

    return execute(db, sql, values, keep_plan=keep_plan)


def _for_sqlite(sql: str) -> str:
    return _turned(sql) if len(sql) <= _LONGEST_KEPT else _turn(sql)


def _turn(sql: str) -> str:
    if "%%" not in sql:  # the expression needs 2 ms for an insert of 1000 rows
        return sql.replace("%s", "?")
    return str(FORMAT_QMARK_REGEX.sub("?", sql)).replace("%%", "%")


_turned = lru_cache(maxsize=512)(_turn)
