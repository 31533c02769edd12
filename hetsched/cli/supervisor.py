"""Keep a handful of programs running together on one machine, and leave none behind.

Problem: a program that dies must come back without hammering, and stopping must reach grandchildren too: killing the
parent of a worker pool leaves the pool alive.
Rule: each program leads a session, and so a process group, of its own, and asks the kernel for a SIGTERM should this
process die. One that ends is started again after a wait that doubles from half a second to half a minute; whatever is
left of its group is killed first. Stopping goes in reverse order: SIGTERM to the leader, time to finish, then SIGKILL
to the group.
Invariant: single-threaded, so the work between fork and exec is safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from hetsched.contracts.errors import InputError

POLL_SECONDS = 0.1
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
LOG_BYTES = 16 << 20
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Program(msgspec.Struct, frozen=True):
    """What to run; `grace_seconds` is the time to finish after SIGTERM, `fds` are open files that it takes over."""

    name: str
    argv: tuple[str, ...]
    grace_seconds: float = 5.0
    fds: tuple[int, ...] = ()


class Stopped(Exception):
    """The user asked to stop."""


class _Child:
    def __init__(self, program: Program, process: subprocess.Popen[bytes]) -> None:
        self.program = program
        self.process = process
        self.started = time.monotonic()
        self.wait_seconds = FIRST_WAIT_SECONDS
        self.restart_at: float | None = None


class Supervisor:
    """Runs programs with one environment; their output goes to one file each under `log_dir`."""

    def __init__(self, *, env: Mapping[str, str], cwd: Path, log_dir: Path, tell: Callable[[str], None]) -> None:
        self._env = dict(env)
        self._cwd = cwd
        self.log_dir = log_dir
        self._tell = tell
        self._children: list[_Child] = []
        self._stop_signals = 0
        self._next_log_check = 0.0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_signals += 1

    def log_of(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"

    def start(self, program: Program) -> None:
        """Start a program that shall keep running."""
        with self.log_of(program.name).open("ab") as log:
            self._children.append(_Child(program, self._spawn(program, stdout=log, stderr=log)))

    def run_to_end(self, program: Program) -> bytes:
        """Run a program whose messages the user sees and return its standard output.

        Raises: Stopped; SystemExit with the program's own exit code when it fails.
        """
        process = self._spawn(program, stdout=subprocess.PIPE, stderr=None)
        try:
            while process.poll() is None:
                self._check_stop()
                time.sleep(POLL_SECONDS)
        finally:
            _kill_group(process)
        assert process.stdout is not None
        output = process.stdout.read()
        if process.returncode:
            raise SystemExit(process.returncode if process.returncode > 0 else 1)
        return output

    def wait_until(self, condition: Callable[[], bool], *, what: str, timeout_seconds: float) -> None:
        """Wait for a condition while everything started so far keeps running.

        Raises: Stopped; InputError `ProgramFailed` or `StartTimeout`, naming the log to read.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self._check_stop()
            for child in self._children:
                if child.process.poll() is not None:
                    raise self._failed(child.program.name, f"{child.program.name} ended while starting")
            if time.monotonic() > deadline:
                message = f"{what} is not ready after {timeout_seconds:.0f} s"
                raise InputError("StartTimeout", message, hint=f"The logs are in {self.log_dir}")
            time.sleep(POLL_SECONDS)

    def watch(self) -> None:
        """Restart what ends, until the user asks to stop."""
        while not self._stop_signals:
            now = time.monotonic()
            for child in self._children:
                self._look_after(child, now)
            if now > self._next_log_check:
                self._next_log_check = now + 60
                self._trim_logs()
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Stop everything in reverse order; a second signal cuts the waiting short."""
        asked = self._stop_signals
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.process.terminate()
                deadline = time.monotonic() + child.program.grace_seconds
                while child.process.poll() is None and time.monotonic() < deadline and self._stop_signals <= asked:
                    time.sleep(POLL_SECONDS / 2)
            _kill_group(child.process)
        self._children.clear()

    def _check_stop(self) -> None:
        if self._stop_signals:
            raise Stopped

    def _spawn(self, program: Program, *, stdout: IO[bytes] | int, stderr: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            program.argv,
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=program.fds,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (no threads here)
        )

    def _look_after(self, child: _Child, now: float) -> None:
        if child.restart_at is None:
            code = child.process.poll()
            if code is None:
                return
            _kill_group(child.process)
            if now - child.started > STEADY_SECONDS:
                child.wait_seconds = FIRST_WAIT_SECONDS
            child.restart_at = now + child.wait_seconds
            self._tell(f"{child.program.name} ended ({_how(code)}); it starts again in {child.wait_seconds:g} s")
            child.wait_seconds = min(child.wait_seconds * 2, LONGEST_WAIT_SECONDS)
        elif now >= child.restart_at:
            with self.log_of(child.program.name).open("ab") as log:
                child.process = self._spawn(child.program, stdout=log, stderr=log)
            child.started, child.restart_at = now, None

    def _failed(self, name: str, message: str) -> InputError:
        lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
        tail = f": {lines[-1][:300]}" if lines else ""
        return InputError("ProgramFailed", message + tail, hint=f"Its log: {self.log_of(name)}")

    def _trim_logs(self) -> None:
        for log in self.log_dir.glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)  # writers append, so they go on at the start


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
