"""Prepared queries, which are compiled once and run often with different values.

Django compiles a query each time it runs, which takes about ten times as long as the query in SQLite, and each new pod
of a live cluster causes some sixty queries. A prepared query is written with the ORM, with `Parameter` and
`ListParameter` as placeholders for its values, and is compiled to SQL at its first use on each kind of database. A list
is passed as one value, so the SQL does not depend on its length. The result is the same as the ORM's: tuples of
`values_list`, or rows of the model with their annotations and the relations of `select_related`.
Invariant: a value that is passed to a query never becomes part of its SQL text. Constants of the query do on SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from django.db import connection
from django.db.models import Expression, Field, QuerySet
from django.db.models.base import ModelState
from django.db.models.query import FlatValuesListIterable, ModelIterable, get_related_populators
from django.db.models.sql import UpdateQuery

from hetsched.contracts.documents import encode

from .literals import literal
from .statements import change, fetch, own

T = TypeVar("T")
_LIST = re.compile(r" IN \((ANY\(%s::\w+\[\]\))\)")  # Django writes IN and parentheses for a `ListParameter`


class Parameter(Expression):
    """Placeholder for one value, by name; pass `kind` if the query does not determine its field."""

    def __init__(self, name: str, kind: Field[Any, Any] | None = None) -> None:
        super().__init__(output_field=kind)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]


class ListParameter(Parameter):
    """Placeholder for a list of integers or strings, on the right of `__in`.

    On PostgreSQL, the condition has the form `column = ANY(array)`, which can use an index of several columns.
    """

    def __init__(self, name: str, of: type[int] | type[str] = int) -> None:
        super().__init__(name)
        self.of = of

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        if connection.vendor == "sqlite":
            return "(SELECT value FROM json_each(%s))", [self]
        return f"ANY(%s::{'bigint' if self.of is int else 'text'}[])", [self]


class _CompiledQuery(msgspec.Struct, frozen=True):
    """Query compiled for one kind of database.

    Each run replaces the `Parameter`s in `values` with the given values. `columns` are the selected columns. `models`
    is None for a query that returns tuples, or single values if `is_flat` is True.
    """

    sql: str
    values: tuple[Any, ...]
    columns: str
    converters: list[tuple[int, list[Any], Any]]
    models: _ModelReader | None
    is_flat: bool

    def read(self, rows: list[Any], db: Any) -> list[Any]:
        """Return database rows converted to the query's row type."""
        if self.converters:
            rows = [_converted(row, self.converters, db) for row in rows]
        if self.models is not None:
            return [self.models.read(row) for row in rows]
        return [row[0] for row in rows] if self.is_flat else rows


class _ModelReader:
    """Converts rows to rows of a model with their annotations and `select_related` relations, as the ORM does.

    The columns are set without a call of the model's class, which takes several times as long.
    """

    def __init__(self, compiler: Any) -> None:
        self._model, fields = compiler.klass_info["model"], compiler.klass_info["select_fields"]
        self._begin, self._end = fields[0], fields[-1] + 1
        self._alias = compiler.connection.alias
        self._names = [column.target.attname for column, _, _ in compiler.select[self._begin : self._end]]
        populators: Any = get_related_populators  # untyped: the type stubs are those of a later Django version
        self._related = populators(compiler.klass_info, compiler.select, self._alias)
        self._annotations = list(compiler.annotation_col_map.items())

    def read(self, row: tuple[Any, ...]) -> Any:
        item = self._model.__new__(self._model)
        item._state = ModelState()
        item._state.adding, item._state.db = False, self._alias
        item.__dict__.update(zip(self._names, row[self._begin : self._end], strict=True))
        for populator in self._related:
            populator.populate(row, item)
        for name, place in self._annotations:
            setattr(item, name, row[place])
        return item


