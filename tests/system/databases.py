"""PostgreSQL and SQLite databases for the system tests.

Each test process starts at most one PostgreSQL server, and runs `prepare` at most once on each kind of database. A
control plane gets a copy of the prepared database.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import sql

from tests import parts
from tests.system.processes import Process, free_port, plain_environment, python, wait_until

_numbers = itertools.count(1)


class Database(NamedTuple):
    """A PostgreSQL database on loopback; account and password are `hetsched`."""

    port: int
    name: str

    @property
    def url(self) -> str:
        return f"postgres://hetsched:hetsched@127.0.0.1:{self.port}/{self.name}"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url, autocommit=True)


@contextlib.contextmanager
def postgres(*, prepared: bool = False) -> Iterator[Database]:
    """Yield a database, empty or a copy of the prepared one, on the server of this process; drop it at the end."""
    source = _prepared_postgres() if prepared else "template1"
    database = _create(source)
    try:
        yield database
    finally:
        with _server()._replace(name="postgres").connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database.name)))


def copy_prepared_sqlite(folder: Path) -> None:
    """Copy the prepared SQLite database into a data folder."""
    for file in _prepared_sqlite().glob("hetsched.sqlite3*"):
        shutil.copy(file, folder)


@functools.cache
def _prepared_sqlite() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hetsched-prepared-"))
    _at_exit(lambda: shutil.rmtree(folder, ignore_errors=True))
    _prepare(folder, "")
    return folder


@functools.cache
def _prepared_postgres() -> str:
    database = _create("template1")
    with tempfile.TemporaryDirectory(prefix="hetsched-prepared-") as folder:
        _prepare(Path(folder), database.url)
    return database.name


def _prepare(folder: Path, url: str) -> None:
    env = plain_environment() | {
        "DJANGO_SETTINGS_MODULE": "hetsched.project.settings",
        "DATABASE_URL": url,
        "REDIS_URL": "memory://",
        "HETSCHED_DATA": str(folder),
        "SECRET_KEY": "x" * 40,
    }
    done = subprocess.run(python("-m", "django", "prepare"), env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _create(source: str) -> Database:
    database = _server()._replace(name=f"hetsched{next(_numbers)}")
    with database._replace(name="postgres").connect() as connection:
        names = sql.Identifier(database.name), sql.Identifier(source)
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    return database


@functools.cache
def _server() -> Database:
    """Start a PostgreSQL server that is stopped when this process ends."""
    binaries = parts.require("postgres").resolve().parent
    # PostgreSQL refuses to run as root; Debian's package creates an account for it.
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="hetsched-postgres-"))
    _at_exit(lambda: shutil.rmtree(folder, ignore_errors=True))
    if user:
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid)
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    secret = folder / "password"
    secret.write_text("hetsched\n")
    secret.chmod(0o644)
    data = folder / "data"
    options = ["--username=hetsched", f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
    made = subprocess.run(
        [binaries / "initdb", f"--pgdata={data}", *options],
        user=user, env=env, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",  # safe, because in these tests only the workers crash, not the machine
        "max_connections": "120",  # races end connections faster than a busy server ends their processes
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [binaries / "postgres", "-D", data, "-p", str(port), *words]
    server = Process(command, env=env, log=folder / "log", user=user, cwd=folder)
    _at_exit(lambda: server.stop(signal.SIGINT))
    ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    wait_until(lambda: subprocess.run(ready, env=env).returncode == 0, what=f"PostgreSQL: {server.said()}")
    return Database(port, "postgres")


def _at_exit(end: Callable[[], object]) -> None:
    """Call `end` when this process ends, but not in a forked child."""
    owner = os.getpid()

    def run() -> None:
        if os.getpid() == owner:
            end()

    atexit.register(run)
