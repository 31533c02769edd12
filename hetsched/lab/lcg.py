"""A linear congruential generator: the same draws in any language, from a seed of one number.

Rule: x <- (1103515245 * x + 12345) mod 2^31; a draw below k is (x >> 16) mod k, after the step.
Source: the example generator of the C standard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Lcg:
    """A sequence of draws."""

    def __init__(self, seed: int) -> None:
        self._x = seed

    def below(self, limit: int) -> int:
        """Return the next draw, from 0 to limit - 1."""
        self._x = (1103515245 * self._x + 12345) % 2**31
        return (self._x >> 16) % limit

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in a drawn order (Fisher-Yates, from the last position)."""
        order = list(items)
        for position in range(len(order) - 1, 0, -1):
            other = self.below(position + 1)
            order[position], order[other] = order[other], order[position]
        return order
