"""Every external dependency fails in every way while clients submit: nothing is lost or decided twice.

The faults affect the message store, the database, the messages between processes, clocks, and the processes themselves.
Two beat processes run all the time. HETSCHED_TEST_FAULT_SECONDS sets the duration of each fault; without it some faults
are skipped.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from psycopg import sql

from tests.fault_table import Faults
from tests.system.faulty import fault
from tests.system.plane import BEAT, WORKER
from tests.system.processes import Process, children_of, wait_until
from tests.system.storm import RECOVERY_SECONDS, Clients, Storm, storm

pytestmark = [pytest.mark.chaos, pytest.mark.needs("postgres", "redis-server"), pytest.mark.timeout(1800)]
FAULT_SECONDS = float(os.environ.get("HETSCHED_TEST_FAULT_SECONDS", "1"))
# Faults that add little coverage run only in `make chaos`.
seldom = pytest.mark.skipif("HETSCHED_TEST_FAULT_SECONDS" not in os.environ, reason="make chaos runs it")
PACE = {"HETSCHED_LEASE_SECONDS": "2", "HETSCHED_SWEEP_SECONDS": "1"}
GRACE_SECONDS = 25
LONGEST_REQUEST_SECONDS = 5.0
POOL = 2


class Faulty:
    """A control plane whose processes have the faults of `control`."""

    def __init__(self, storm: Storm, folder: Path) -> None:
        self.storm, self._folder = storm, folder
        self.beats = [self.start_beat(), self.start_beat()]
        self.worker = self.start_worker()
        self.web = self.start_web()

    def be(self, *who: str, **wrong: Any) -> None:
        """Set these faults for these processes, and none for all others."""
        for name in ("web", "worker", "beat"):
            (self._folder / name).write_text(json.dumps(wrong if name in who else {}))

    def _wish(self, who: str) -> dict[str, str]:
        return fault(control=str(self._folder / who))

    def start_web(self) -> Process:
        return self.storm.start_web(self._wish("web"))

    def pool(self) -> list[int]:
        """Return the pool processes of the worker."""
        return children_of(self.worker.popen.pid)

    def restart_when_ended(self, over: threading.Event) -> None:
        """Restart the worker whenever it ends, as a supervisor does."""
        while not over.wait(0.5):
            if not self.worker.running:
                self.worker = self.start_worker()

    def start_beat(self) -> Process:
        folder = self.storm.plane.folder / f"beat-{time.monotonic_ns()}"  # of the file with the schedule
        return self.storm.plane.start_faulty("beat", self._wish("beat") | {"HETSCHED_DATA": str(folder)}, *BEAT)

    def start_worker(self) -> Process:
        return self.storm.plane.start_faulty(
            "worker", self._wish("worker"), *WORKER, "-n", f"w{time.monotonic_ns()}@localhost"
        )


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with storm(**PACE) as made:
        found = Faulty(made, tmp_path_factory.mktemp("control"))
        with made.clients("warm-up") as clients:
            clients.wait_for_more(5)
        made.all_decided(clients)
        over = threading.Event()
        supervisor = threading.Thread(target=found.restart_when_ended, args=(over,))
        supervisor.start()
        yield found
        over.set()
        supervisor.join()


@pytest.fixture(autouse=True)
def _faults_are_cleared(faulty: Faulty) -> Iterator[None]:
    yield
    faulty.be()


def _recovered(faulty: Faulty, clients: Clients, faults: Faults, figures: dict[str, object], what: str) -> None:
    took = faulty.storm.all_decided(clients, faults)
    figures[what] = f"{clients}; all decided {took:.1f} s after the last was accepted; 0 lost, 0 duplicates"


@seldom
def test_emptied_store_is_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    with faulty.storm.clients("emptied") as clients:
        clients.wait_for_more(5)
        faulty.storm.store.cut()
        clients.wait_for_more(5)  # submissions are accepted without it
        time.sleep(FAULT_SECONDS)
        with redis.Redis(port=faulty.storm.store_port) as store:
            store.flushall()
        faulty.storm.store.restore()
        clients.wait_for_more(5)
    _recovered(faulty, clients, faults, figures, "message store away, then empty")
    assert set(clients.answers) == {202}, str(clients)


def test_silent_store_is_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    with faulty.storm.clients("silent") as clients:
        clients.wait_for_more(5)
        faulty.storm.store.silence()
        clients.wait_for_more(5)
        time.sleep(FAULT_SECONDS)
        faulty.storm.store.restore()
        clients.wait_for_more(5)
    _recovered(faulty, clients, faults, figures, "message store silent")
    assert set(clients.answers) == {202}, str(clients)
    assert clients.longest_seconds < LONGEST_REQUEST_SECONDS, str(clients)


@seldom
def test_full_store_is_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    """A worker ends if it cannot acknowledge; its supervisor restarts it."""
    with faulty.storm.clients("full") as clients, redis.Redis(port=faulty.storm.store_port) as store:
        clients.wait_for_more(5)
        store.config_set("maxmemory", "1")
        clients.wait_for_more(5)
        time.sleep(FAULT_SECONDS)
        store.config_set("maxmemory", "0")
        clients.wait_for_more(5)
    _recovered(faulty, clients, faults, figures, "message store full")
    assert set(clients.answers) == {202}, str(clients)


_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def test_restarted_database_is_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    with faulty.storm.clients("restarted") as clients:
        clients.wait_for_more(5)
        faulty.storm.database.cut()
        with faulty.storm.direct_database.connect() as connection:
            connection.execute(_END_ALL)
        time.sleep(FAULT_SECONDS)
        faulty.storm.database.restore()
        clients.wait_for_more(5)
    _recovered(faulty, clients, faults, figures, "database away")
    assert set(clients.answers) <= {202, 503}, str(clients)


@seldom
def test_ended_connections_are_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    with faulty.storm.clients("ended") as clients, faulty.storm.direct_database.connect() as connection:
        clients.wait_for_more(5)
        for _ in range(5):
            connection.execute(_END_ALL)
            clients.wait_for_more(3)
    _recovered(faulty, clients, faults, figures, "connections to the database ended")
    assert set(clients.answers) <= {202, 503}, str(clients)


def test_read_only_database_is_recovered(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    ready = f"http://127.0.0.1:{faulty.storm.ports[0]}/readyz"
    with faulty.storm.clients("read-only") as clients, faulty.storm.direct_database.connect() as connection:
        clients.wait_for_more(5)
        name = sql.Identifier(faulty.storm.direct_database.name)
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        connection.execute(_END_ALL)
        time.sleep(FAULT_SECONDS)
        accepted = len(clients.accepted)
        assert httpx.get(ready).status_code == 503
        time.sleep(FAULT_SECONDS)
        assert len(clients.accepted) == accepted
        connection.execute("SET transaction_read_only = off")
        connection.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
        connection.execute(_END_ALL)
        clients.wait_for_more(5, seconds=RECOVERY_SECONDS)
    _recovered(faulty, clients, faults, figures, "database without writes")
    assert httpx.get(ready).status_code == 200
    assert set(clients.answers) <= {202, 503}, str(clients)


@pytest.mark.parametrize("how", ["double", pytest.param("shuffle", marks=seldom), "drop"])
def test_messages_are_only_hints(how: str, faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    faulty.be("web", "worker", "beat", messages=how)
    with faulty.storm.clients(how) as clients:
        clients.wait_for_more(30)
        time.sleep(FAULT_SECONDS)
    took = faulty.storm.all_decided(clients, faults)
    figures[f"messages: {how}"] = f"{clients}; all decided once, {took:.1f} s after the last; 0 lost, 0 duplicates"
    assert set(clients.answers) == {202}, str(clients)


@pytest.mark.parametrize(
    ("seconds", "who"),
    [(600, ("worker", "web")), pytest.param(-600, ("worker", "web"), marks=seldom), (-3600, ("beat",))],
)
def test_wrong_clock_changes_no_ownership(
    seconds: int, who: tuple[str, ...], faulty: Faulty, faults: Faults, figures: dict[str, object]
) -> None:
    with faulty.storm.clients(f"clock{seconds}") as clients:
        clients.wait_for_more(5)
        faulty.be(*who, clock=seconds)
        clients.wait_for_more(5)
        faulty.be()
        clients.wait_for_more(5)
    took = faulty.storm.all_decided(clients, faults)
    figures[f"clock of {' and '.join(who)} {seconds:+} s off"] = f"{clients}; all decided once, {took:.1f} s after"
    assert set(clients.answers) == {202}, str(clients)


def test_killed_web_server_loses_no_submission(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    ours = faulty.storm
    with ours.clients("web") as clients:
        clients.wait_for_more(5)
        faulty.web.kill_group()
        ours.ports.clear()
        faulty.web = faulty.start_web()
        clients.use(ours.ports)
        clients.wait_for_more(5)
    ours.all_decided(clients, faults)
    figures["kill -9 of the web server"] = f"{clients}; each key one workload"
    assert set(clients.answers) == {202}, str(clients)


@seldom
def test_killed_pool_processes_are_replaced(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    """The OOM killer kills the largest process, and leaves its siblings and their parent."""
    draw = random.Random(1)
    with faulty.storm.clients("pool") as clients:
        for _ in range(5):
            clients.wait_for_more(3)
            wait_until(lambda: len(faulty.pool()) == POOL, what=faulty.worker.said)
            os.kill(draw.choice(faulty.pool()), signal.SIGKILL)
    took = faulty.storm.all_decided(clients, faults)
    assert faulty.worker.running
    figures["kill -9 of pool processes"] = f"5 kills; {clients}; all decided {took:.1f} s after the last"


@seldom
def test_rolling_restart_loses_no_request(faulty: Faulty, faults: Faults, figures: dict[str, object]) -> None:
    ours = faulty.storm
    took: dict[str, float] = {}

    def ended(name: str, old: Process) -> None:
        """Send SIGTERM, and SIGKILL after the grace period, as a supervisor does."""
        began = time.monotonic()
        old.popen.send_signal(signal.SIGTERM)
        while old.running and time.monotonic() - began < GRACE_SECONDS:
            time.sleep(0.05)
        took[name] = time.monotonic() - began
        old.kill_group()

    with ours.clients("rolling") as clients:
        clients.wait_for_more(5)
        before, faulty.worker = faulty.worker, faulty.start_worker()
        ended("worker", before)
        clients.wait_for_more(5)
        beats = [faulty.start_beat(), faulty.start_beat()]
        for beat in faulty.beats:
            ended("beat", beat)
        faulty.beats = beats
        second = faulty.start_web()
        clients.use(ours.ports[1:])
        clients.wait_for_more(5)
        ended("web", faulty.web)
        faulty.web = second
        ours.ports.pop(0)
        clients.wait_for_more(5)
    ours.all_decided(clients, faults)
    assert set(clients.answers) == {202}, str(clients)
    assert took["web"] < GRACE_SECONDS  # requests in flight were answered
    drained = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
    figures["rolling restart"] = f"{clients}; ended after {drained}; 0 lost"
