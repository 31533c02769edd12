"""Marker for tests that read statements and plans of SQLite, and costs of statements, which do not depend on the load.

The tests use SQLite unless another database is configured, so these tests run in every run of `make test`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

needs_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="reads statements and plans of SQLite")


def statement_costs(call: Callable[[], object]) -> Counter[str]:
    """Run a function; return the number of instructions of SQLite's virtual machine for each SQL statement, by text.

    Instructions that run while rows are fetched count for the latest statement.
    """
    costs: Counter[str] = Counter()
    current = "before the first statement"

    def count() -> bool:
        costs[current] += 1
        return False

    def wrapper(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal current
        current = sql
        return execute(sql, params, many, context)

    connection.ensure_connection()
    connection.connection.set_progress_handler(count, 1)
    try:
        with connection.execute_wrapper(wrapper):
            call()
    finally:
        connection.connection.set_progress_handler(None, 1)
    return costs
