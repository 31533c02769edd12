"""Bulk insert and update of rows of one model in few statements.

`bulk_create` prepares every field of every row and compiles its SQL, which takes longer than the statement itself. This
module looks up the conversion of each column once per model. Each insert then converts the rows to tuples and writes as
many rows per statement as the database allows. The stored rows are the same as with `bulk_create`.
Invariant: after the insert each row has its ID, in the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from django.db import connection, models
from django.db.models.base import ModelState
from django.utils import timezone

from .json_fields import StructField, written
from .statements import change, change_many, fetch, own

_MOST_VALUES = 30_000  # SQLite accepts 32,766 values in one statement
_MOST_ROWS = 1000
_MOST_TOGETHER = 20  # rows of several models in one statement; with more rows a round trip no longer matters
M = TypeVar("M", bound=models.Model)
_PLAIN = (models.CharField, models.TextField, models.IntegerField, models.FloatField, models.BooleanField)

Write = Callable[[Any], Any]


def new(model: type[M], **columns: Any) -> M:
    """Return an unsaved row, five times as fast as a call of the model class; pass IDs of relations as `<name>_id`."""
    plain, made = _defaults(model)
    row = model.__new__(model)
    row._state = ModelState()
    held = row.__dict__
    held.update(plain)
    for name, make in made:
        if name not in columns:
            held[name] = make()
    held.update(columns)
    return row


@lru_cache(maxsize=64)
def _defaults(model: type[models.Model]) -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """Return the constant defaults of new rows, and the callables for the defaults that are computed for each row."""
    fields: list[Any] = list(model._meta.concrete_fields)
    made = [(f.attname, f.get_default) for f in fields if callable(f.default) and f.default is not models.NOT_PROVIDED]
    names = {name for name, _ in made}
    return {f.attname: f.get_default() for f in fields if f.attname not in names}, made


def insert(rows: Sequence[models.Model]) -> None:
    """Insert rows of one model and set the IDs that the database generates."""
    if not rows:
        return
    db = own()
    columns = _columns(type(rows[0]), db.vendor)
    for start in range(0, len(rows), columns.most_rows):
        part = rows[start : start + columns.most_rows]
        values = columns.values_of(part)
        if columns.is_generated:
            for row, (pk,) in zip(part, fetch(columns.insert_sql(len(part)), values, db), strict=True):
                row.pk = pk
        else:
            change(columns.insert_sql(len(part)), values, db)
    _mark_inserted(rows, db.alias)


def insert_together(*groups: Sequence[models.Model]) -> None:
    """Insert rows of several models; PostgreSQL receives a few rows as one statement, to save round trips.

    PostgreSQL checks foreign keys at the commit, so the rows may refer to each other by IDs that the caller has chosen.
    """
    filled = [rows for rows in groups if rows]
    db = own()
    if db.vendor == "sqlite" or len(filled) < 2 or sum(map(len, filled)) > _MOST_TOGETHER:
        for rows in filled:
            insert(rows)
        return
    inserts: list[str] = []
    reads: list[str] = []
    values: list[Any] = []
    generated: list[models.Model] = []
    for rows in filled:
        columns = _columns(type(rows[0]), db.vendor)
        name = f"inserted_{len(inserts)}"
        inserts.append(f"{name} AS ({columns.insert_sql(len(rows))})")
        values += columns.values_of(rows)
        if columns.is_generated:
            reads.append(f"SELECT {len(inserts)}, id FROM {name}")  # noqa: S608 - names of our own
            generated += rows
    found = fetch(f"WITH {', '.join(inserts)} {' UNION ALL '.join(reads) or 'SELECT 0'}", values, db)
    if generated:  # the rows of a statement get ascending IDs in their order
        for row, (_, pk) in zip(generated, sorted(found), strict=True):
            row.pk = pk
    for rows in filled:
        _mark_inserted(rows, db.alias)


def _mark_inserted(rows: Sequence[models.Model], alias: str) -> None:
    for row in rows:
        row._state.adding, row._state.db = False, alias


def update(rows: Sequence[models.Model], names: Collection[str]) -> None:
    """Write the columns with these attribute names for many rows of one model."""
    if not rows:
        return
    model = type(rows[0])
    key = model._meta.pk
    assert key is not None
    db = own()
    columns = _columns(model, db.vendor)
    chosen = [place for place, (name, _) in enumerate(columns.plan) if name in names]
    plan = [columns.plan[place] for place in chosen]
    values = [
        [*(getattr(row, name) if write is None else write(getattr(row, name)) for name, write in plan), row.pk]
        for row in rows
    ]
    places = ", ".join(f"{columns.names[place]} = %s" for place in chosen)
    sql = f"UPDATE {model._meta.db_table} SET {places} WHERE {key.column} = %s"  # noqa: S608 - names of our own
    change_many(sql, values, db)


class _Columns:
    """The columns of a model on one kind of database, without an ID that the database generates.

    `plan` contains the attribute and the value conversion of each column.
    """

    def __init__(self, model: type[models.Model]) -> None:
        ops = connection.ops
        moment = _adapter(connection.vendor)
        fields: list[Any] = list(model._meta.concrete_fields)
        self.is_generated = isinstance(model._meta.pk, models.AutoField)
        if self.is_generated:
            fields.remove(model._meta.pk)
        self.names = [ops.quote_name(field.column) for field in fields]
        self.plan: list[tuple[str, Write | None]] = [(field.attname, _write(field, moment)) for field in fields]
        self.most_rows = min(_MOST_ROWS, _MOST_VALUES // len(fields))
        self._line = f"({', '.join(['%s'] * len(fields))})"
        self._head = f"INSERT INTO {model._meta.db_table} ({', '.join(self.names)}) VALUES "  # noqa: S608 - names of our own
        self._end = " RETURNING id" if self.is_generated else ""
        self._single = self._head + self._line + self._end

    def values_of(self, rows: Sequence[models.Model]) -> list[Any]:
        """Return the values of rows in the order of the placeholders."""
        return [
            held[name] if write is None else write(held[name])
            for held in (row.__dict__ for row in rows)
            for name, write in self.plan
        ]

    def insert_sql(self, rows: int) -> str:
        """Return the statement that inserts this number of rows."""
        return self._single if rows == 1 else self._head + ", ".join([self._line] * rows) + self._end


@lru_cache(maxsize=64)
def _columns(model: type[models.Model], vendor: str) -> _Columns:
    return _Columns(model)


def _write(field: Any, moment: Write) -> Write | None:
    if isinstance(field, StructField):
        return field.written
    if isinstance(field, models.JSONField):
        return written
    if isinstance(field, models.DateTimeField):
        return (lambda value: moment(value or timezone.now())) if field.auto_now_add else moment
    if isinstance(field, models.ForeignKey) or type(field) in _KNOWN:
        return None
    return lambda value: field.get_db_prep_save(value, connection)


_KNOWN = {*_PLAIN, models.BigIntegerField, models.URLField}


@lru_cache(maxsize=4)
def _adapter(vendor: str) -> Write:
    """Return the database's datetime conversion with a cache, because the rows of one transaction share their times."""
    ops = connection.ops

    @lru_cache(maxsize=64)
    def moment(value: Any) -> Any:
        return None if value is None else ops.adapt_datetimefield_value(value)

    return moment
