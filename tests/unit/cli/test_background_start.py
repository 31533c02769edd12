"""`hetsched scheduler` starts its background processes after the first backlog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetsched.cli.server import scheduler
from hetsched.cli.server.supervisor import SupervisedProgram
from hetsched.journal import heartbeat


class FakeSupervisor:
    """A supervisor whose programs do nothing; `while_waiting` runs once per poll of a condition."""

    def __init__(self, data: Path, while_waiting: Callable[[], None], *, live: bool = False) -> None:
        self.log_dir = data / "logs"
        self.live = live
        self.started: list[str] = []
        self.niced: list[str] = []
        self.at_wait: list[str] = []
        self._while_waiting = while_waiting

    def start(self, program: SupervisedProgram) -> None:
        self.started.append(program.name)
        if program.background:
            self.niced.append(program.name)

    def run_to_end(self, program: SupervisedProgram, upcoming: Iterable[SupervisedProgram] = ()) -> bytes:
        return json.dumps({"admin": None, "live": self.live}).encode()

    def watch_until(self, condition: Callable[[], bool]) -> None:
        self.at_wait = list(self.started)
        while not condition():
            self._while_waiting()


def start(supervisor: FakeSupervisor, cluster: SupervisedProgram | None) -> None:
    worker = SupervisedProgram("worker", ("worker",))
    scheduler.start_all(supervisor, None, cluster, None, [], [worker], extender=False, admin=False)  # type: ignore[arg-type]


@pytest.fixture
def idle_file(tmp_path: Path) -> Path:
    """Return the file of an idle informer, which an earlier process has left."""
    assert scheduler.IDLE_FILE.name == heartbeat.WATCH_IDLE
    file = tmp_path / scheduler.IDLE_FILE
    file.parent.mkdir()
    file.touch()
    return file


CONNECT = SupervisedProgram("connect", ("connect",))


def test_workers_start_when_the_informer_is_idle(tmp_path: Path, idle_file: Path) -> None:
    supervisor = FakeSupervisor(tmp_path, idle_file.touch)
    start(supervisor, CONNECT)
    assert (supervisor.at_wait, supervisor.started) == (["watch"], ["watch", "worker", "beat"])
    assert supervisor.niced == ["worker", "beat"]


def test_workers_wait_for_a_backlog_for_a_limited_time(
    tmp_path: Path, idle_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def pass_time() -> None:
        clock.now += 1.0

    supervisor = FakeSupervisor(tmp_path, pass_time)
    start(supervisor, CONNECT)
    assert supervisor.started == ["watch", "worker", "beat"]
    # The limit of 15 s is exceeded at the sixteenth poll.
    assert clock.now == 116.0


def test_workers_wait_for_clusters_that_are_already_connected(tmp_path: Path, idle_file: Path) -> None:
    supervisor = FakeSupervisor(tmp_path, idle_file.touch, live=True)
    start(supervisor, None)
    assert (supervisor.at_wait, supervisor.niced) == (["watch"], ["worker", "beat"])


def test_workers_of_offline_clusters_start_at_once_with_normal_priority(tmp_path: Path, idle_file: Path) -> None:
    """Regression: on two busy cores, web processes left the workers a tenth of a core, and decisions took 10 s."""
    supervisor = FakeSupervisor(tmp_path, lambda: pytest.fail("waits"))
    start(supervisor, None)
    assert (supervisor.started, supervisor.niced) == (["watch", "worker", "beat"], [])
