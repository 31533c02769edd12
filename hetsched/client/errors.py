"""What can go wrong between a program and a server.

Rule: a request that the server refused is `Refused`, an `InputError` like any other wrong input, with the whole problem
document. Where there is no usable answer, the error is `ServerUnavailable`; `passing` says that trying again later may
help, which a refused token never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetsched.contracts.errors import InputError


class Refused(InputError):
    """The server refused this request; nothing of it was done. `problem` is its document, `status` that of HTTP."""

    def __init__(self, status: int, problem: Mapping[str, Any], fallback: str = "") -> None:
        def text(name: str, otherwise: str = "") -> str:
            value = problem.get(name)
            return value if isinstance(value, str) and value else otherwise

        super().__init__(
            text("code", f"Http{status}"), text("detail", fallback), place=text("place"), hint=text("hint")
        )
        self.status = status
        self.problem = dict(problem)


class ServerUnavailable(Exception):
    """The server gave no usable answer; `told` says why, `passing` whether it may give one later."""

    def __init__(self, code: str, message: str, *, place: str, hint: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.told = InputError(code, message, place=place, hint=hint)
        self.passing = passing

    def __str__(self) -> str:
        return str(self.told)
