"""Supervisor that keeps several programs running on one machine, and leaves no processes behind.

A program that exits must be restarted without a tight loop. Stopping must also reach grandchildren, because a worker
pool survives its parent. Each program is the leader of a session and process group, and asks the kernel for a SIGTERM
if this process dies. A program that exited is restarted after a delay that doubles from half a second to half a minute;
the rest of its process group is killed first. A program with a probe that does not respond for `SILENT_SECONDS` is
killed and restarted; it has `START_SECONDS` until its first response. A program with a demand runs only while there is
demand: it is asked to end after `IDLE_SECONDS` without demand, and may finish its work first. A background program has
a lower processor priority, so that the other programs run first on a busy machine. Programs are stopped in reverse
order: SIGTERM to the leader, then after the grace period SIGKILL to the group. On Linux, Python programs are forked
from this process (`forked.py`); other programs are executed.
Invariant: the process is single-threaded, so that running code after a fork is safe.
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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from hetsched.contracts.errors import InputError

from .forked import CAN_FORK, ForkedProcess, PythonModule
from .probe import Probe

POLL_SECONDS = 0.1
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
SILENT_SECONDS, START_SECONDS = 30.0, 120.0
DEMAND_SECONDS, IDLE_SECONDS = 0.5, 60.0
LOG_BYTES = 16 << 20
BACKGROUND_NICENESS = 10  # a tenth of the processor time of another busy program (Linux: weight 110 of 1024)
_AUTOGROUP_TRIES = 10
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class SupervisedProgram(msgspec.Struct, frozen=True):
    """Program to run: the words of an executable's command line, or a Python module.

    `grace_seconds` is its time to finish after SIGTERM. `fds` lists the file descriptors that it inherits. `probe`, if
    set, checks its liveness. `demand`, if set, returns whether there is work for the program; it is called every
    `DEMAND_SECONDS`. Without it, the program always runs.
    """

    name: str
    command: tuple[str, ...] | PythonModule
    grace_seconds: float = 5.0
    fds: tuple[int, ...] = ()
    probe: Probe | None = None
    demand: Callable[[], bool] | None = None
    background: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command that executes the program."""
        return self.command.argv if isinstance(self.command, PythonModule) else self.command

    def load(self) -> None:
        """Import the code of the program if it will be forked from this process."""
        if CAN_FORK and isinstance(self.command, PythonModule) and self.command.load is not None:
            self.command.load()


class StopRequested(Exception):
    """The user requested a stop."""


class _Child:
    """State of a program: its process, which is None until there is demand, and the time of its next start, if any."""

    def __init__(self, program: SupervisedProgram) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.started = 0.0
        self.wait_seconds = FIRST_WAIT_SECONDS
        self.restart_at: float | None = None
        self.demanded_at: float | None = None
        self.next_demand_check = 0.0
        self.dismissed = False

    @property
    def exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None


