"""Threads of a process queue for SQLite's write lock in order of arrival; processes wait for each other."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest
from django.db import connection, transaction

from hetsched.journal.models import Topic
from hetsched.storage import write_lock
from hetsched.storage.write_lock import write_transaction
from tests.system.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
needs_sqlite = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has many writers")


@needs_sqlite
def test_writers_enter_in_order_of_arrival() -> None:
    order: list[int] = []

    def write(number: int) -> None:
        with write_lock.write_lock():
            order.append(number)
        connection.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    with write_lock.write_lock():
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda: len(write_lock._waiting) > number, what="the thread queues")  # noqa: B023
        assert order == []
    for thread in threads:
        thread.join(20)

    assert order == [0, 1, 2, 3, 4]


@needs_sqlite
def test_lock_is_released_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), write_lock.write_lock():
        raise ValueError("no")

    with write_lock.write_lock():
        assert write_lock._taken == [True]
    assert write_lock._taken == [False]


@needs_sqlite
def test_writer_inside_a_transaction_proceeds() -> None:
    with write_lock.write_lock(), transaction.atomic(), write_lock.write_lock():
        assert not write_lock._waiting


@needs_sqlite
def test_wait_for_the_lock_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_lock, "PATIENCE_SECONDS", 0.01)
    went_on = threading.Event()

    def write() -> None:
        with write_lock.write_lock():
            went_on.set()
        connection.close()

    with write_lock.write_lock():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(20)
    assert went_on.is_set()
    assert write_lock._taken == [False]


@needs_sqlite
def test_write_transaction_holds_the_lock_until_rollback() -> None:
    def write() -> None:
        with write_transaction():
            assert write_lock._taken == [True]
            Topic.objects.create(name="rolled-back")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write()

    assert write_lock._taken == [False]
    assert not Topic.objects.filter(name="rolled-back").exists()


@needs_sqlite
def test_holder_of_the_lock_proceeds() -> None:
    with write_lock.write_lock(), write_lock.write_lock():
        assert not write_lock._waiting
        assert write_lock._taken == [True]
    assert write_lock._taken == [False]


def test_processes_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "ledger"
    assert write_lock._lock(str(database)) is None  # there is no database yet
    database.touch()
    got = threading.Event()

    def write() -> None:
        assert write_lock._lock(str(database)) is not None
        got.set()

    with Path(f"{database}-turn").open("w") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        with monkeypatch.context() as impatient:
            impatient.setattr(write_lock, "PATIENCE_SECONDS", 0.01)
            assert write_lock._lock(str(database)) is None
        thread = threading.Thread(target=write)
        thread.start()
        assert not got.is_set()
    thread.join(20)
    assert got.is_set()
