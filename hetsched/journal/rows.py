"""Insert many rows of one kind by few statements.

Problem: `bulk_create` asks every field of every row to prepare, and its SQL to be compiled, which takes longer than the
database does.
Rule: per kind of row it is found out once how each column is written; then rows become tuples and go into statements of
as many rows as the database takes. What the rows are to the database is the same.
Invariant: after the insert each row knows its id, in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from django.db import connection, models
from django.utils import timezone

from .fields import written

_MOST_VALUES = 30_000  # SQLite takes 32,766 in one statement
_MOST_ROWS = 1000
_PLAIN = (models.CharField, models.TextField, models.IntegerField, models.FloatField, models.BooleanField)

Write = Callable[[Any], Any]


def insert(rows: Sequence[models.Model]) -> None:
    """Insert rows of one kind and give them their ids, where the database makes those."""
    if not rows:
        return
    model = type(rows[0])
    names, columns, writes, generated = _columns(model, connection.vendor)
    line = f"({', '.join(['%s'] * len(columns))})"
    head = f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) VALUES "  # noqa: S608 - names of our own
    end = " RETURNING id" if generated else ""
    size = min(_MOST_ROWS, _MOST_VALUES // len(columns))
    plan = list(zip(names, writes, strict=True))
    with connection.cursor() as cursor:
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            values = [
                [held[name] if write is None else write(held[name]) for name, write in plan]
                for held in (row.__dict__ for row in part)
            ]
            cursor.execute(head + ", ".join([line] * len(part)) + end, list(chain.from_iterable(values)))
            if generated:
                for row, (pk,) in zip(part, cursor.fetchall(), strict=True):
                    row.pk = pk
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


@lru_cache(maxsize=64)
def _columns(model: type[models.Model], vendor: str) -> tuple[list[str], list[str], list[Write | None], bool]:
    """Return the attributes of a row, their columns, how each is written, and whether the database makes the id."""
    fields: list[Any] = list(model._meta.concrete_fields)
    generated = isinstance(model._meta.pk, models.AutoField)
    if generated:
        fields.remove(model._meta.pk)
    return (
        [f.attname for f in fields],
        [connection.ops.quote_name(f.column) for f in fields],
        [_write(f) for f in fields],
        generated,
    )


def _write(field: Any) -> Write | None:
    if isinstance(field, models.JSONField):
        return written
    if isinstance(field, models.DateTimeField):
        return _created if field.auto_now_add else _moment
    if isinstance(field, models.ForeignKey) or type(field) in _KNOWN:
        return None
    return lambda value: field.get_db_prep_save(value, connection)


_KNOWN = {*_PLAIN, models.BigIntegerField, models.URLField}


def _created(value: Any) -> Any:
    return _moment(value or timezone.now())


def _moment(value: Any) -> Any:
    return None if value is None else _adapted(connection.vendor, value)


@lru_cache(maxsize=256)
def _adapted(vendor: str, value: Any) -> Any:
    """Return a moment as this kind of database takes it: rows that are written together mostly share theirs."""
    return connection.ops.adapt_datetimefield_value(value)
