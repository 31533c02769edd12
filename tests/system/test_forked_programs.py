"""Forked Python programs have the state, the output and the exit code of programs that a new interpreter executes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.processes import ROOT, Process, plain_environment, python, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems execute Python programs")

# Fork or execute the module `program` with an open descriptor that it inherits and one that it does not. This process
# has handlers of its own, which the program must not have.
START = """
import os, signal, subprocess, sys
from pathlib import Path
from hetsched.cli.server.forked import ForkedProcess, PythonModule
folder, is_forked = Path(sys.argv[1]), sys.argv[2] == "fork"
sys.path.insert(0, str(folder))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
sys.excepthook = lambda *_: print("handled by the parent")
kept, closed = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
module = PythonModule("program", (str(kept), "two words"))
if is_forked:
    process = ForkedProcess(
        module, cwd=folder, stdout=subprocess.PIPE, stderr=None, fds=(kept,), prepare=lambda: None
    )
else:
    process = subprocess.Popen(
        module.argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(kept,),
        start_new_session=True,
    )
output = process.stdout.read()
process.wait()
print(process.returncode, flush=True)
os.write(1, output)
"""

STATE = """
import gc, json, os, signal, sys, threading
state = {
    "arguments": sys.argv, "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(),
    "folder": os.getcwd(), "leader": os.getpid() == os.getpgid(0) == os.getsid(0), "input": sys.stdin.read(),
    "handlers": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": [number for number in range(100) if os.path.exists(f"/proc/self/fd/{number}")],
    "inherited": os.get_inheritable(int(sys.argv[1])), "collector": [gc.isenabled(), *gc.get_threshold()],
    "excepthook": sys.excepthook is sys.__excepthook__, "threads": threading.active_count(),
    "streams": [[stream.encoding, stream.errors, stream.write_through] for stream in (sys.stdout, sys.stderr)],
}
print(json.dumps(state))
"""

# A supervisor that holds a lock, as on a data folder, and one program that ignores SIGTERM.
HOLD = """
import fcntl, sys
from pathlib import Path
from hetsched.cli.server.forked import PythonModule
from hetsched.cli.server.supervisor import SupervisedProgram, Supervisor
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
lock = (folder / "lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX)
supervisor = Supervisor(env={"NAME": "value"}, cwd=folder, log_dir=folder, write_line=print)
supervisor.start(SupervisedProgram("web-2", PythonModule("program"), grace_seconds=1.0))
supervisor.watch()
supervisor.stop()
"""
STUBBORN = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: Path("asked").touch())
Path("pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.1)
"""


def start(folder: Path, source: str, way: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(source)
    env = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    command = python("-c", START, str(folder), way)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)


def test_forked_program_has_the_state_of_an_executed_one(tmp_path: Path) -> None:
    forked, executed = (
        json.loads(start(tmp_path, STATE, way).stdout.partition("\n")[2]) for way in ("fork", "execute")
    )
    assert forked == executed
    assert executed["arguments"][2] == "two words"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit('the message')", 1),
        ("raise ValueError('wrong')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, sys; sys.stdout.write('partial'); os._exit(0)", 0),
        ("import atexit; atexit.register(print, 'exit function')", 0),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()", 0),
    ],
)
def test_forked_program_ends_as_an_executed_one(tmp_path: Path, source: str, code: int) -> None:
    forked, executed = (start(tmp_path, source, way) for way in ("fork", "execute"))
    assert forked.stdout == executed.stdout
    assert forked.stdout.startswith(f"{code}\n")
    assert forked.stderr.splitlines()[-1:] == executed.stderr.splitlines()[-1:]


