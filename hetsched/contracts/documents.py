"""Encode documents of the control plane in one place, so that a type of ours needs one hook."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


def encode(document: Any, *, order: Literal["deterministic", "sorted"] | None = None) -> bytes:
    """Return a document as JSON."""
    return msgspec.json.encode(document, order=order)


def to_plain(document: Any) -> Any:
    """Return a document as plain values."""
    return msgspec.to_builtins(document)
