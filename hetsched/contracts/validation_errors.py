"""Messages of msgspec's decoding errors, which are plain text."""

from __future__ import annotations

import re

import msgspec

from .message import Message

# In matching order.
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
    """Return the message of an error, and the JSON path of the value, empty for the whole document."""
    text, _, path = str(error).partition(" - at `")
    for template, pattern in _PATTERNS:
        if found := pattern.fullmatch(text):
            return Message(template, **found.groupdict()), path.removesuffix("`")
    return Message("{text}", text=text), path.removesuffix("`")


def with_path(error: msgspec.DecodeError) -> Message:
    """Return the message of an error that names the JSON path of the value."""
    message, path = without_path(error)
    return Message("{said} - at {text}", said=message, text=f"`{path}`") if path else message
