"""Conversion of values from other systems into facts.

An invalid value is recorded as a problem of its node and treated as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import POWER_STATES
from hetsched.contracts.times import rfc3339, seconds
from hetsched.contracts.units import CPU, parse_amount

_MOST_WATTS = 999_999_999
_ENDING = re.compile(r"(?<![0-9])[0-9]{1,9}$", re.ASCII)


class FactReader:
    """Converter of values, which collects the problems that it finds in them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def _add_problem(self, node: str, message: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{node[:100]}: {message}")

    def state(self, node: str, value: Any, words: Mapping[str, str]) -> str | None:
        """Convert a value to a power state; `words` maps the source's words to power states."""
        text = str(value)
        state = words.get(text, text).lower() if isinstance(value, str | int | bool) else ""
        if state in POWER_STATES:
            return state
        self._add_problem(node, f"{text[:40]!r} is not a power state: use one of {', '.join(POWER_STATES)}")
        return None

    def watts(self, node: str, value: Any) -> int | None:
        """Convert a value to whole watts, rounded down."""
        number = _number(value)
        if number is not None and 0 <= number <= _MOST_WATTS:
            return math.floor(number)
        self._add_problem(node, f"{str(value)[:40]!r} is not a valid number of watts")
        return None

    def millis(self, node: str, value: Any) -> int | None:
        """Convert a value to millicores, rounded down; text is read as a Kubernetes quantity, a number as cores."""
        if isinstance(value, str):
            try:
                return parse_amount(CPU, value)
            except InputError:
                pass
        else:
            number = _number(value)
            if number is not None and 0 <= number <= 2**20:
                return math.floor(number * 1000 + 1e-6)
        self._add_problem(node, f"{str(value)[:40]!r} is not a valid amount of CPU")
        return None

    def moment(self, node: str, value: Any) -> str | None:
        """Convert RFC 3339 text, or seconds since 1970, to an RFC 3339 time in UTC."""
        at = seconds(value) if isinstance(value, str) else _number(value)
        if at is not None and 0 < at < 2**33:
            return rfc3339(datetime.fromtimestamp(at, UTC))
        self._add_problem(node, f"{str(value)[:40]!r} is not a valid time")
        return None


def zone_of(text: Any, zones: tuple[str, ...]) -> str | None:
    """Return the zone with this name, else the only zone whose name ends in the same number, else None."""
    name = str(text)
    if name in zones:
        return name
    number = _ENDING.search(name)
    same = [zone for zone in zones if (found := _ENDING.search(zone)) and number and int(found[0]) == int(number[0])]
    return same[0] if len(same) == 1 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
