"""The agent's loop: when it reads which facts, what it reports, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hetsched.agent.options import Reporting, _check, reporting
from hetsched.agent.program import WHOLE_SECONDS, Agent, build, hold_agent_lock
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_message import AgentAnswer, NodeAllocation
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    MachineIsa,
    MachineProblem,
    MachineZone,
    PinnedContainer,
)

from .pod_resources import FakeKubelet, container

REPORT = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (), (), ())


class RecordingSender:
    """Record reports instead of sending them."""

    superseded = False

    def __init__(self) -> None:
        self.reports: list[AgentReport] = []
        self.pinned: list[Any] = []
        self.waiting: list[AgentAnswer] = []

    def send_report(self, report: AgentReport) -> None:
        self.reports.append(report)

    def send_pinned(self, pinned: Any) -> None:
        self.pinned.append(pinned)

    def answers(self) -> list[AgentAnswer]:
        found, self.waiting = self.waiting, []
        return found


class Pins:
    problems: tuple[MachineProblem, ...] = ()

    def __init__(self) -> None:
        self.learnt: list[Any] = []
        self.steps = 0

    def learn(self, *what: Any) -> None:
        self.learnt.append(what)

    def step(self, now: float) -> tuple[PinnedContainer, ...]:
        self.steps += 1
        return (PinnedContainer("u", "c", "0", "0"),)

    def close(self) -> None:
        pass


class Machine:
    """A tree on disk, and an agent on it with a stopped clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.reads = 0
        self.found = REPORT
        self.sender = RecordingSender()
        self.pins = Pins()
        self.agent = Agent(
            lambda: Tree(root),
            self._read,
            sender=self.sender,  # type: ignore[arg-type]
            pins=self.pins,
            clock=lambda: self.now,
        )

    def _read(self, tree: Tree) -> AgentReport:
        self.reads += 1
        return self.found

    def online(self, cpus: str) -> None:
        file = self.root / "sys/devices/system/cpu/online"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(cpus)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.online("0-7")
    return found


def test_unchanged_sources_are_not_read_again(machine: Machine) -> None:
    for _ in range(3):
        machine.agent.step()
    assert (machine.reads, len(machine.sender.reports), machine.pins.steps) == (1, 1, 3)


def test_change_is_read_and_reported_at_once(machine: Machine) -> None:
    machine.agent.step()
    machine.online("0-3")
    machine.found = msgspec.structs.replace(REPORT, memory_mib=4096)
    machine.agent.step()
    assert [report.memory_mib for report in machine.sender.reports] == [None, 4096]


class Meter:
    """Report once that other programs take more of a zone than configured."""

    last = None

    def __init__(self, *news: tuple[MachineZone, ...] | None) -> None:
        self.news = list(news)

    def measure(self, tree: Tree) -> None:
        pass

    def changed_steal(self, zones: tuple[MachineZone, ...]) -> tuple[MachineZone, ...] | None:
        return self.news.pop(0) if self.news else None


def test_steal_is_reported_without_reading_facts_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    lent = (MachineZone(0, "0-7", steal_ratio=0.3, offline_capacity_millis=5600),)
    machine.agent = Agent(
        lambda: Tree(tmp_path),
        machine._read,
        sender=machine.sender,  # type: ignore[arg-type]
        meter=Meter(None, lent),
        clock=lambda: machine.now,
    )
    for _ in range(4):
        machine.agent.step()
    assert [report.zones for report in machine.sender.reports] == [(), lent]
    assert machine.reads == 1


def test_full_report_is_sent_periodically(machine: Machine) -> None:
    machine.agent.step()
    machine.now = WHOLE_SECONDS
    machine.agent.step()
    assert len(machine.sender.reports) == 2


def test_pins_apply_answers_and_report_their_problems(machine: Machine) -> None:
    machine.agent.step()
    key = urlsafe_b64encode(b"k" * 32).decode()
    machine.sender.waiting = [AgentAnswer("lab", "n1", 3, key, 30, [NodeAllocation("u", "{}")])]
    machine.pins.problems = (MachineProblem("RuntimeAway", "it does not answer"),)
    machine.agent.step()
    assert machine.pins.learnt == [("lab", b"k" * 32, [("u", "{}")])]
    assert [problem.code for problem in machine.sender.reports[-1].problems] == ["RuntimeAway"]


def test_pinning_continues_without_a_control_plane(machine: Machine) -> None:
    agent = Agent(lambda: Tree(machine.root), machine._read, pins=machine.pins, clock=lambda: 0.0)
    agent.step()
    agent.step()
    assert machine.pins.steps == 2


