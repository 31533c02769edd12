"""Processor time and suspension of a process and its children, from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetsched.lab.bench.processes import cpu_of, memory_of, pids_of, suspended, used_seconds

_BUSY = "import sys; sum(range(9_000_000)); print('done', flush=True); sys.stdin.read()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_cpu_time_of_child_processes_is_counted() -> None:
    # a shell, so that no other process of the tests is below it
    command = ["sh", "-c", '"$0" -c "$1" worker; true', sys.executable, _BUSY]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert shell.stdin is not None
    assert shell.stdout is not None
    assert shell.stdout.readline() == "done\n"
    used = cpu_of(shell.pid)
    shell.stdin.close()
    shell.stdout.close()
    shell.wait()
    assert used["worker"] > 0
    assert cpu_of(shell.pid) == {}


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="there is no /proc")
def test_forked_process_is_identified_by_its_name() -> None:
    rename = "from pathlib import Path; Path('/proc/self/comm').write_text('web-2'); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    found = pids_of(process.pid, "uvicorn"), list(memory_of(process.pid))
    process.communicate(b"\n")
    assert found == ([process.pid], ["uvicorn"])


def test_processes_are_ordered_by_processor_time() -> None:
    # 5.0 - 1.0 = 4.0; 0.5 - 0.0 = 0.5
    assert list(used_seconds({"a": 1.0}, {"b": 0.5, "a": 5.0}).items()) == [("a", 4.0), ("b", 0.5)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_suspended_tree_does_not_run_until_the_end() -> None:
    # a shell with one child
    shell = subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("before\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "before\n"
    (child,) = pids_of(shell.pid, "cat")
    with suspended(shell.pid):
        assert {_state(shell.pid), _state(child)} == {"T"}
    shell.stdin.write("after\n")
    shell.stdin.close()
    assert shell.stdout.readline() == "after\n"
    shell.stdout.close()
    assert shell.wait() == 0


def _state(pid: int) -> str:
    """Return the state of a process, `T` if it is stopped; a signal takes effect after a short time."""
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            break
        time.sleep(0.01)
    return state


def test_missing_process_cannot_be_suspended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ProcessLookupError), suspended(ended.pid):
        pass
