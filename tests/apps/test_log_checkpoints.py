"""Copies of SQLite's write-ahead log in the background."""

from __future__ import annotations

import copy
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from hetsched.storage import log_checkpoints
from hetsched.storage.log_checkpoints import background_checkpoints, checkpoint, checkpoint_before_read

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif("connections['default'].vendor != 'sqlite'", reason="PostgreSQL has no such log"),
]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An SQLite file; `log_checkpoints` opens it with the options of the settings."""
    path = tmp_path / "database"
    own: Any = type(connections["default"])({**copy.deepcopy(connections["default"].settings_dict), "NAME": str(path)})
    own.inc_thread_sharing()
    monkeypatch.setattr(log_checkpoints, "connection", own)
    yield path
    own.close()


def writer(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE item (text)")
    return connection


def add_rows(connection: sqlite3.Connection, rows: int) -> None:
    connection.executemany("INSERT INTO item VALUES (?)", [("x" * 4000,)] * rows)


def test_log_is_copied_while_the_block_runs(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_checkpoints, "CHECKPOINT_SECONDS", 0.01)
    connection = writer(database)
    with background_checkpoints():
        add_rows(connection, 100)  # about a page of 4 KiB each
        until = time.monotonic() + 10
        while database.stat().st_size < 400_000:
            assert time.monotonic() < until, "the database file does not contain the rows"
            time.sleep(0.01)
    connection.close()


def test_checkpoint_copies_only_pages_that_no_reader_needs(database: Path) -> None:
    connection, reader = writer(database), sqlite3.connect(database, isolation_level=None)
    checkpoint()
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM item").fetchone()
    add_rows(connection, 10)
    pages, copied = checkpoint()
    assert pages > copied  # the reader needs the pages before the rows
    reader.execute("COMMIT")
    pages, copied = checkpoint()
    assert pages == copied > 0
    connection.close()
    reader.close()


def test_log_starts_again_during_a_read_after_a_complete_copy(database: Path) -> None:
    connection, reader = writer(database), sqlite3.connect(database, isolation_level=None)
    add_rows(connection, 100)
    checkpoint_before_read()
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM item").fetchone()
    add_rows(connection, 1)
    pages, _ = checkpoint()
    assert 0 < pages < 10
    connection.close()
    reader.close()


def test_commits_do_not_copy_a_short_log(database: Path) -> None:
    with log_checkpoints.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE item (text)")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = database.stat().st_size
        for _ in range(2):
            cursor.executemany("INSERT INTO item VALUES (%s)", [("x" * 4000,)] * 1000)
        assert database.stat().st_size == before
