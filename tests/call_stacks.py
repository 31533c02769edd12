"""The modules between an entry point and its writes: those on the call stack when a row or a binding is written.

A module that only computes a value (types, readers, conversions) has already returned at that time and is not included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.backends.signals import connection_created

ROOT = str(Path(__file__).parents[1]) + "/"
PRODUCT = ("hetsched/", "web/", "workers/")
WRITES = ("INSERT", "UPDATE", "DELETE", "COMMIT")


class Stacks:
    """The modules found so far, in the order in which they were found."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}

    def note(self) -> None:
        """Add hetsched's modules on the stack of this thread, the outermost first."""
        frame, found = sys._getframe(1), []
        while frame is not None:
            path = frame.f_code.co_filename.removeprefix(ROOT)
            if path.startswith(PRODUCT):
                found.append(path)
            frame = frame.f_back  # type: ignore[assignment]
        self.modules.update(dict.fromkeys(reversed(found)))


@contextmanager
def stacks_at_writes(stacks: Stacks) -> Iterator[None]:
    """Record the stack at each write by SQLite in this thread and in threads that connect inside the block."""

    def on_statement(statement: str) -> None:
        if statement.lstrip().upper().startswith(WRITES):
            stacks.note()

    def on_connection(connection: Any, **_: Any) -> None:
        connection.connection.set_trace_callback(on_statement)

    connection.ensure_connection()
    on_connection(connection)
    connection_created.connect(on_connection)
    try:
        yield
    finally:
        connection_created.disconnect(on_connection)
        connection.connection.set_trace_callback(None)
