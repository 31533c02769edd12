"""Device selectors: CEL expressions, evaluated per device within limits.

The expressions come from users who can create claims, so they are untrusted; a wrong result would allocate a wrong
device. An expression can read `device.driver`, `device.attributes` and `device.capacity`, the latter two by domain and
name, as in Kubernetes. The result is true, false, or `None` with the reason (an absent field, an unsupported function,
a type mismatch). An expression has at most `MOST_CHARACTERS` characters and at most `MOST_LOOPS` macros that iterate
over a list, which bounds the work.
Units: quantities are integers in thousandths; `compareTo`, `isGreaterThan` and `isLessThan` compare quantities or
versions.
Source: Kubernetes documentation, "Dynamic Resource Allocation", device selection; the CEL language definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hetsched.contracts.units import parse_amount

MOST_CHARACTERS = 2_048
MOST_LOOPS = 1
_LOOPS = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter|transform\w*)\s*\(")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_LONGEST = 200
Answer = tuple[bool | None, str]


class CelExpression:
    """One compiled expression; `problem` is set if the expression cannot be evaluated for any device."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problem = ""
        self._program: Any = None
        if len(text) > MOST_CHARACTERS:
            self.problem = f"the expression has more than {MOST_CHARACTERS} characters"
        elif len(_LOOPS.findall(text)) > MOST_LOOPS:
            self.problem = f"the expression contains more than {MOST_LOOPS} comprehension"
        else:
            import cel  # slow to import, and few clusters have dynamic devices

            try:
                self._program = cel.compile(text)
            except Exception as error:
                self.problem = _first_line(error)

    def evaluate(self, device: dict[str, Any]) -> Answer:
        """Return whether the expression is true for a device, or None with the reason."""
        if self.problem:
            return None, self.problem
        try:
            found = self._program.execute(_context(device))
        except Exception as error:
            return None, f"CEL runtime error: {_first_line(error)}"
        if found is True or found is False:
            return found, ""
        return None, "the expression does not return a Boolean"


@lru_cache(maxsize=4096)
def expression(text: str) -> CelExpression:
    """Return a compiled expression, cached by its text."""
    return CelExpression(text)


def quantity(text: str) -> int:
    """Return a quantity in thousandths. Raises: InputError."""
    return parse_amount("cpu", text)


def is_version(text: str) -> bool:
    """Return whether the text is a semantic version."""
    return _VERSION.fullmatch(text) is not None


def version(text: str) -> list[Any]:
    """Return a semantic version as a list that compares in version order. Raises: ValueError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a semantic version")
    major, minor, patch, before = found.groups()
    steps = [[0, int(step), ""] if step.isdigit() else [1, 0, step] for step in before.split(".")] if before else []
    return [int(major), int(minor), int(patch), 0 if before else 1, steps]


def _compare(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def _context(device: dict[str, Any]) -> Any:
    import cel

    context = cel.Context()
    context.add_variable("device", device)
    for name, function in _FUNCTIONS.items():
        context.add_function(name, function)
    return context


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": quantity,
    "semver": version,
    "compareTo": _compare,
    "isGreaterThan": lambda item, other: _compare(item, other) > 0,
    "isLessThan": lambda item, other: _compare(item, other) < 0,
}


def _first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    if isinstance(error, KeyError):
        return f"the device has no {error.args[0] if error.args else 'such field'}"
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST]
