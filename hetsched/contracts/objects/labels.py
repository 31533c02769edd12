"""Matching of labels and selectors.

Requirements on the value v of a label (None if the label is absent):

    In: v is one of the values     NotIn: v is not one of the values, or is absent     Exists, DoesNotExist: as named
    Gt, Lt: v and the single value are compared as decimal int64; other values do not match

A selector is the AND of its requirements. A null selector matches nothing; an empty selector matches everything.
Source: Kubernetes documentation, "Labels and Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .node_constraints import Expression
from .workload import LabelSelector

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64 = 2**63


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches an object with these labels."""
    return selector is not None and all(fits(e, labels.get(e.key)) for e in selector.expressions)


def fits(expression: Expression, value: str | None) -> bool:
    """Return whether a label's value (None if absent) meets one requirement."""
    operator = expression.operator
    if operator == "In":
        return value is not None and value in expression.values
    if operator == "NotIn":
        return value is None or value not in expression.values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt") and len(expression.values) == 1:
        actual, bound = integer(value), integer(expression.values[0])
        if actual is not None and bound is not None:
            return actual > bound if operator == "Gt" else actual < bound
    return False


def integer(text: str | None) -> int | None:
    """Parse a label's value for Gt and Lt; return None if it is not a decimal int64."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None
