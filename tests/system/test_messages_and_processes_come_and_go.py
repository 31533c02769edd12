"""Messages are doubled, shuffled and lost, clocks are wrong, processes are killed or restarted, while clients submit.

Two beats run all the time. What is asked for is decided once, whatever becomes of the hints between processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.faulty import fault
from tests.system.plane import BEAT, WORKER
from tests.system.processes import Process, children_of, wait_until
from tests.system.storm import Storm, bare

pytestmark = [pytest.mark.chaos, pytest.mark.needs("postgres", "redis-server"), pytest.mark.timeout(1800)]
FAULT_SECONDS = float(os.environ.get("HETSCHED_TEST_FAULT_SECONDS", "2"))
PACE = {"HETSCHED_LEASE_SECONDS": "2", "HETSCHED_SWEEP_SECONDS": "1"}
LONGEST_DRAIN_SECONDS = 25


class Faulty:
    """A control plane whose processes do as `control` says."""

    def __init__(self, storm: Storm, control: Path) -> None:
        self.storm, self._control = storm, control
        self.wish = fault(control=str(control))
        self.be()
        self.beats = [self.start_beat(), self.start_beat()]
        self.worker = self.start_worker()
        self.web = storm.start_web(self.wish)

    def be(self, **wrong: Any) -> None:
        """Have this be wrong from now on, and nothing else."""
        self._control.write_text(json.dumps(wrong))

    def start_beat(self) -> Process:
        schedule = f"--schedule={self.storm.plane.folder / 'beat'}-{time.monotonic_ns()}"
        return self.storm.plane.start_faulty("beat", self.wish, *BEAT, schedule)

    def start_worker(self) -> Process:
        return self.storm.plane.start_faulty("worker", self.wish, *WORKER, "-n", f"w{time.monotonic_ns()}@localhost")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with bare(**PACE) as made:
        found = Faulty(made, tmp_path_factory.mktemp("control") / "wish.json")
        with made.clients("warm-up") as clients:
            clients.wait_for_more(10)
        made.all_decided(clients)
        yield found


@pytest.fixture(autouse=True)
def _all_is_well_again(faulty: Faulty) -> Iterator[None]:
    yield
    faulty.be()


@pytest.mark.parametrize("how", ["double", "shuffle", "drop"])
def test_messages_are_only_hints(how: str, faulty: Faulty, figures: dict[str, object]) -> None:
    faulty.be(messages=how)
    with faulty.storm.clients(how) as clients:
        clients.wait_for_more(40)
        time.sleep(FAULT_SECONDS)
    took = faulty.storm.all_decided(clients)
    figures[f"messages: {how}"] = f"{clients}; all decided once, {took:.1f} s after the last; 0 lost, 0 doubled"
    assert set(clients.answers) == {202}, str(clients)


@pytest.mark.parametrize("seconds", [600, -600, -3600])
def test_a_clock_that_is_wrong_changes_no_ownership(seconds: int, faulty: Faulty, figures: dict[str, object]) -> None:
    with faulty.storm.clients(f"clock{seconds}") as clients:
        clients.wait_for_more(10)
        faulty.be(clock=seconds)  # of every process but the database
        clients.wait_for_more(20)
        faulty.be()
        clients.wait_for_more(10)
    took = faulty.storm.all_decided(clients)
    figures[f"clocks {seconds:+} s off"] = f"{clients}; all decided once, {took:.1f} s after the last"
    assert set(clients.answers) == {202}, str(clients)


def test_a_web_server_that_is_killed_amid_requests(faulty: Faulty, figures: dict[str, object]) -> None:
    storm = faulty.storm
    with storm.clients("web") as clients:
        clients.wait_for_more(10)
        faulty.web.kill_group()
        storm.ports.clear()
        faulty.web = storm.start_web(faulty.wish)
        clients.use(storm.ports)
        clients.wait_for_more(10)
    storm.all_decided(clients)
    figures["kill -9 of the web server"] = f"{clients}; each key one workload"
    assert set(clients.answers) == {202}, str(clients)


def test_processes_of_the_pool_that_run_out_of_memory(faulty: Faulty, figures: dict[str, object]) -> None:
    """The kernel kills the one that is too large, and leaves its siblings and their parent."""
    draw = random.Random(1)
    with faulty.storm.clients("pool") as clients:
        for _ in range(5):
            clients.wait_for_more(5)
            pool = children_of(faulty.worker.popen.pid)
            os.kill(draw.choice(pool), signal.SIGKILL)
    took = faulty.storm.all_decided(clients)
    assert faulty.worker.running
    figures["kill -9 of pool processes"] = f"5 kills; {clients}; all decided {took:.1f} s after the last"


def test_everything_is_restarted_one_by_one_and_nobody_notices(faulty: Faulty, figures: dict[str, object]) -> None:
    storm = faulty.storm
    longest = 0.0

    def ended(old: Process) -> None:
        nonlocal longest
        began = time.monotonic()
        old.popen.send_signal(signal.SIGTERM)
        wait_until(lambda: not old.running, what=old.said, seconds=2 * LONGEST_DRAIN_SECONDS)
        longest = max(longest, time.monotonic() - began)

    with storm.clients("rolling") as clients:
        clients.wait_for_more(10)
        fresh = faulty.start_worker()
        ended(faulty.worker)
        faulty.worker = fresh
        clients.wait_for_more(5)
        beats = [faulty.start_beat(), faulty.start_beat()]
        for beat in faulty.beats:
            ended(beat)
        faulty.beats = beats
        second = storm.start_web(faulty.wish)
        clients.use(storm.ports[1:])
        clients.wait_for_more(5)
        ended(faulty.web)
        faulty.web = second
        storm.ports.pop(0)
        clients.wait_for_more(10)
    storm.all_decided(clients)
    assert set(clients.answers) == {202}, str(clients)
    assert longest < LONGEST_DRAIN_SECONDS
    figures["rolling restart"] = f"{clients}; the slowest drained in {longest:.1f} s; 0 lost"
