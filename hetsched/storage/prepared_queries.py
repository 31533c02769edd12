"""Queries that are the same every time but for their values: built once, asked often.

Problem: Django puts a query together anew each time it is asked, which takes about ten times as long as SQLite takes to
answer it; a pod that comes to a live cluster by itself pays for some sixty of them.
Rule: a query is written with the ORM as ever, with `Given` and `Among` in the places of its values, and becomes SQL at
its first use on each kind of database. Lists are one value, so the text does not depend on their lengths. What comes
back is what the ORM would give: tuples of `values_list`, or rows of the model with those that `select_related` names.
Invariant: what is given never becomes part of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from django.db import connection
from django.db.models import Expression, Field, QuerySet
from django.db.models.query import FlatValuesListIterable, ModelIterable, get_related_populators
from django.db.models.sql import UpdateQuery

from .statements import change, fetch, own

T = TypeVar("T")


class Given(Expression):
    """One value, by the name under which it is given when the query is asked; `kind` where nothing beside it tells."""

    def __init__(self, name: str, kind: Field[Any, Any] | None = None) -> None:
        super().__init__(output_field=kind)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]


class Among(Given):
    """The numbers or texts of a list, on the right of `__in`."""

    def __init__(self, name: str, of: type[int] | type[str] = int) -> None:
        super().__init__(name)
        self.of = of

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        if connection.vendor == "sqlite":
            return "(SELECT value FROM json_each(%s))", [self]
        return f"(SELECT unnest(%s::{'bigint' if self.of is int else 'text'}[]))", [self]


class _Written(msgspec.Struct, frozen=True):
    """A query as one kind of database gets it: what of `values` is `Given` is put in, `gives` is what rows are."""

    sql: str
    values: tuple[Any, ...]
    converters: list[tuple[int, list[Any], Any]]
    compiler: Any
    gives: Any


class Prepared(Generic[T]):
    """A query, built at its first use; `build` is called once for each kind of database."""

    def __init__(self, build: Callable[[], QuerySet[Any, T]]) -> None:
        self._build = build
        self._written: dict[str, _Written] = {}

    def __call__(self, **given: Any) -> list[T]:
        """Return what the database has for these values."""
        db = own()
        one = self._written.get(db.vendor)
        if one is None:
            one = self._written[db.vendor] = _write(self._build())
        rows = fetch(one.sql, _put_in(one.values, given, db))
        if one.converters:
            rows = [_converted(row, one.converters, db) for row in rows]
        if one.gives is ModelIterable:
            return _models(rows, one.compiler, db.alias)
        return [row[0] for row in rows] if one.gives is FlatValuesListIterable else rows

    def first(self, **given: Any) -> T | None:
        """Return the first of what the database has, None where it has nothing."""
        return next(iter(self(**given)), None)


class PreparedUpdate:
    """An UPDATE, built at its first use: of the rows that `build` gives, these columns."""

    def __init__(self, build: Callable[[], QuerySet[Any, Any]], **columns: Any) -> None:
        self._build = build
        self._columns = columns
        self._written: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def __call__(self, **given: Any) -> int:
        """Change the rows of these values; return how many there were."""
        db = own()
        known = self._written.get(db.vendor)
        if known is None:
            query: Any = self._build().query.chain(UpdateQuery)
            query.add_update_values(self._columns)
            written = query.get_compiler(connection=connection).as_sql()
            known = self._written[db.vendor] = _text(*written)
        return change(known[0], _put_in(known[1], given, db))


def _put_in(values: tuple[Any, ...], given: dict[str, Any], db: Any) -> list[Any]:
    return [_value(given[each.name], each, db) if isinstance(each, Given) else each for each in values]


def _write(rows: QuerySet[Any, Any]) -> _Written:
    compiler = rows.query.get_compiler(connection=connection)
    sql, values = _text(*compiler.as_sql())
    found = compiler.get_converters([column for column, _, _ in compiler.select])
    converters = [(place, convert, expression) for place, (convert, expression) in found.items()]
    return _Written(sql, values, converters, compiler, rows._iterable_class)


def _text(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the text with the constants of the query in it, and the values that are left.

    SQLite uses a partial index only where the text itself says that its condition holds.
    """
    first, *others = sql.split("%s")
    parts, left = [first], []
    for value, part in zip(values, others, strict=True):
        if connection.vendor == "sqlite" and type(value) in (str, int, bool):
            parts += [_literal(value), part]
        else:
            parts += ["%s", part]
            left.append(value)
    return "".join(parts), tuple(left)


def _literal(value: str | int) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''").replace("%", "%%") + "'"
    return str(int(value))


def _value(value: Any, asked: Given, db: Any) -> Any:
    if isinstance(asked, Among):
        return msgspec.json.encode(list(value)).decode() if db.vendor == "sqlite" else list(value)
    return db.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value


def _converted(row: Any, converters: list[tuple[int, list[Any], Any]], db: Any) -> tuple[Any, ...]:
    values = list(row)
    for place, each, expression in converters:
        for convert in each:
            values[place] = convert(values[place], expression, db)
    return tuple(values)


def _models(rows: list[Any], compiler: Any, alias: str) -> list[Any]:
    """Make rows of a model, with those that belong to them, as the ORM does."""
    model, fields = compiler.klass_info["model"], compiler.klass_info["select_fields"]
    begin, end = fields[0], fields[-1] + 1
    names = [column.target.attname for column, _, _ in compiler.select[begin:end]]
    populators: Any = get_related_populators  # the stubs are of a later Django
    related = populators(compiler.klass_info, compiler.select, alias)
    found = []
    for row in rows:
        one = model.from_db(alias, names, row[begin:end])
        for populator in related:
            populator.populate(row, one)
        found.append(one)
    return found
