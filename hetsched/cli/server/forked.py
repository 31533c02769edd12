"""Python programs that are forked from this process, after it has loaded their code.

The start of an interpreter and its imports take more processor time than the work of most programs at their start, and
each interpreter has its own copy of the code in memory. A forked program shares the memory of this process until one of
them writes to it. It runs its module as `python -m` does, and ends as an interpreter ends. The ADR
`0031-forked-processes` contains the measurement.
Invariant: this process is single-threaded and has no connections, so a fork copies no lock and no session. The forked
process never returns to the code of its parent, so the objects of the parent stay alive, and cannot close a descriptor
a second time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn, TextIO

import msgspec

CAN_FORK = sys.platform == "linux"  # on macOS, system libraries are not usable after a fork


class PythonModule(msgspec.Struct, frozen=True):
    """Python module to run with arguments; `load` imports the code that it needs, without the module itself."""

    name: str
    arguments: tuple[str, ...] = ()
    load: Callable[[], None] | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command that runs the module in a new interpreter."""
        return (sys.executable, "-m", self.name, *self.arguments)


class ForkedProcess:
    """Child process that runs a Python module, with the part of the interface of `Popen` that a supervisor uses.

    The arguments are those of `Popen`; `prepare` runs in the child before the module. The environment is that of this
    process.
    """

    def __init__(
        self,
        module: PythonModule,
        *,
        cwd: Path,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | None,
        fds: tuple[int, ...],
        prepare: Callable[[], None],
    ) -> None:
        if module.load is not None:
            module.load()
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        writer = None
        if stdout == subprocess.PIPE:
            reader, writer = os.pipe()
            self.stdout = os.fdopen(reader, "rb")
        output = writer if writer is not None else stdout if isinstance(stdout, int) else stdout.fileno()
        errors = 2 if stderr is None else stderr.fileno()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection in the child would write to all objects of the shared memory
        # A signal to the child before it has reset the handlers would only reach the handlers of this process.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_child(module, cwd, output, errors, fds, prepare, unblocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            if writer is not None:
                os.close(writer)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run_child(
    module: PythonModule,
    cwd: Path,
    output: int,
    errors: int,
    fds: tuple[int, ...],
    prepare: Callable[[], None],
    unblocked: set[int | signal.Signals],
) -> NoReturn:
    """Run the module in the forked process and exit with its exit code."""
    code = 1
    try:
        os.setsid()
        _replace_descriptors(output, errors, fds)
        _reset_interpreter(module)
        os.chdir(cwd)
        prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        code = _run_module(module)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _replace_descriptors(output: int, errors: int, fds: tuple[int, ...]) -> None:
    """Replace the standard streams; close all other descriptors except `fds`, which child processes inherit."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in fds:
        os.set_inheritable(descriptor, True)
    # The limit of open files is no bound: it may be 10^9, or lower than a descriptor that is open.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in fds:
            with contextlib.suppress(OSError):  # the list contains its own descriptor, which is closed already
                os.close(descriptor)


def _reset_interpreter(module: PythonModule) -> None:
    """Give the interpreter the signal handlers, streams and arguments of a new one."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook = sys.__excepthook__
    sys.stdout = sys.__stdout__ = _unbuffered(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, sys.stderr)  # type: ignore[misc]
    sys.argv = [module.name, *module.arguments]  # `runpy` replaces the first one with the file of the module


def _unbuffered(descriptor: int, stream: TextIO) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


def _run_module(module: PythonModule) -> int:
    """Run the module and the exit functions; return the exit code of an interpreter."""
    interrupted = False
    try:
        runpy.run_module(module.name, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads that are not daemons
    atexit._run_exitfuncs()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _exit_code(value: object) -> int:
    """Return the exit code for the argument of `sys.exit`."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return 1
