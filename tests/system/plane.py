"""One control plane of real processes, with either pair of backends."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import parts
from tests.system.databases import copy_prepared_sqlite, postgres
from tests.system.driver import Driver
from tests.system.processes import ROOT, Process, message_store, plain_environment, python

CELERY = ("-m", "celery", "-A", "hetsched.project.celery:app")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
WORKER = (*CELERY, "worker", "-P", "prefork", "-c", "2", "-Q", "schedule,io,preview", *QUIET)
BEAT = ("-m", "hetsched.project.beat")


class Plane:
    """Environment and programs of one control plane."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self.folder = folder
        self.running: list[Process] = []
        self.driver: Driver | None = None

    def run(self, *words: str) -> str:
        """Run one of hetsched's programs until it ends, and return its output."""
        done = subprocess.run(python(*words), env=self.env, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *words: str) -> Process:
        process = Process(python(*words), env=self.env, log=self.folder / f"{name}.log", cwd=self.folder)
        self.running.append(process)
        return process

    def start_faulty(self, name: str, wish: Mapping[str, str], *words: str) -> Process:
        """Start a program with a fault of `tests.system.faulty`."""
        module = ("-m", "tests.system.faulty", *words[1:])
        env = self.env | {"PYTHONPATH": str(ROOT)} | wish
        process = Process(python(*module), env=env, log=self.folder / f"{name}.log", cwd=self.folder)
        self.running.append(process)
        return process

    def start_worker(self) -> Process:
        return self.start("worker", *WORKER)

    def start_beat(self) -> Process:
        return self.start("beat", *BEAT)

    def log_tails(self) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """Stop all processes at the same time; each takes up to a second to hand its work over."""
        with ThreadPoolExecutor() as pool:
            for process in self.running:
                pool.submit(process.stop)
            if self.driver:
                pool.submit(self.driver.close)


@contextlib.contextmanager
def embedded(**settings: str) -> Iterator[Plane]:
    """Yield a control plane with SQLite and the Valkey of the wheel."""
    with message_store() as store, plane_on("", store, settings) as plane:
        yield plane


@contextlib.contextmanager
def served(**settings: str) -> Iterator[Plane]:
    """Yield a control plane with PostgreSQL and Redis from Debian's packages."""
    redis = parts.require("redis-server")
    with (
        postgres(prepared=True) as database,
        message_store(redis) as store,
        plane_on(database.url, store, settings) as plane,
    ):
        yield plane


BACKENDS = {"sqlite-valkey": embedded, "postgres-redis": served}


@contextlib.contextmanager
def plane_on(
    database_url: str, store: int, settings: Mapping[str, str], direct: Mapping[str, str] | None = None
) -> Iterator[Plane]:
    """Yield a control plane on a prepared database and the message store at port `store`; no process is started yet.

    Without `database_url` it uses a new SQLite database. `direct` contains environment variables of the driver only.
    """
    folder = Path(tempfile.mkdtemp(prefix="hetsched-plane-"))
    env = plain_environment() | {
        "DJANGO_SETTINGS_MODULE": "hetsched.project.settings",
        "DATABASE_URL": database_url,
        "REDIS_URL": f"redis://127.0.0.1:{store}/0",
        "HETSCHED_DATA": str(folder),
        "HETSCHED_DEMO": "0",
        "SECRET_KEY": "x" * 40,
        **settings,
    }
    plane = Plane(env, folder)
    try:
        if not database_url:
            copy_prepared_sqlite(folder)
        plane.driver = Driver({**env, **(direct or {})})
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
