"""CPU pinning with containerd and runc: containers get exactly their CPUs, also after any process was killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.agent.cri import Runtime, RuntimeFailure
from hetsched.agent.pins import Pinner
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.messages.signatures import node_key, sign
from tests.agent.containerd import Containerd, cpuset_file, running

pytestmark = pytest.mark.needs("containerd", "runc", "busybox")
KEY = node_key(b"secret", "prod", "n1")
ALLOCATION = "hetsched.io/allocation"
ONLINE = sorted(parse_cpuset(Path("/sys/devices/system/cpu/online").read_text()))
MINE, REST = str(ONLINE[0]), ONLINE[1:]


def signed(uid: str, cpus: str, policy: str = "exclusive", epoch: int = 1, key: bytes = KEY) -> dict[str, str]:
    document: dict[str, Any] = {"v": 1, "cpus": cpus, "policy": policy, "containers": {"main": cpus}}
    document |= {"uid": uid, "node": "n1", "epoch": epoch}
    return {ALLOCATION: json.dumps(document | {"sig": sign(document, key)})}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    with running() as containerd:
        yield containerd


@pytest.fixture(autouse=True)
def no_pods(runtime: Containerd) -> Iterator[None]:
    yield
    runtime.end_pods()


@pytest.fixture
def pinner(runtime: Containerd, tmp_path: Path) -> Iterator[Pinner]:
    pinner = Pinner("n1", Runtime(runtime.socket), tmp_path / "state", Tree())
    pinner.learn("prod", KEY, [])
    yield pinner
    pinner.close()


def on(container: str) -> frozenset[int]:
    """Return the CPUs that the kernel allows for a container."""
    return parse_cpuset(cpuset_file(container).read_text())


def free(runtime: Containerd, *containers: str) -> None:
    """Let containers run on all CPUs, as another program may."""
    connection = Runtime(runtime.socket)
    for container in containers:
        connection.set_cpus(container, format_cpuset(ONLINE))
    connection.close()


def eventually(holds: Callable[[], bool], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


class Watched:
    """Read the CPUs of two containers continuously: the one with exclusive CPUs first, then the other."""

    def __init__(self, own: str, other: str) -> None:
        self._files = cpuset_file(own), cpuset_file(other)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seen: set[tuple[str, str]] = set()

    def _watch(self) -> None:
        while not self._ends.wait(0.001):
            self.seen.add((self._files[0].read_text().strip(), self._files[1].read_text().strip()))

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def together(self) -> list[tuple[str, str]]:
        """Return the observations in which both containers were on the exclusive CPUs."""
        return [pair for pair in self.seen if pair[0] == MINE and parse_cpuset(pair[1]) & parse_cpuset(MINE)]


def test_containers_get_exactly_their_cpus(runtime: Containerd, pinner: Pinner) -> None:
    own, other = runtime.pod("own", signed("uid-own", MINE)), runtime.pod("other")
    main, side, ordinary = runtime.container(own), runtime.container(own, "side"), runtime.container(other)
    (report,) = pinner.step(0)
    assert on(main) == {ONLINE[0]}
    assert on(side) == on(ordinary) == set(REST)
    assert (report.predicted, report.actual, report.drift, pinner.problems) == (MINE, MINE, "", ())
    runtime.end_container(main)
    again = runtime.container(own, attempt=1)
    pinner.step(1)
    assert on(again) == {ONLINE[0]}
    runtime.end_pod(own)
    assert pinner.step(2) == ()
    assert on(ordinary) == set(ONLINE)


@pytest.mark.parametrize(
    "said",
    [
        signed("uid-else", MINE),
        signed("uid-p", MINE, key=node_key(b"secret", "prod", "n2")),
        {ALLOCATION: signed("uid-p", "0")[ALLOCATION].replace('"exclusive"', '"immovable"')},
        {ALLOCATION: '{"v":1,"uid":"uid-p","node":"n1","epoch":9,"containers":{"main":"0"},"policy":"exclusive"}'},
    ],
    ids=["replayed", "foreign", "forged", "unsigned"],
)
def test_unsigned_allocation_moves_no_container(runtime: Containerd, pinner: Pinner, said: dict[str, str]) -> None:
    container = runtime.container(runtime.pod("p", said))
    assert pinner.step(0) == ()
    assert on(container) == set(ONLINE)
    assert len(pinner.problems) == 1


def test_agent_killed_at_any_step_restores_all_cpusets(runtime: Containerd, tmp_path: Path) -> None:
    main = runtime.container(runtime.pod("own", signed("uid-own", MINE)))
    other = runtime.container(runtime.pod("other"))
    folder = tmp_path / "state"
    command = [sys.executable, "-m", "tests.agent.dying_agent", str(runtime.socket), str(folder), "n1", "prod"]
    with subprocess.Popen([*command, KEY.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agents:

        def agent(dies_at: int) -> str:
            assert agents.stdin is not None
            assert agents.stdout is not None
            print(dies_at, file=agents.stdin, flush=True)
            return agents.stdout.readline().strip()

        with Watched(main, other) as watched:
            died = 0
            while agent(died + 1) == "killed":
                died += 1
                assert agent(0) == "done"
                assert (on(main), on(other)) == ({ONLINE[0]}, set(REST))
                # As after a reboot: nothing is pinned and no state is stored.
                free(runtime, main, other)
                shutil.rmtree(folder)
            # Two lists, two reads, one file and two verified writes, each with an event before and after.
            assert died >= 18
        assert (on(main), on(other), watched.together()) == ({ONLINE[0]}, set(REST), [])


def test_agent_reconnects_to_a_restarted_runtime(runtime: Containerd, pinner: Pinner) -> None:
    main = runtime.container(runtime.pod("own", signed("uid-own", MINE)))
    other = runtime.container(runtime.pod("other"))
    pinner.step(0)
    with Watched(main, other) as watched:
        runtime.stop(signal.SIGKILL)
        (report,) = pinner.step(1)
        assert (report.actual, [problem.code for problem in pinner.problems]) == (None, ["RuntimeAway"])
        assert (on(main), on(other)) == ({ONLINE[0]}, set(REST))  # they keep running
        runtime.start()
        eventually(lambda: not [container.drift for container in pinner.step(time.monotonic()) if container.drift])
    assert watched.together() == []
    free(runtime, main)
    pinner.step(time.monotonic())
    assert on(main) == {ONLINE[0]}


def test_pins_survive_agent_kills_without_the_control_plane(
    runtime: Containerd, pinner: Pinner, tmp_path: Path
) -> None:
    main = runtime.container(runtime.pod("own", signed("uid-own", MINE)))
    other = runtime.container(runtime.pod("other"))
    pinner.step(0)
    pinner.close()  # the next agents know only its stored state
    command = [sys.executable, "-m", "hetsched.agent", "--node", "n1", "--pin", "--runtime", str(runtime.socket)]
    with Watched(main, other) as watched, (tmp_path / "log").open("wb") as log:
        for _ in range(3):
            free(runtime, other, main)
            watched.seen.clear()
            agent = subprocess.Popen([*command, "--state", str(tmp_path / "state")], stdout=log, stderr=log)
            try:
                eventually(lambda: (on(main), on(other)) == ({ONLINE[0]}, set(REST)), 30)
            finally:
                agent.kill()
                agent.wait()
            assert watched.together() == []
        assert (on(main), on(other)) == ({ONLINE[0]}, set(REST))


def test_deleted_container_is_no_failure(runtime: Containerd) -> None:
    connection = Runtime(runtime.socket)
    with pytest.raises(RuntimeFailure) as failure:
        connection.set_cpus("f" * 64, MINE)
    assert failure.value.gone
    assert connection.version().startswith("containerd ")
    connection.close()
