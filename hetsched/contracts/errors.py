"""Errors that are shown to users.

Invalid input is rejected at its entry point with an `InputError`, which states what is wrong, where, and what to do.
Its `code` is a stable CamelCase word that is never reused for another meaning. Invalid labels or annotations of a pod
do not raise an error: they become a `Problem` of the pod, with the verdict *misconfigured*, so that the other pods of
the file can still be placed.
Decoding errors of msgspec are plain text, which is parsed into messages with parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from .message import Message, as_message, joined

# Templates of msgspec's error messages, in the order in which they are tried.
_KNOWN = (
    "Object contains unknown field {text}",
    "Object missing required field {text}",
    "Invalid enum value {text}",
    "Invalid value {text}",
    "JSON is malformed: {text}",
    "Expected {text}, got {text_b}",
    "Expected {text}",
)
_PATTERNS = tuple((known, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(known)))) for known in _KNOWN)


def without_path(error: msgspec.DecodeError) -> tuple[Message, str]:
    """Return the message of an error and the JSON path of the value, which is empty for the whole document."""
    text, _, path = str(error).partition(" - at `")
    for template, pattern in _PATTERNS:
        if found := pattern.fullmatch(text):
            return Message(template, **found.groupdict()), path.removesuffix("`")
    return Message("{text}", text=text), path.removesuffix("`")


def with_path(error: msgspec.DecodeError) -> Message:
    """Return the message of an error that names the JSON path of the value."""
    message, path = without_path(error)
    return Message("{detail} - at {text}", detail=message, text=f"`{path}`") if path else message


if TYPE_CHECKING:
    from .objects.warnings import ManifestWarning


class InputError(ValueError):
    """Rejection of input, of which no part has been applied.

    `warnings` and `further`, the errors of other fields, are about the same input.
    """

    def __init__(self, code: str, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = as_message(message)
        self.place = place
        self.hint = as_message(hint)
        self.warnings: tuple[ManifestWarning, ...] = ()
        self.further: tuple[InputError, ...] = ()

    def at(self, place: str) -> InputError:
        """Return this error with `place` prepended to its place."""
        outer = InputError(self.code, self.message, place=f"{place}{self.place}", hint=self.hint)
        outer.further = self.further
        return outer.with_warnings(self.warnings)

    def with_warnings(self, warnings: Iterable[ManifestWarning]) -> InputError:
        """Add warnings about the same input, which are shown after the error."""
        self.warnings = (*self.warnings, *warnings)
        return self

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Message:
        """Return the place, the message, the code and the hint as one text."""
        message = Message("{detail} [{code}]", detail=self.message, code=self.code)
        if self.place:
            message = Message("{name}: {detail} [{code}]", name=self.place, detail=self.message, code=self.code)
        return with_hint(message, self.hint)

    @property
    def advice(self) -> Message:
        """Return the message and the hint as one text."""
        return with_hint(self.message, self.hint)


class Problem(msgspec.Struct, frozen=True):
    """One error in a pod's request; any problem makes the verdict *misconfigured*."""

    code: str
    field: str
    message: Message


def with_hint(message: str, hint: str) -> Message:
    """Return a message with its hint; a hint that starts with a lower-case letter continues the sentence."""
    if not hint:
        return as_message(message)
    return joined("; " if hint[0].islower() else ". ", [as_message(message), as_message(hint)])


# The extra that installs a package; all others are in the extra `server`.
_EXTRAS = {"mcp": "mcp", "grpc": "agent", "google": "agent", "pynvml": "agent"}


def missing_package(error: ModuleNotFoundError) -> InputError:
    """Return the error of a command whose packages this installation lacks.

    Raises: the given error if the missing module belongs to hetsched, because that is a fault of the code.
    """
    package = (error.name or "").partition(".")[0]
    if package in {"", "hetsched", "web", "workers"}:
        raise error
    return InputError(
        "ExtraMissing",
        Message("this installation does not have the package {package}", package=package),
        hint=Message("Install the extra: pip install 'hetsched[{extra}]'", extra=_EXTRAS.get(package, "server")),
    )