@pytest.mark.parametrize(("superseded", "code"), [(True, 4), (False, 1)])
def test_agent_exits_when_its_sender_stopped(machine: Machine, superseded: bool, code: int) -> None:
    class Ended(RecordingSender):
        alive = False

        def start(self) -> None:
            self.superseded = superseded

        def stop(self) -> None:
            pass

    agent = Agent(lambda: Tree(machine.root), machine._read, sender=Ended())  # type: ignore[arg-type]
    assert agent.run(threading.Event()) == code


def test_one_agent_runs_on_a_machine(tmp_path: Path) -> None:
    with hold_agent_lock(tmp_path / "state"), pytest.raises(InputError) as caught, hold_agent_lock(tmp_path / "state"):
        pass
    assert caught.value.code == "AgentRuns"
    with hold_agent_lock(tmp_path / "state"):
        pass


def test_options_win_over_variables() -> None:
    import argparse

    from hetsched.agent.options import add_options

    parser = argparse.ArgumentParser()
    add_options(parser)
    environment = {
        "HETSCHED_SERVER": "https://a.example/", "HETSCHED_TOKEN_FILE": "/t", "HETSCHED_AGENT_PIN": "1",
        "HETSCHED_CLUSTER": "lab",
    }  # fmt: skip
    found = reporting(parser.parse_args([]), environment)
    assert found == Reporting("https://a.example", token_file=Path("/t"), cluster="lab", pins=True)
    named = reporting(parser.parse_args(["--server", "http://b", "--token", "hs_x"]), environment)
    assert (named.server, named.token, named.token_file) == ("http://b", "hs_x", None)
    with pytest.raises(InputError) as caught:
        reporting(parser.parse_args(["--server", "http://b"]), {})
    assert caught.value.code == "TokenMissing"


def test_token_and_token_file_together_are_refused() -> None:
    import argparse

    from hetsched.agent.options import add_options

    parser = argparse.ArgumentParser()
    add_options(parser)
    both = {"HETSCHED_SERVER": "https://a.example", "HETSCHED_TOKEN": "hs_x", "HETSCHED_TOKEN_FILE": "/t"}
    for options, environment in (([], both), (["--token", "hs_y", "--token-file", "/u"], {})):
        with pytest.raises(InputError) as caught:
            reporting(parser.parse_args(options), environment)
        assert (caught.value.code, caught.value.place) == ("TokenAmbiguous", "HETSCHED_TOKEN, HETSCHED_TOKEN_FILE")
    named = reporting(parser.parse_args(["--token-file", "/u"]), both)
    assert (named.token, named.token_file) == ("", Path("/u"))


@pytest.mark.parametrize("server", ["ftp://x", "x", "http://", "http://u:p@x", "http://x:99999", "http://x?a"])
def test_invalid_server_address_is_rejected(server: str) -> None:
    with pytest.raises(InputError) as caught:
        _check(server)
    assert caught.value.code == "ServerInvalid"


def test_sigterm_ends_the_agent(tmp_path: Path) -> None:
    (tmp_path / "root/sys").mkdir(parents=True)
    environment = {**os.environ, "HETSCHED_AGENT_STATE": str(tmp_path / "state"), "NODE_NAME": "n1"}
    command = [sys.executable, "-m", "hetsched.agent", "--root", str(tmp_path / "root")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            lock = tmp_path / "state/agent.lock"
            for _ in range(1000):
                if lock.exists() or process.poll() is not None:
                    break
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
            assert lock.exists()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.fixture
def near_root() -> Iterator[Path]:
    """Return a folder with a short name: the path of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="agent-") as name:
        yield Path(name)


def test_late_kubelet_socket_is_used_below_the_root(near_root: Path) -> None:
    (near_root / "proc").mkdir()
    (near_root / "proc/cpuinfo").write_text("")
    agent = build(SimpleNamespace(node="n1", root=near_root), Reporting())
    agent.step()
    assert agent.report is not None
    assert agent.report.kubelet is None or not agent.report.kubelet.devices
    kubelet = FakeKubelet(near_root / "var/lib/kubelet/pod-resources/kubelet.sock")
    kubelet.socket.parent.mkdir(parents=True)
    kubelet.pods = {("default", "p"): [container("main", devices={"nvidia.com/gpu": ("GPU-0",)})]}
    kubelet.start()
    try:
        (near_root / "var/lib/kubelet/cpu_manager_state").write_text("{}")  # a change, so that the machine is read
        agent.step()
    finally:
        kubelet.stop()
    assert agent.report.kubelet is not None
    assert agent.report.kubelet.devices == {"default/p": {"main": {"nvidia.com/gpu": ("GPU-0",)}}}
