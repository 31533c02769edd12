"""Statements without Django's cursor, on PostgreSQL: results and stored plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.driver import Driver
from tests.system.plane import served

pytestmark = pytest.mark.needs("postgres", "redis-server")
# The tests of SQLite, each in a transaction that is rolled back.
_BOTH = """
from django.db import transaction
from tests.apps import {module}
with transaction.atomic():
    {module}.{test}({arguments})
    transaction.set_rollback(True)
print("passed")
"""
_PLANS = """
from hetsched.storage.statements import change, fetch
text = "SELECT id FROM inventory_cluster WHERE revision = %s AND name LIKE 'a%%'"
for power in range(6):
    fetch(text, [1000**power])
kept = fetch("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %s", ["SELECT id FROM inventory%"])
long = text + " " * 5000
for power in range(6):
    fetch(long, [power])
print(kept, fetch("SELECT count(*) FROM pg_prepared_statements WHERE length(statement) > %s", [4999]))
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with served() as plane:
        assert plane.driver
        yield plane.driver


@pytest.mark.parametrize(
    ("module", "test", "arguments"),
    [
        ("test_direct_statements", "test_rows_counts_and_a_percent_sign", "None"),
        ("test_direct_statements", "test_errors_are_djangos", "None"),
        ("test_direct_statements", "test_failed_transaction_rejects_statements", "None"),
        ("test_direct_statements", "test_rolled_back_statement_has_no_effect", "None"),
        ("test_direct_statements", "test_query_listeners_receive_each_statement", ""),
    ],
)
def test_statements_behave_as_on_sqlite(driver: Driver, module: str, test: str, arguments: str) -> None:
    assert driver("execute", code=_BOTH.format(module=module, test=test, arguments=arguments)) == "passed\n"


def test_one_plan_is_kept_for_integers_of_any_size(driver: Driver) -> None:
    assert driver("execute", code=_PLANS) == "[(1,)] [(0,)]\n"
