"""Errors between a program and a server.

A request that the server rejects raises `Refused`, an `InputError` with the whole problem document. Without a usable
response, the error is `ServerUnavailable`. `passing` means that a later retry may succeed, which is never true for a
rejected token.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts
from hetsched.contracts.objects.warnings import ManifestWarning


class Refused(InputError):
    """A rejected request, which had no effect on the server; `problem` is its problem document.

    `status` is the HTTP status.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], fallback: str = "") -> None:
        code = f"Http{status}"
        super().__init__(**_members(problem, code, fallback))
        errors = problem.get("errors")
        if isinstance(errors, list):  # all wrong fields, of which the first is this error
            self.further = tuple(
                InputError(**_members(error, code, "")) for error in errors[1:] if isinstance(error, dict)
            )
        self.status = status
        self.problem = dict(problem)
        # Ignore warnings that cannot be parsed: a server of another version may send others, and the error is complete
        # without them.
        with suppress(msgspec.ValidationError):
            self.with_warnings(
                msgspec.convert(problem.get("warnings", ()), tuple[ManifestWarning, ...], dec_hook=from_parts)
            )


def _members(problem: Mapping[str, Any], code: str, detail: str) -> dict[str, str]:
    """Return the arguments of an InputError from a JSON object; values of other types are treated as absent."""

    def text(name: str, default: str = "") -> str:
        value = problem.get(name)
        return value if isinstance(value, str) and value else default

    return {"code": text("code", code), "message": text("detail", detail), "place": text("place"), "hint": text("hint")}


class ServerUnavailable(Exception):
    """Failure to get a usable response from the server; `passing` is true if a retry may succeed."""

    def __init__(self, code: str, message: str, *, place: str, hint: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.problem = InputError(code, message, place=place, hint=hint)
        self.passing = passing

    def __str__(self) -> str:
        return str(self.problem)
