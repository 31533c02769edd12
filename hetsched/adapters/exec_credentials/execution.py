"""Run the program of an exec plugin, with limits of time and output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hetsched.contracts.message import Message, verbatim

MOST_BYTES = 1 << 20


class ProgramFailure(Exception):
    """The program could not be started, did not end successfully, or printed too much."""

    def __init__(self, reason: Message) -> None:
        super().__init__(str(reason))
        self.reason = reason


def run_program(
    words: Sequence[str], environment: Mapping[str, str], *, seconds: float | None, quiet: bool = False
) -> bytes:
    """Run a program without a shell and return its standard output, at most MOST_BYTES.

    After `seconds`, the program is killed with the processes that it started; without a limit, it uses the terminal of
    this process. `quiet` discards its standard error. Raises: ProgramFailure.
    """
    try:
        process = subprocess.Popen(
            list(words), env=dict(environment), stdout=subprocess.PIPE,
            stdin=None if seconds is None else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None, start_new_session=seconds is not None,
        )  # fmt: skip
    except OSError as error:
        raise ProgramFailure(verbatim(error.strerror or type(error).__name__)) from None
    with process:
        try:
            output = _read(process, seconds)
        except BaseException:
            if seconds is None:
                process.kill()
            else:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise ProgramFailure(Message("exit code {n}", n=process.returncode))
    return output


def _read(process: subprocess.Popen[bytes], seconds: float | None) -> bytes:
    """Return the output of a process after its end. Raises: ProgramFailure at a limit."""
    assert process.stdout is not None
    until = None if seconds is None else time.monotonic() + seconds
    poll, output = select.poll(), bytearray()
    poll.register(process.stdout, select.POLLIN)
    while True:
        if not poll.poll(None if until is None else max(until - time.monotonic(), 0) * 1000):
            raise _late(seconds)
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        output += part
        if len(output) > MOST_BYTES:
            raise ProgramFailure(Message("its output is longer than {n} bytes", n=MOST_BYTES))
    try:
        process.wait(None if until is None else max(until - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise _late(seconds) from None
    return bytes(output)


def _late(seconds: float | None) -> ProgramFailure:
    return ProgramFailure(Message("it did not end within {seconds} s", seconds=f"{seconds:g}"))