class PreparedQuery(Generic[T]):
    """Query that is compiled at its first use; `build` is called once for each kind of database."""

    def __init__(self, build: Callable[[], QuerySet[Any, T]]) -> None:
        self._build = build
        self._written: dict[str, _CompiledQuery] = {}

    def __call__(self, *, limit: int | None = None, **given: Any) -> list[T]:
        """Run the query with these values and return its rows, at most `limit`."""
        db = own()
        query = self._written.get(db.vendor)
        if query is None:
            query = self._written[db.vendor] = _write(self._build())
        values = _bound_values(query.values, given, db)
        if limit is None:
            return query.read(fetch(query.sql, values, db), db)
        return query.read(fetch(f"{query.sql} LIMIT %s", [*values, limit], db), db)

    def first(self, **given: Any) -> T | None:
        """Return the first row, or None if there are no rows."""
        return next(iter(self(**given)), None)


class PreparedUpdate:
    """UPDATE of some columns of the rows that `build` selects, compiled at its first use.

    `keep_plan` has the meaning of `statements.fetch`.
    """

    def __init__(self, build: Callable[[], QuerySet[Any, Any]], *, keep_plan: bool = False, **columns: Any) -> None:
        self._build = build
        self._keep_plan = keep_plan
        self._columns = columns
        self._written: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._returned: dict[str, _CompiledQuery] = {}

    def __call__(self, **given: Any) -> int:
        """Update the rows that match these values; return the number of updated rows."""
        db = own()
        sql, values = self._compiled(db)
        return change(sql, _bound_values(values, given, db), db, keep_plan=self._keep_plan)

    def rows(self, **given: Any) -> list[Any]:
        """Update the rows that match these values; return the rows with their new columns."""
        db = own()
        query = self._returned.get(db.vendor)
        if query is None:
            sql, values = self._compiled(db)
            read = _write(self._build())
            returning = msgspec.structs.replace(read, sql=f"{sql} RETURNING {read.columns}", values=values)
            query = self._returned[db.vendor] = returning
        found = fetch(query.sql, _bound_values(query.values, given, db), db, keep_plan=self._keep_plan)
        return query.read(found, db)

    def _compiled(self, db: Any) -> tuple[str, tuple[Any, ...]]:
        known = self._written.get(db.vendor)
        if known is None:
            query: Any = self._build().query.chain(UpdateQuery)
            query.add_update_values(self._columns)
            known = self._written[db.vendor] = _text(*query.get_compiler(connection=connection).as_sql())
        return known


def _bound_values(values: tuple[Any, ...], given: dict[str, Any], db: Any) -> list[Any]:
    return [_value(given[each.name], each, db) if isinstance(each, Parameter) else each for each in values]


def _write(rows: QuerySet[Any, Any]) -> _CompiledQuery:
    compiler = rows.query.get_compiler(connection=connection)
    sql, values = _text(*compiler.as_sql())
    found = compiler.get_converters([column for column, _, _ in compiler.select])
    converters = [(place, convert, expression) for place, (convert, expression) in found.items()]
    columns = ", ".join(column for _, (column, _), _ in compiler.select)
    models = _ModelReader(compiler) if rows._iterable_class is ModelIterable else None
    return _CompiledQuery(sql, values, columns, converters, models, rows._iterable_class is FlatValuesListIterable)


def _text(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL and its values; on SQLite, texts and numbers among the constants are inlined in the SQL.

    SQLite uses a partial index only if the SQL text itself contains the condition of the index. PostgreSQL plans each
    statement for its values (see `postgres_statements`), so the constants remain values there.
    """
    sql = _LIST.sub(r" = \1", sql)
    first, *others = sql.split("%s")
    parts, remaining = [first], []
    for value, part in zip(values, others, strict=True):
        if connection.vendor == "sqlite" and type(value) in (str, int, bool):
            parts += [literal(value), part]
        else:
            parts += ["%s", part]
            remaining.append(value)
    return "".join(parts), tuple(remaining)


def _value(value: Any, asked: Parameter, db: Any) -> Any:
    if isinstance(asked, ListParameter):
        return encode(list(value)).decode() if db.vendor == "sqlite" else list(value)
    return db.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value


def _converted(row: Any, converters: list[tuple[int, list[Any], Any]], db: Any) -> tuple[Any, ...]:
    values = list(row)
    for place, each, expression in converters:
        for convert in each:
            values[place] = convert(values[place], expression, db)
    return tuple(values)
