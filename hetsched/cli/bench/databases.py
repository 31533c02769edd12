"""Database of a benchmark run: SQLite in the working folder, or a PostgreSQL database that exists during the run.

The URL names a server and an account that may create databases. Every run starts with a new database, so that no data
of the previous run affects it, and drops it at the end. Existing databases are not changed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from hetsched.contracts.errors import InputError
from hetsched.lab.bench.processes import parent_of

_SCHEMES = ("postgres", "postgresql")
_FORM = "Use postgres://USER:PASSWORD@HOST:PORT/NAME with an account that may create databases"
_CONNECT_SECONDS = 10
_REPLACED = {"DATABASE_URL", "DATABASE_URL_FILE", "SECRET_KEY", "SECRET_KEY_FILE"}
_LOCAL = ("127.0.0.1", "::1", "localhost")


class BenchDatabase(NamedTuple):
    """Database of one run: its URL, empty for SQLite, and the process ID of its server if that runs on this machine."""

    url: str
    pids: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Return the environment of this process, changed such that processes of hetsched use this database."""
        plain = {name: value for name, value in os.environ.items() if name not in _REPLACED}
        # With PostgreSQL, hetsched does not generate the secret key itself.
        return {**plain, "DATABASE_URL": self.url, "SECRET_KEY": secrets.token_urlsafe(48)} if self.url else plain


SQLITE = BenchDatabase("", ())


def check_server(url: str) -> None:
    """Create and drop a database, to report an unusable URL before the run. Raises: InputError `DatabaseUnusable`."""
    with new_database(url):
        pass


@contextlib.contextmanager
def new_database(server: str) -> Iterator[BenchDatabase]:
    """Context manager for the database of one run on the PostgreSQL server of a URL, or `SQLITE` for an empty URL.

    Raises: InputError `DatabaseUnusable`.
    """
    if not server:
        yield SQLITE
        return
    _check_form(server)
    name = f"hetsched_bench_{secrets.token_hex(8)}"
    identifier = sql.Identifier(name)
    try:
        with _connected(server) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
            pids = _server_pids(connection.info.host, connection.info.backend_pid)
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise InputError("DatabaseUnusable", reason, place="--database", hint=_FORM) from None
    try:
        yield BenchDatabase(urlsplit(server)._replace(path=f"/{name}").geturl(), pids)
    finally:
        with _connected(server) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


def facts_of(server: str) -> Mapping[str, str]:
    """Return the kind of database, and the version of a PostgreSQL server, for the facts of a scenario."""
    if not server:
        return {"database": "SQLite"}
    with _connected(server) as connection:
        version = connection.info.server_version
    return {"database": f"PostgreSQL {version // 10000}.{version % 10000}"}


def _check_form(url: str) -> None:
    try:
        parts = urlsplit(url)
        complete = parts.scheme in _SCHEMES and bool(parts.path.strip("/")) and (parts.port is None or parts.port > 0)
    except ValueError:
        complete = False
    if not complete:
        message = "the value is not the URL of a PostgreSQL database"
        raise InputError("DatabaseUnusable", message, place="--database", hint=_FORM)


def _connected(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT_SECONDS)


def _server_pids(host: str, backend: int) -> tuple[int, ...]:
    """Return the process ID of the server, the parent of the process of a connection, if it runs on this machine."""
    if host in _LOCAL or host.startswith("/"):
        command = Path(f"/proc/{backend}/cmdline")
        with contextlib.suppress(OSError):
            if command.read_bytes().startswith(b"postgres:"):  # else the ID belongs to another process namespace
                return (parent_of(backend),)
    return ()
