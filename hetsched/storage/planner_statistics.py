"""Statistics for SQLite's query planner.

Without statistics, SQLite assumes that each indexed column selects about ten rows. It then searches pods by state,
although a cluster has many pods in a state, instead of by name. An app therefore registers the sizes of its large
tables in a fleet that has run for days. Each run of `migrate` writes them to SQLite's table of statistics, which SQLite
reads when a connection opens. PostgreSQL collects statistics itself.
Source: sqlite.org/fileformat2.html, "The sqlite_stat1 table".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from django.db import DEFAULT_DB_ALIAS, connections, models


class TableSize(msgspec.Struct, frozen=True):
    """Size of a table: its rows, the distinct values of columns, and the rows of partial indexes, by index name.

    A column without a number has a different value in each row.
    """

    model: type[models.Model]
    rows: int
    distinct: Mapping[str, int]
    partial: Mapping[str, int]


_sizes: dict[str, TableSize] = {}


def register_size(size: TableSize) -> None:
    """Register the size of a table; it replaces an earlier size of the same table."""
    _sizes[size.model._meta.db_table] = size


def install(sender: Any, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Write the statistics of one app; called after every migration."""
    connection = connections[using]
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        for table, size in _sizes.items():
            if size.model._meta.app_config is not sender:
                continue
            cursor.execute("PRAGMA analysis_limit = 1")
            cursor.execute(f"ANALYZE {table}")  # creates the table of statistics
            cursor.execute("DELETE FROM sqlite_stat1 WHERE tbl = %s", [table])
            rows = [(table, index, text) for index, text in _statistics(cursor, table, size)]
            cursor.executemany("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (%s, %s, %s)", rows)
            cursor.execute("ANALYZE sqlite_schema")  # reads the table of statistics again


def _statistics(cursor: Any, table: str, size: TableSize) -> Iterator[tuple[str, str]]:
    """Yield each index with its number of entries, and the average number of entries for each prefix of its columns."""
    cursor.execute(f"PRAGMA index_list({table})")
    for index in [row[1] for row in cursor.fetchall()]:
        remaining = rows = size.partial.get(index, size.rows)
        numbers = [rows]
        cursor.execute(f"PRAGMA index_info({index})")
        for column in [row[2] for row in cursor.fetchall()]:
            remaining = max(1, remaining // size.distinct.get(column, remaining))
            numbers.append(remaining)
        yield index, " ".join(map(str, numbers))
