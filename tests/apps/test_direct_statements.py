"""A statement on the fast path has the same effect as with Django's cursor."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from hetsched.inventory.models import Cluster
from hetsched.storage.statements import change, change_many, fetch

pytestmark = pytest.mark.django_db
TABLE = Cluster._meta.db_table


@pytest.fixture(params=["short", "listened to"])
def way(request: pytest.FixtureRequest) -> Any:
    if request.param == "short":
        yield
        return
    with CaptureQueriesContext(connection):
        yield


def _named(*names: str) -> list[int]:
    return [Cluster.objects.create(name=name).pk for name in names]


def test_rows_counts_and_a_percent_sign(way: None) -> None:
    one, other = _named("50 %s", "b")
    assert fetch(f"SELECT id FROM {TABLE} WHERE name = %s", ["50 %s"]) == [(one,)]
    assert fetch(f"SELECT id FROM {TABLE} WHERE name LIKE '50 %%' AND id = %s", [one]) == [(one,)]
    assert fetch(f"SELECT id FROM {TABLE} WHERE id = %s", [-1]) == []
    assert change(f"UPDATE {TABLE} SET revision = %s", [7]) == 2
    assert change(f"UPDATE {TABLE} SET revision = %s WHERE id = %s", [8, -1]) == 0
    assert change_many(f"UPDATE {TABLE} SET revision = %s WHERE id = %s", [(1, one), (2, other), (3, -1)]) == 2
    assert sorted(fetch(f"UPDATE {TABLE} SET revision = revision + %s RETURNING id, revision", [1])) == [
        (one, 2), (other, 3),
    ]  # fmt: skip
    assert sorted(Cluster.objects.values_list("pk", "revision")) == [(one, 2), (other, 3)]


def test_errors_are_djangos(way: None) -> None:
    one, _ = _named("a", "b")
    with pytest.raises(IntegrityError), transaction.atomic():
        change(f"UPDATE {TABLE} SET name = %s WHERE id = %s", ["b", one])
    with pytest.raises(IntegrityError), transaction.atomic():
        change_many(f"UPDATE {TABLE} SET name = %s WHERE id = %s", [("b", one)])
    with pytest.raises((OperationalError, ProgrammingError)), transaction.atomic():
        fetch("SELECT id FROM there_is_none WHERE id = %s", [1])
    assert set(Cluster.objects.values_list("name", flat=True)) == {"a", "b"}


def test_failed_transaction_rejects_statements(way: None) -> None:
    _named("a")
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            change(f"UPDATE {TABLE} SET revision = %s", [7])
        with pytest.raises(transaction.TransactionManagementError):
            fetch(f"SELECT id FROM {TABLE} WHERE id > %s", [0])
        transaction.set_rollback(False)


def test_rolled_back_statement_has_no_effect(way: None) -> None:
    (one,) = _named("a")
    with transaction.atomic():
        assert change(f"UPDATE {TABLE} SET revision = %s WHERE id = %s", [9, one]) == 1
        assert fetch(f"SELECT revision FROM {TABLE} WHERE id = %s", [one]) == [(9,)]
        transaction.set_rollback(True)
    assert Cluster.objects.get(pk=one).revision == 0


def test_query_listeners_receive_each_statement() -> None:
    statements: list[str] = []

    def listen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(listen):
        fetch(f"SELECT id FROM {TABLE} WHERE id = %s", [1])
        change(f"UPDATE {TABLE} SET revision = %s", [1])
        change_many(f"UPDATE {TABLE} SET revision = %s", [(1,)])
    assert [sql.split()[0] for sql in statements] == ["SELECT", "UPDATE", "UPDATE"]
