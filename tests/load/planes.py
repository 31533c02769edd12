"""The control planes under load, each started by one command, as users start them.

*embedded* is `hetsched standalone` (SQLite and the private Valkey), *served* is `hetsched scheduler` on a private
PostgreSQL and Redis, with several web and worker processes under its supervisor. Neither has a live cluster; pods are
placed on an offline cluster of equal nodes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetsched.lab.bench.processes import cpu_of, memory_of
from tests import parts
from tests.load.client import Server
from tests.system.databases import postgres
from tests.system.processes import ROOT, Process, free_port, message_store, plain_environment, wait_until

CLUSTER = "load"
_START_SECONDS = 240.0
_ANNOUNCED = "stop        Ctrl-C"
# All clients use one token from one address: it gets the submissions of the 50 clients of a burst, and the limit of
# sockets per user is raised to the limit per address. All other limits are the defaults.
_SUBMITS_PER_MINUTE = 50 * 12_000
_ROOM = {
    "HETSCHED_SOCKETS_PER_USER": "100000", "HETSCHED_SOCKETS_PER_ADDRESS": "100000",
    "HETSCHED_CONNECTIONS": "10000", "HETSCHED_CONNECTIONS_PER_ADDRESS": "10000",
    "HETSCHED_LOG_LEVEL": "warning", "SECRET_KEY": "load" * 12,
}  # fmt: skip


class Plane:
    """A running control plane: `server` is its address, `backend` its kind of database."""

    def __init__(self, backend: str, process: Process, server: Server, env: dict[str, str]) -> None:
        self.backend = backend
        self.process = process
        self.server = server
        self.env = env

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time that its programs used, in seconds."""
        return cpu_of(self.process.popen.pid)

    def memory_mib(self) -> dict[str, float]:
        """Return the resident memory of each program."""
        return memory_of(self.process.popen.pid)


@contextlib.contextmanager
def embedded(nodes: int, *, webs: int = 1, workers: int = 1) -> Iterator[Plane]:
    """Yield a control plane that is started by one command and uses SQLite."""
    with _running("embedded: SQLite, Valkey", "standalone", {}, nodes, ["--no-demo", *_many(webs, workers)]) as plane:
        yield plane


@contextlib.contextmanager
def served(nodes: int, *, webs: int = 2, workers: int = 2) -> Iterator[Plane]:
    """Yield a control plane with PostgreSQL and Redis from Debian's packages, and several web and worker processes."""
    redis = parts.require("redis-server")
    with postgres() as database, message_store(redis) as store:
        settings = {
            "DATABASE_URL": database.url,
            "REDIS_URL": f"redis://127.0.0.1:{store}/0",
        }
        words = _many(webs, workers)
        with _running("PostgreSQL and Redis", "scheduler", settings, nodes, words) as plane:
            yield plane


BACKENDS = {"embedded": embedded, "served": served}


def _many(webs: int, workers: int) -> list[str]:
    return [f"--web={webs}", f"--workers={workers}"] if (webs, workers) != (1, 1) else []


@contextlib.contextmanager
def _running(backend: str, command: str, settings: dict[str, str], nodes: int, words: list[str]) -> Iterator[Plane]:
    folder = Path(tempfile.mkdtemp(prefix="hetsched-load-"))
    data, port = folder / "data", free_port()
    env = plain_environment() | _ROOM | {"HETSCHED_DATA": str(data), "NO_COLOR": "1"} | settings
    argv = [sys.executable, "-m", "hetsched.cli", command, f"--port={port}", f"--data={data}", *words]
    process = Process(argv, env=env, log=folder / "plane.log", cwd=folder)
    try:
        wait_until(
            lambda: _ANNOUNCED in process.said() or not process.running,
            what=lambda: f"{command}: {_log_tails(folder)}", seconds=_START_SECONDS,
        )  # fmt: skip
        assert process.running, _log_tails(folder)
        _add_cluster(env, nodes)
        words = ["token", "create", "--role=operator", "--name=load", f"--submits-per-minute={_SUBMITS_PER_MINUTE}"]
        token = run_command(env, *words)["token"]
        yield Plane(backend, process, Server("127.0.0.1", port, token), env)
    except BaseException:
        sys.stderr.write(_log_tails(folder) + "\n")
        raise
    finally:
        process.stop(seconds=60)
        shutil.rmtree(folder, ignore_errors=True)


def _add_cluster(env: dict[str, str], nodes: int) -> None:
    inside(env, f"from tests.system.driver import add_cluster\nout = add_cluster({CLUSTER!r}, {nodes})")


def inside(env: dict[str, str], code: str) -> Any:
    """Run source code in a separate process with the plane's database; return the value of its variable `out`."""
    words = f"import django, json\ndjango.setup()\n{code}\nprint(json.dumps(out))"
    env = env | {"DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "HETSCHED_LOG_LEVEL": "error"}
    done = subprocess.run([sys.executable, "-c", words], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_command(env: dict[str, str], *words: str) -> Any:
    """Run one of hetsched's commands on the control plane, and return the document that it prints."""
    done = subprocess.run([sys.executable, "-m", "hetsched.cli", *words, "-o", "json"], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def _log_tails(folder: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in folder.rglob("*.log"))
