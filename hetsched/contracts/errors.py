"""Errors that reach a person.

Problem: a wrong input must be answered once, at the door, with what is wrong, where, and what to do.
Rule: every such answer is an `InputError`; its `code` is a stable CamelCase word that is never reused for another
meaning. A pod whose own labels or annotations are wrong is no error: it is the verdict *misconfigured*, carried as a
`Problem` beside the pod, so that the rest of its file can still be placed.
"""

from __future__ import annotations

import msgspec


class InputError(ValueError):
    """Say that an input was refused: nothing of it has been applied."""

    def __init__(self, code: str, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.hint = hint

    def at(self, place: str) -> InputError:
        """Return this error as seen from one level further out: `place` is put in front of its own."""
        return InputError(self.code, self.message, place=f"{place}{self.place}", hint=self.hint)

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return with_hint(f"{text} [{self.code}]", self.hint)

    @property
    def advice(self) -> str:
        """Return what is wrong and what to do in one text."""
        return with_hint(self.message, self.hint)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a pod's own request; any problem makes the verdict *misconfigured*."""

    code: str
    field: str
    message: str


def with_hint(message: str, hint: str) -> str:
    """Return a message and what to do; a hint that is no sentence of its own goes on with the message's."""
    if not hint:
        return message
    return f"{message}; {hint}" if hint[0].islower() else f"{message}. {hint}"
