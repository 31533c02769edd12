"""Linear congruential generator: an integer seed yields the same draws in any programming language.

A step is x <- (1103515245 * x + 12345) mod 2^31. A draw below k is (x >> 16) mod k after a step.
Source: the example generator of the C standard.
"""

from __future__ import annotations

from typing import Any


class Lcg:
    """Generator of a sequence of draws."""

    def __init__(self, seed: int) -> None:
        self._x = seed

    def below(self, limit: int) -> int:
        """Return the next draw, from 0 to limit - 1."""
        self._x = (1103515245 * self._x + 12345) % 2**31
        return (self._x >> 16) % limit

    def shuffle(self, items: list[Any]) -> None:
        """Shuffle the items (Fisher-Yates, from the last position)."""
        for position in range(len(items) - 1, 0, -1):
            other = self.below(position + 1)
            items[position], items[other] = items[other], items[position]
