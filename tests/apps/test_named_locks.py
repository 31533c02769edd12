"""A transaction that the database ended to resolve a deadlock runs again, at most four times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import OperationalError

from hetsched.storage import named_locks
from hetsched.storage.named_locks import retry_on_deadlock


class Transaction:
    """Transaction that fails a number of times with an error of this SQL state."""

    def __init__(self, failures: int, sqlstate: str = "40P01") -> None:
        self._failures, self._cause = failures, Exception()
        self._cause.sqlstate = sqlstate  # type: ignore[attr-defined]
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        if self.runs <= self._failures:
            raise OperationalError("failed") from self._cause
        return "written"


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the connection, which is outside a transaction."""
    connection = SimpleNamespace(in_atomic_block=False)
    monkeypatch.setattr(named_locks, "connection", connection)
    return connection


def test_third_deadlock_is_not_the_last_try() -> None:
    write = Transaction(3)
    assert (retry_on_deadlock(write), write.runs) == ("written", 4)


def test_fourth_deadlock_is_raised() -> None:
    write = Transaction(4)
    with pytest.raises(OperationalError):
        retry_on_deadlock(write)
    assert write.runs == 4


def test_error_other_than_a_deadlock_is_raised() -> None:
    write = Transaction(1, "57014")
    with pytest.raises(OperationalError):
        retry_on_deadlock(write)
    assert write.runs == 1


def test_deadlock_inside_a_transaction_is_raised_at_once(outside: SimpleNamespace) -> None:
    outside.in_atomic_block = True
    write = Transaction(1)
    with pytest.raises(OperationalError):
        retry_on_deadlock(write)
    assert write.runs == 1
