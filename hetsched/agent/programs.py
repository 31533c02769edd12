"""Run a program of this machine with a time limit.

Only programs at fixed or registered paths are run, and only if no user except root could have installed them. They get
a minimal environment and no input. A program that exceeds its time or output limit is killed with its process group.
Invariant: no call takes much longer than `seconds`; the program inherits neither the environment nor open files, except
`files`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import stat
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MAX_OUTPUT_BYTES = 256 * 1024
_MOST_STEPS = 256  # folders and links on the path to a program
_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}


class ProgramOutput(NamedTuple):
    """Result of a program; `status` is negative if a signal ended it; `output` contains stdout and stderr."""

    status: int
    output: str
    seconds: float


def is_root_owned(path: str) -> bool:
    """Return whether a file and all folders and links on its path belong to root and are writable by root only.

    A writable link could be redirected to another program between this check and the start.
    """
    ahead, place = deque(Path(path).parts), Path("/")
    try:
        for _ in range(_MOST_STEPS):
            if not ahead:
                return place.is_file() and os.access(place, os.X_OK)
            part = ahead.popleft()
            place = place.parent if part == ".." else place / part
            entry = place.lstat()
            if entry.st_uid != 0:
                return False
            if stat.S_ISLNK(entry.st_mode):
                ahead.extendleft(reversed(place.readlink().parts))
                place = place.parent
            elif entry.st_mode & 0o022 and not (stat.S_ISDIR(entry.st_mode) and entry.st_mode & stat.S_ISVTX):
                return False
    except OSError:
        pass
    return False


def run(
    arguments: Sequence[str], *, seconds: float = 1.0, files: Sequence[int] = (), encoding: str = "utf-8"
) -> ProgramOutput | None:
    """Run a program and return its result, or None if it did not start or exceeded the limit of time or output.

    `files` contains the open file descriptors that the program inherits.
    """
    begun = time.monotonic()
    core, hard = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        # Prevents core files: an emulator writes one if its guest crashes. The limit is restored after the start.
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=tuple(files),
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (core, hard))
    assert process.stdout is not None
    with process.stdout:
        output = _read(process.stdout.fileno(), begun + seconds)
    status = None if output is None else _wait(process, begun + seconds)
    if output is None or status is None:
        _kill(process)
        return None
    return ProgramOutput(status, output.decode(encoding, "replace"), time.monotonic() - begun)


def _read(stream: int, until: float) -> bytes | None:
    read = bytearray()
    while len(read) <= MAX_OUTPUT_BYTES:
        ready, _, _ = select.select([stream], [], [], max(until - time.monotonic(), 0))
        if not ready:
            return None
        chunk = os.read(stream, 65536)
        if not chunk:
            return bytes(read)
        read += chunk
    return None


def _wait(process: subprocess.Popen[bytes], until: float) -> int | None:
    try:
        return process.wait(max(until - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
