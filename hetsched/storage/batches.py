"""Batches of long lists, because a statement accepts a limited number of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_ITEMS_PER_QUERY = 500


def batched(items: Sequence[_Item], most: int = _ITEMS_PER_QUERY) -> Iterable[Sequence[_Item]]:
    """Split a list into batches of at most `most` items, each small enough for one query."""
    return (items[start : start + most] for start in range(0, len(items), most))
