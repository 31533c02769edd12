"""Reader of the database in `hetsched bench watch`."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hetsched.cli.bench import watch
from hetsched.contracts.errors import InputError


@pytest.fixture
def reader() -> Iterator[watch._DatabaseReader]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE placement_pod (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO placement_pod (name) VALUES ('p')")
        yield watch._DatabaseReader(connection, "?")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def test_wait_for_returns_true_once_the_condition_holds(
    reader: watch._DatabaseReader, process: subprocess.Popen[bytes]
) -> None:
    assert reader.wait_for(lambda: reader.pods == 1, process)
    assert reader.seen.keys() == {"p"}


def test_wait_for_returns_false_after_the_time_limit(
    reader: watch._DatabaseReader, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_SECONDS", 0.05)
    assert not reader.wait_for(lambda: reader.pods == 2, process)


def test_wait_for_fails_if_the_process_ends(reader: watch._DatabaseReader, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    with pytest.raises(InputError, match="ended unexpectedly"):
        reader.wait_for(lambda: False, process)
