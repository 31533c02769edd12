"""Database triggers that make rows immutable and restrict state changes to the allowed transitions.

`QuerySet.update` and raw SQL bypass `save`, so the database enforces these rules. An app registers its triggers. Each
run of `migrate` creates them again, so they match the code and exist after SQLite has rebuilt a table. DELETE is not
restricted, because retention and the removal of a cluster need it.
Invariant: a rejected statement changes nothing, and its error names the trigger's rule.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db import DEFAULT_DB_ALIAS, connections, models


class Guard(msgspec.Struct, frozen=True):
    """Trigger that rejects an UPDATE of `columns` (any, if empty) if the SQL `condition` over OLD and NEW is true."""

    name: str
    model: type[models.Model]
    message: str
    columns: tuple[str, ...] = ()
    condition: str = ""


_guards: dict[str, Guard] = {}


def guard(rule: Guard) -> None:
    """Register a trigger; it replaces an earlier trigger with the same name."""
    _guards[rule.name] = rule


def append_only(model: type[models.Model]) -> None:
    """Reject every UPDATE of the model's rows."""
    table = model._meta.db_table
    guard(Guard(f"{table}_append_only", model, f"{table} is append-only"))


def install_of(sender: Any, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create the triggers of one app; called after every migration."""
    connection = connections[using]
    statements = {"sqlite": _sqlite, "postgresql": _postgres}[connection.vendor]
    with connection.cursor() as cursor:
        for rule in _guards.values():
            if rule.model._meta.app_config is sender:
                for statement in statements(rule):
                    cursor.execute(statement)


def _of(rule: Guard) -> str:
    return f" OF {', '.join(rule.columns)}" if rule.columns else ""


def _sqlite(rule: Guard) -> list[str]:
    when = f" WHEN {rule.condition}" if rule.condition else ""
    return [
        f"DROP TRIGGER IF EXISTS {rule.name}",
        f"CREATE TRIGGER {rule.name} BEFORE UPDATE{_of(rule)} ON {rule.model._meta.db_table} FOR EACH ROW{when} "
        f"BEGIN SELECT RAISE(ABORT, '{rule.message}'); END",
    ]


def _postgres(rule: Guard) -> list[str]:
    table = rule.model._meta.db_table
    when = f" WHEN ({rule.condition})" if rule.condition else ""
    return [
        f"CREATE OR REPLACE FUNCTION {rule.name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{rule.message}' USING ERRCODE = 'check_violation'; END $$",
        f"DROP TRIGGER IF EXISTS {rule.name} ON {table}",
        f"CREATE TRIGGER {rule.name} BEFORE UPDATE{_of(rule)} ON {table} FOR EACH ROW{when} "
        f"EXECUTE FUNCTION {rule.name}()",
    ]