def test_forked_program_ends_with_its_killed_supervisor(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STUBBORN)
    supervisor = Process(python("-c", HOLD, str(tmp_path)), env=os.environ, log=tmp_path / "output", cwd=ROOT)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text(), what=supervisor.said)
    program = int(pid.read_text())
    try:
        assert Path(f"/proc/{program}/comm").read_text() == "web-2\n"
        with (tmp_path / "lock").open("a") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            supervisor.popen.kill()
            supervisor.popen.wait()
            wait_until((tmp_path / "asked").exists, what="SIGTERM at the end of the supervisor")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # although the program still runs
    finally:
        supervisor.kill_group()
        os.kill(program, signal.SIGKILL)


SUPERVISOR = HOLD.partition("supervisor.start")[0]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_output_is_returned_and_a_failure_ends_the_command(tmp_path: Path) -> None:
    source = "import os, sys; print(dict(os.environ)); print('progress', file=sys.stderr); sys.exit(len(sys.argv[1:]))"
    (tmp_path / "program.py").write_text(source)
    script = SUPERVISOR + (
        "run = lambda *words: supervisor.run_to_end(SupervisedProgram('once', PythonModule('program', words)))\n"
        "print(run().decode(), end='')\n"
        "run('one', 'two')\n"
    )
    done = run(*python("-c", script, str(tmp_path)))
    assert (done.returncode, done.stdout) == (2, "{'NAME': 'value'}\n")
    assert done.stderr == "progress\n" * 2


def test_descriptor_above_a_lowered_limit_is_closed(tmp_path: Path) -> None:
    """The limit of open files may be lower than a descriptor that is open, or higher than 10^9, as in containers."""
    source = "import os; print([number for number in range(300) if os.path.exists(f'/proc/self/fd/{number}')])"
    (tmp_path / "program.py").write_text(source)
    script = SUPERVISOR + (
        "import os, resource\n"
        "os.dup2(lock.fileno(), 200)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "print(supervisor.run_to_end(SupervisedProgram('once', PythonModule('program'))).decode(), end='')\n"
    )
    done = run(*python("-c", script, str(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2]\n", "")


def test_ignored_end_of_children_does_not_hide_exit_codes(tmp_path: Path) -> None:
    """A process inherits ignored signals; the kernel discards the exit codes of children if SIGCHLD is ignored."""
    source = "import signal, sys; sys.exit(3 if signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL else 4)"
    (tmp_path / "program.py").write_text(source)
    script = SUPERVISOR + ("supervisor.run_to_end(SupervisedProgram('once', PythonModule('program')))\n")
    words = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    done = run(*python("-c", words, *python("-c", script, str(tmp_path))))
    assert (done.returncode, done.stderr) == (3, "")


def test_code_of_the_next_program_is_loaded_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; print('first', flush=True); time.sleep(1)")
    script = SUPERVISOR + (
        "upcoming = SupervisedProgram('next', PythonModule('program', (), lambda: print('loaded', flush=True)))\n"
        "first = SupervisedProgram('once', PythonModule('program'))\n"
        "print(supervisor.run_to_end(first, [upcoming]).decode(), end='')\n"
    )
    done = run(*python("-c", script, str(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\nfirst\n", "")


def test_loaded_code_has_no_threads_connections_or_descriptors(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from hetsched.cli.server import standalone\n"
        "os.environ |= standalone.common_environment({}, Path(os.environ['HETSCHED_DATA']), 'localhost')\n"
        "programs = [*standalone.worker_programs('w', 1, None), standalone.watch(), standalone.beat()]\n"
        "modules = [program.command for program in programs]\n"
        "modules += [standalone.django_command(name) for name in ('prepare', 'connect', 'extender')]\n"
        "for module in modules: module.load()\n"
        "standalone.load(*standalone.WEB_MODULES)\n"
        "from django.db import connections\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "assert [connection.connection for connection in connections.all()] == [None]\n"
        "assert [name for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')] "
        "== ['0', '1', '2']\n"
    )
    env = plain_environment() | {"HETSCHED_DATA": str(tmp_path)}
    done = subprocess.run(
        python("-c", script), env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
