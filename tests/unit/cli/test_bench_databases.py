"""PostgreSQL databases of `hetsched bench`: created for a run, dropped afterwards, and errors for unusable URLs."""

from __future__ import annotations

import os
from contextlib import ExitStack

import psycopg
import pytest

from hetsched.cli.bench.databases import SQLITE, check_server, facts_of, new_database
from hetsched.contracts.errors import InputError
from hetsched.lab.bench.processes import cpu_of
from tests.system.databases import Database, postgres
from tests.unit.cli.calling import run


def names(database: Database) -> set[object]:
    with database.connect() as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


@pytest.mark.needs("postgres")
def test_each_run_gets_a_new_database_that_is_dropped() -> None:
    with postgres() as server:
        before = names(server)
        with new_database(server.url) as first, new_database(server.url) as second:
            assert first.url != second.url
            with psycopg.connect(first.url) as connection:
                (name,) = connection.execute("SELECT current_database()").fetchone() or ("",)
            assert name in names(server) - before
            assert "postgres" in cpu_of(*first.pids)
            assert first.environment()["DATABASE_URL"] == first.url
            assert len(first.environment()["SECRET_KEY"]) >= 40
        assert names(server) == before
        assert facts_of(server.url)["database"].startswith("PostgreSQL ")


@pytest.mark.needs("postgres")
def test_database_is_dropped_after_an_error_and_with_open_connections() -> None:
    def fail(server: Database) -> None:
        with new_database(server.url) as database:
            opened.append(stack.enter_context(psycopg.connect(database.url)))
            raise ZeroDivisionError

    opened: list[psycopg.Connection[tuple[object, ...]]] = []
    with postgres() as server, ExitStack() as stack:
        before = names(server)
        with pytest.raises(ZeroDivisionError):
            fail(server)
        assert names(server) == before
        with pytest.raises(psycopg.OperationalError):
            opened[0].execute("SELECT 1")


@pytest.mark.needs("postgres")
def test_account_without_the_right_to_create_databases_is_rejected() -> None:
    with postgres() as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'secret-word'")
        try:
            with pytest.raises(InputError, match="permission denied") as error:
                check_server(server.url.replace("hetsched:hetsched", "reader:secret-word"))
            assert (error.value.code, error.value.place) == ("DatabaseUnusable", "--database")
            with pytest.raises(InputError) as error:
                check_server(server.url.replace("hetsched:hetsched", "reader:other-word"))
            assert "other-word" not in str(error.value)
        finally:
            with server.connect() as connection:
                connection.execute("DROP ROLE reader")


@pytest.mark.parametrize(
    "url", ["sqlite:///file", "postgres://host", "postgres://host/", "postgres://host:no/name", "name", "postgres://["]
)
def test_other_urls_are_rejected(url: str) -> None:
    result = run("bench", "watch", "--quick", "--database", url)
    assert result.exit_code == 2
    assert "DatabaseUnusable" in result.stderr
    assert "postgres://USER:PASSWORD@HOST:PORT/NAME" in result.stderr


def test_scenarios_without_a_database_reject_the_option() -> None:
    result = run("bench", "isa", "--quick", "--database", "postgres://host/name")
    assert result.exit_code == 2
    assert "does not use this database" in result.stderr


def test_sqlite_is_used_regardless_of_the_database_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "SECRET_KEY_FILE"):
        monkeypatch.setenv(name, "postgres://elsewhere/name")
    monkeypatch.delenv("SECRET_KEY", raising=False)
    with new_database("") as database:
        assert database == SQLITE
        assert database.environment() == {
            key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "SECRET_KEY_FILE"}
        }
    assert facts_of("") == {"database": "SQLite"}