class Supervisor:
    """Supervisor of programs with one environment; each program writes its output to a separate file in `log_dir`.

    With `log_stderr` all programs write to the standard error of this process instead, as container runtimes expect.
    The environment also becomes that of this process, which loads the code of the programs.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        cwd: Path,
        log_dir: Path,
        write_line: Callable[[str], None],
        log_stderr: bool = False,
    ) -> None:
        self._env = dict(env)
        os.environ.clear()
        os.environ.update(env)
        self._cwd = cwd
        self.log_dir = log_dir
        self._print = write_line
        self._log_stderr = log_stderr
        self._children: list[_Child] = []
        self._stop_signals = 0
        self._next_log_check = 0.0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # A process may inherit that SIGCHLD is ignored; the kernel would then discard the exit codes of the programs.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_signals += 1

    def log_of(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"

    def start(self, program: SupervisedProgram) -> None:
        """Start a program and keep it running, or run it on demand."""
        child = _Child(program)
        self._children.append(child)
        if program.demand is None:
            self._run(child, time.monotonic())

    def run_to_end(self, program: SupervisedProgram, upcoming: Iterable[SupervisedProgram] = ()) -> bytes:
        """Run a program until it exits and return its standard output; its messages are shown to the user.

        While it runs, this process loads the code of `upcoming` programs, which then start earlier.
        Raises: StopRequested; SystemExit with the program's exit code if it fails.
        """
        process = self._spawn(program, stdout=subprocess.PIPE, stderr=None)
        try:
            for other in upcoming:
                if process.poll() is None:
                    other.load()
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
        """Wait for a condition while all started programs keep running.

        Raises: StopRequested; InputError `ProgramFailed` or `StartTimeout`, which name the log file.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self._check_stop()
            for child in self._children:
                if child.exited:
                    raise self._failed(child.program.name, f"{child.program.name} exited during start-up")
            if time.monotonic() > deadline:
                message = f"{what} is not ready after {timeout_seconds:.0f} s"
                where = "standard error" if self._log_stderr else self.log_dir
                raise InputError("StartTimeout", message, hint=f"Logs: {where}")
            time.sleep(POLL_SECONDS)

    def watch(self) -> None:
        """Restart programs that exit, until the user requests a stop."""
        with contextlib.suppress(StopRequested):
            self.watch_until(lambda: False)

    def watch_until(self, condition: Callable[[], bool]) -> None:
        """Restart programs that exit, until the condition holds. Raises: StopRequested."""
        while not condition():
            self._check_stop()
            now = time.monotonic()
            for child in self._children:
                self._check_child(child, now)
            if now > self._next_log_check:
                self._next_log_check = now + 60
                self._trim_logs()
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Stop all programs in reverse order; a second signal shortens the grace period."""
        asked = self._stop_signals
        for child in reversed(self._children):
            if child.process is None:
                continue
            if not child.exited:
                child.process.terminate()
                deadline = time.monotonic() + child.program.grace_seconds
                while not child.exited and time.monotonic() < deadline and self._stop_signals <= asked:
                    time.sleep(POLL_SECONDS / 2)
            _kill_group(child.process)
        self._children.clear()

    def _check_stop(self) -> None:
        if self._stop_signals:
            raise StopRequested

    def _spawn(
        self, program: SupervisedProgram, *, stdout: IO[bytes] | int, stderr: IO[bytes] | None
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        prepare = _prepare_background if program.background else _prepare
        if CAN_FORK and isinstance(program.command, PythonModule):
            return ForkedProcess(
                program.command,
                cwd=self._cwd,
                stdout=stdout,
                stderr=stderr,
                fds=program.fds,
                prepare=partial(_prepare_forked, program.name, prepare),
            )
        return subprocess.Popen(
            program.argv,
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=program.fds,
            preexec_fn=prepare,  # noqa: PLW1509  (no threads here)
        )

    def _run(self, child: _Child, now: float) -> None:
        if self._log_stderr:
            child.process = self._spawn(child.program, stdout=sys.stderr.fileno(), stderr=None)
        else:
            with self.log_of(child.program.name).open("ab") as log:
                child.process = self._spawn(child.program, stdout=log, stderr=log)
        child.started, child.restart_at, child.dismissed = now, None, False
        if child.program.probe is not None:
            child.program.probe.reset()

    def _check_child(self, child: _Child, now: float) -> None:
        if child.program.demand is not None and now >= child.next_demand_check:
            child.next_demand_check = now + DEMAND_SECONDS
            if child.program.demand():
                child.demanded_at = now
        if child.process is None:
            if child.demanded_at is not None:
                self._run(child, now)
        elif child.restart_at is not None:
            if now >= child.restart_at:
                self._run(child, now)
        elif child.exited or self._hangs(child.program, now):
            code = _kill_group(child.process)
            if child.dismissed:
                child.process = None
            else:
                self._restart_later(child, code, now)
        elif self._is_idle(child, now):
            child.dismissed, child.demanded_at = True, None
            child.process.terminate()

    def _is_idle(self, child: _Child, now: float) -> bool:
        if child.program.demand is None or child.dismissed:
            return False
        return now - max(child.demanded_at or 0.0, child.started) > IDLE_SECONDS

    def _restart_later(self, child: _Child, code: int, now: float) -> None:
        if now - child.started > STEADY_SECONDS:
            child.wait_seconds = FIRST_WAIT_SECONDS
        child.restart_at = now + child.wait_seconds
        self._print(f"{child.program.name} exited ({_exit_text(code)}); restarting in {child.wait_seconds:g} s")
        child.wait_seconds = min(child.wait_seconds * 2, LONGEST_WAIT_SECONDS)

    def _hangs(self, program: SupervisedProgram, now: float) -> bool:
        if program.probe is None:
            return False
        most = SILENT_SECONDS if program.probe.answered else START_SECONDS
        silent = program.probe.silent_seconds(now)
        if silent <= most:
            return False
        self._print(f"{program.name} has not responded to /livez for {silent:.0f} s; killing it")
        return True

    def _failed(self, name: str, message: str) -> InputError:
        if self._log_stderr:
            return InputError("ProgramFailed", message, hint="Its log is above")
        lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
        tail = f": {lines[-1][:300]}" if lines else ""
        return InputError("ProgramFailed", message + tail, hint=f"Log: {self.log_of(name)}")

    def _trim_logs(self) -> None:
        for log in self.log_dir.glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)  # programs append to their log, so they continue at its new end


def _prepare() -> None:
    """Request a signal at the death of the parent process. This runs in the child process, after the fork."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prepare_forked(name: str, prepare: Callable[[], None]) -> None:
    """Prepare a forked process, which has the command line of this process; its name identifies the program."""
    prepare()
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode())


def _prepare_background() -> None:
    _prepare()
    os.nice(BACKGROUND_NICENESS)
    # Linux may group the processes of a session and apply niceness only within the group; the group has its own.
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(f"{BACKGROUND_NICENESS}\n")
        except BlockingIOError:  # Linux accepts one change in 100 ms from users without privileges
            time.sleep(POLL_SECONDS)
        except OSError:
            return
        else:
            return


def _kill_group(process: subprocess.Popen[bytes] | ForkedProcess) -> int:
    """Kill the process group of a program and return the exit code of its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # immediately after a fork, the process is not the leader of its group yet
    return process.wait()


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
