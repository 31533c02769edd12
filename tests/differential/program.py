"""Go programs of the tests that answer one line of JSON with one line of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self


class JsonProgram:
    """A running program, used in a `with` statement; one process answers many requests."""

    def __init__(self, *command: str) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = self._started(self._command)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _started(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def _end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self._process.wait(timeout=30)

    def restart(self) -> None:
        """Replace a process that has ended."""
        self._end()
        self._process = self._started(self._command)

    def ask(self, request: Any) -> Any:
        """Return the answer to a request. Raises: OSError or ValueError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
