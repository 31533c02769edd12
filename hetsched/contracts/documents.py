"""Encode documents of the control plane. By default, messages are encoded as their English text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .message import as_text


def encode(
    document: Any, *, order: Literal["deterministic", "sorted"] | None = None, hook: Callable[[Any], Any] = as_text
) -> bytes:
    """Encode a document as JSON; `hook` converts its messages."""
    return msgspec.json.encode(document, order=order, enc_hook=hook)


def to_plain(document: Any, *, hook: Callable[[Any], Any] = as_text) -> Any:
    """Convert a document to dicts, lists and scalars; `hook` converts its messages."""
    return msgspec.to_builtins(document, enc_hook=hook)
