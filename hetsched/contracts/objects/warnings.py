"""Warnings about accepted parts of a manifest that are probably not intended, or are not simulated."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import InputError, with_hint
from ..message import Message

NOT_SIMULATED = "AdmissionNotSimulated"


class ManifestWarning(msgspec.Struct, frozen=True, omit_defaults=True):
    """One warning: a stable code, its place in the manifest, and the probably intended form as a hint.

    `pod` is the name of the Pod object, or empty for other kinds of objects.
    """

    code: str
    message: Message
    place: str
    hint: Message | msgspec.UnsetType = msgspec.UNSET
    pod: str = ""

    @property
    def is_refused_by_strict(self) -> bool:
        """Whether strict mode treats this warning as an error; false only for valid parts that are not simulated."""
        return self.code != NOT_SIMULATED

    @property
    def text(self) -> Message:
        """The warning in one line."""
        return with_hint(Message("{name}: {detail}", name=self.place, detail=self.message), self.hint or "")

    def as_error(self) -> InputError:
        """Return the error of this warning in strict mode."""
        return InputError(self.code, self.message, place=self.place, hint=self.hint or "")


def in_order(warnings: Iterable[ManifestWarning]) -> tuple[ManifestWarning, ...]:
    """Return the warnings with those that strict mode treats as errors first, otherwise in the given order."""
    return tuple(sorted(warnings, key=lambda warning: not warning.is_refused_by_strict))
