"""Constants inlined in SQL: SQLite uses a partial index only if the SQL text contains the condition of the index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Value


def literal(value: str | int) -> str:
    """Return a constant as an SQL literal, with `%` doubled because the statement also has parameters."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''").replace("%", "%%") + "'"
    return str(int(value))


class Literal(Value):
    """Constant that an ORM query writes into its SQL text; use it for constants of the code, never for input."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return literal(self.value), []


def literals(values: Iterable[str | int]) -> list[Literal]:
    """Return constants for the right side of `__in`."""
    return [Literal(value) for value in values]
