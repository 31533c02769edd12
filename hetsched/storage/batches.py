"""Long lists, a part at a time: a statement takes only so many values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_ITEMS_PER_QUERY = 500


def parts(items: Sequence[_Item]) -> Iterable[Sequence[_Item]]:
    """Cut a list so that each part fits into one query."""
    return (items[start : start + _ITEMS_PER_QUERY] for start in range(0, len(items), _ITEMS_PER_QUERY))
