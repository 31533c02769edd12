"""Bulk insert and update of rows of one model in few statements.

`bulk_create` prepares every field of every row and compiles its SQL, which takes longer than the statement itself. This
module looks up the conversion of each column once per model. Each insert then converts the rows to tuples and writes as
many rows per statement as the database allows. The stored rows are the same as with `bulk_create`. PostgreSQL receives
many rows as one JSON text: it then parses and plans a statement that does not depend on the number of rows, and an
update of many rows is one statement. It keeps the plan of an INSERT, which reads no stored table.
Invariant: after the insert each row has its ID, in the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import isfinite
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from django.db import connection, models
from django.db.models.base import ModelState
from django.utils import timezone

from .batches import batched
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


def refer(row: models.Model, relation: str, target: models.Model) -> None:
    """Set a relation to a row that has no ID yet, without the slow checks of Django's descriptor."""
    row._state.fields_cache[relation] = target
    row.__dict__[f"{relation}_id"] = None


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
        sql, values = columns.insert_sql(len(part)), columns.values_of(part)
        if columns.is_generated:
            for row, (pk,) in zip(part, sorted(fetch(sql, values, db, keep_plan=True)), strict=True):
                row.pk = pk
        else:
            change(sql, values, db, keep_plan=True)
    _mark_inserted(rows, db.alias)


def insert_together(*groups: Sequence[models.Model]) -> None:
    """Insert rows of several models; PostgreSQL receives a few rows as one statement, to save round trips.

    A relation may refer to a row of an earlier group that has no ID yet. PostgreSQL checks foreign keys at the commit,
    so the rows may also refer to each other by IDs that the caller has chosen.
    """
    filled = [rows for rows in groups if rows]
    db = own()
    saves_round_trips = db.vendor != "sqlite" and len(filled) > 1 and sum(map(len, filled)) <= _MOST_TOGETHER
    if saves_round_trips and _insert_as_one(filled, db):
        return
    for place, rows in enumerate(filled):
        _columns(type(rows[0]), db.vendor).set_references(rows, filled[:place])
        insert(rows)


def _insert_as_one(groups: Sequence[Sequence[models.Model]], db: Any) -> bool:
    """Insert rows in one statement; insert nothing and return False if a relation refers to one of several new rows."""
    inserts: list[str] = []
    reads: list[str] = []
    values: list[Any] = []
    generated: list[models.Model] = []
    new_ids: dict[int, str] = {}  # the SQL of the ID of each row that is the only one of its group
    for rows in groups:
        columns = _columns(type(rows[0]), db.vendor)
        references = columns.references(rows, new_ids)
        if references is None:
            return False
        name = f"inserted_{len(inserts)}"
        inserts.append(f"{name} AS ({columns.insert_sql(len(rows), references)})")
        values += columns.values_of(rows)
        if columns.is_generated:
            reads.append(f"SELECT {len(inserts)}, id FROM {name}")  # noqa: S608 - names of our own
            generated += rows
            if len(rows) == 1:
                new_ids[id(rows[0])] = f"(SELECT id FROM {name})"  # noqa: S608
    found = fetch(f"WITH {', '.join(inserts)} {' UNION ALL '.join(reads) or 'SELECT 0'}", values, db, keep_plan=True)
    if generated:  # the rows of a statement get ascending IDs in their order
        for row, (_, pk) in zip(generated, sorted(found), strict=True):
            row.pk = pk
    for place, rows in enumerate(groups):
        _columns(type(rows[0]), db.vendor).set_references(rows, groups[:place])
        _mark_inserted(rows, db.alias)
    return True


def _mark_inserted(rows: Sequence[models.Model], alias: str) -> None:
    for row in rows:
        row._state.adding, row._state.db = False, alias


def update(rows: Sequence[models.Model], names: Collection[str]) -> None:
    """Write the columns with these attribute names for many rows of one model."""
    if not rows:
        return
    model = type(rows[0])
    columns = _columns(model, own().vendor)
    plan = [(name, write) for name, write in columns.plan if name in names]
    values = [
        [*(getattr(row, name) if write is None else write(getattr(row, name)) for name, write in plan), row.pk]
        for row in rows
    ]
    write_values(model, [name for name, _ in plan], values)


