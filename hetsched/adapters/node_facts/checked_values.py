"""Checks of single values in an agent's report: an invalid value is unknown, and some are listed as problems."""

from __future__ import annotations

from typing import TypeVar

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError

MOST_TEXT = 300  # characters of a name or a problem
MOST_NAMED = 64  # limit for each list: instruction sets, page sizes, measured resources
Problems = list[str]
Number = TypeVar("Number", int, float)


def within(number: Number | None, most: float) -> Number | None:
    """Return a number from 0 to `most`, or None for any other."""
    return number if number is not None and 0 <= number <= most else None


def checked_cpuset(text: str | None, whose: str, problems: Problems) -> frozenset[int] | None:
    """Return the CPUs of a list such as `0-3,8`, or None, with a problem if the list is malformed."""
    if text is None:
        return None
    try:
        return parse_cpuset(text)
    except InputError as error:
        problems.append(f"{error.code}: {whose}: {error.message}")
        return None


def checked_word(text: str | None, known: frozenset[str], what: str, problems: Problems) -> str | None:
    """Return a known word in lower case, or None, with a problem if the word is unknown."""
    if text is None or text.lower() in known:
        return text and text.lower()
    problems.append(f"KubeletUnknown: unknown {what} {text[:40]!r}")
    return None