def write_values(model: type[models.Model], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write columns of rows of one model; each of `rows` lists the stored values of `names`, then the row's key.

    If two of them have the same key, the last one is stored.
    """
    if not rows:
        return
    db = own()
    columns = _columns(model, db.vendor)
    if not columns.uses_json or len(rows) == 1:
        change_many(columns.update_sql(names), rows, db)
        return
    for some in batched(list({row[-1]: row for row in rows}.values()), _MOST_ROWS):
        change(columns.update_many_sql(tuple(names)), [columns.json_of((*names, columns.key), some), len(some)], db)


class _Columns:
    """The columns of a model on one kind of database.

    `plan` contains the attribute and the value conversion of each column that an insert writes: all but an ID that the
    database generates. `key` is the attribute of the primary key. `uses_json` is True if several rows are passed as one
    JSON text.
    """

    def __init__(self, model: type[models.Model]) -> None:
        ops = connection.ops
        moment = _adapter(connection.vendor)
        pk, fields = model._meta.pk, list[Any](model._meta.concrete_fields)
        assert pk is not None
        self.key, self._table = pk.attname, model._meta.db_table
        self._columns = {field.attname: field.column for field in fields}
        self._quoted = {name: ops.quote_name(column) for name, column in self._columns.items()}
        self._kinds = {field.attname: field.db_type(connection) for field in fields} | {
            pk.attname: pk.rel_db_type(connection)
        }
        self._documents = {field.attname for field in fields if isinstance(field, models.JSONField)}
        self._floats = {field.attname for field in fields if isinstance(field, models.FloatField)}
        self.uses_json = connection.vendor != "sqlite" and all(
            isinstance(field, (*_PLAIN, models.DateTimeField, models.JSONField, models.ForeignKey)) for field in fields
        )
        self.is_generated = isinstance(pk, models.AutoField)
        if self.is_generated:
            fields.remove(pk)
        self.plan: list[tuple[str, Write | None]] = [(field.attname, _write(field, moment)) for field in fields]
        self._conversions = [(place, write) for place, (_, write) in enumerate(self.plan) if write is not None]
        self.most_rows = min(_MOST_ROWS, _MOST_VALUES // len(fields))
        self._names = tuple(field.attname for field in fields)
        self._relations = [
            (field.attname, field.name, field.target_field) for field in fields if isinstance(field, models.ForeignKey)
        ]
        self._values = itemgetter(*self._names)
        self._single, self._many = self._insert_sql(1, {}), self._insert_sql(2, {}) if self.uses_json else ""
        self._updates: dict[tuple[str, ...], str] = {}

    def references(self, rows: Sequence[models.Model], new_ids: Mapping[int, str]) -> dict[str, str] | None:
        """Return the SQL of each column that refers to a row without an ID, from `new_ids`.

        Return None if the rows refer to several such rows, or to rows that are not in `new_ids`.
        """
        found: dict[str, str] = {}
        for name, relation, _ in self._relations:
            first, *others = (_new_target(row, name, relation) for row in rows)
            if any(target is not first for target in others):
                return None
            if first is not None:
                if id(first) not in new_ids:
                    return None
                found[name] = new_ids[id(first)]
        return found

    def set_references(self, rows: Sequence[models.Model], earlier: Sequence[Sequence[models.Model]]) -> None:
        """Set the IDs of relations to rows of `earlier` groups that had no ID when the relation was set.

        The relations do not keep these rows in memory. Raises: ValueError for a row that was not inserted.
        """
        targets = {type(group[0]) for group in earlier}
        for name, relation, key in self._relations:
            if key.model in targets:
                for row in rows:
                    target = _new_target(row, name, relation)
                    if target is not None:
                        if target.__dict__[key.attname] is None:
                            raise ValueError(f"{name} refers to a row that was not inserted")
                        row.__dict__[name] = target.__dict__[key.attname]
                        del row._state.fields_cache[relation]

    def values_of(self, rows: Sequence[models.Model]) -> list[Any]:
        """Return the values of rows for the placeholders of `insert_sql`."""
        values = [list(self._values(row.__dict__)) for row in rows]
        for place, write in self._conversions:
            for row_values in values:
                row_values[place] = write(row_values[place])
        if self.uses_json and len(rows) > 1:
            return [self.json_of(self._names, values)]
        return list(chain.from_iterable(values))

    def json_of(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
        """Return rows of stored values as a JSON array of objects."""
        columns = [self._columns[name] for name in names]
        documents = [place for place, name in enumerate(names) if name in self._documents]
        numbers = [place for place, name in enumerate(names) if name in self._floats]
        objects = []
        for values in rows:
            found = dict(zip(columns, values, strict=True))
            for place in numbers:
                if values[place] is not None and not isfinite(values[place]):
                    found[columns[place]] = str(values[place])  # JSON has no such numbers
            for place in documents:
                if values[place] is not None:
                    found[columns[place]] = msgspec.Raw(values[place].encode())
            objects.append(found)
        return _encoder.encode(objects).decode()

    def insert_sql(self, rows: int, references: Mapping[str, str] | None = None) -> str:
        """Return the statement that inserts this number of rows; `references` is the SQL of columns without a value."""
        if references:
            return self._insert_sql(rows, references)
        if rows == 1:
            return self._single
        return self._many or self._insert_sql(rows, {})

    def _insert_sql(self, rows: int, references: Mapping[str, str]) -> str:
        def value(name: str, given: str) -> str:
            return f"COALESCE({given}, {references[name]})" if name in references else given

        names = [self._quoted[name] for name in self._names]
        if self.uses_json and rows > 1:
            columns = ", ".join(map(value, self._names, names))
            source = f"SELECT {columns} FROM {self._record_set(self._names)}"  # noqa: S608 - names of our own
        else:
            line = f"({', '.join(value(name, '%s') for name in self._names)})"
            source = f"VALUES {', '.join([line] * rows)}"
        end = " RETURNING id" if self.is_generated else ""
        return f"INSERT INTO {self._table} ({', '.join(names)}) {source}{end}"

    def update_sql(self, names: Sequence[str]) -> str:
        """Return the statement that writes these columns of one row; the last value is the row's key."""
        places = ", ".join(f"{self._quoted[name]} = %s" for name in names)
        return f"UPDATE {self._table} SET {places} WHERE {self._quoted[self.key]} = %s"  # noqa: S608 - names of our own

    def update_many_sql(self, names: tuple[str, ...]) -> str:
        """Return the statement that writes these columns of many rows, whose values and keys are one JSON text."""
        sql = self._updates.get(names)
        if sql is None:
            places = ", ".join(f"{self._quoted[name]} = new.{self._quoted[name]}" for name in names)
            rows, key = self._record_set((*names, self.key)), self._quoted[self.key]
            # Without the LIMIT, PostgreSQL expects 100 rows and reads the whole table if it has less than 400 pages.
            some = f"(SELECT * FROM {rows} LIMIT %s) AS new"  # noqa: S608 - names of our own
            sql = f"UPDATE {self._table} AS old SET {places} FROM {some} WHERE old.{key} = new.{key}"  # noqa: S608
            self._updates[names] = sql
        return sql

    def _record_set(self, names: Sequence[str]) -> str:
        """Return the rows of a JSON text as a table with these columns."""
        kinds = ", ".join(f"{self._quoted[name]} {self._kinds[name]}" for name in names)
        return f"json_to_recordset(%s::json) AS new({kinds})"


def _new_target(row: models.Model, name: str, relation: str) -> models.Model | None:
    """Return the row that a relation refers to if the relation was set before that row had an ID."""
    if row.__dict__[name] is not None:
        return None
    target: models.Model | None = row._state.fields_cache.get(relation)
    return target


def _plain(value: Any) -> Any:
    """Return a value of a subclass of `int` or `str` as a plain one. Raises: TypeError for other values."""
    return int(value) if isinstance(value, int) else str.__str__(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain)


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
