"""Kinds of filter fields: the syntax of their values, and the comparison with a row.

A kind parses the text after the operator once, and returns a predicate for values or a database condition. Comparisons
with an unknown value (None) are false; only `=unknown` matches it.
ISA: `isa>=rv64gcv` matches nodes that run programs for rv64gcv, `isa<=rva22u64` matches nodes that offer nothing beyond
that profile, and `isa=x86-64-v3` matches nodes that offer exactly that level, each according to the lattice of
`hetsched.isa`. `~` matches a part of the text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import model_matches
from hetsched.contracts.units import parse_amount
from hetsched.isa import Isa, match, parse
from hetsched.storage.text_lookups import Wildcard, folded
from web.translation import translate

Test = Callable[[Any], bool]
ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_LOOKUPS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt", "=": "exact"}
UNKNOWN = "unknown"


class InvalidValue(Exception):
    """Raised for an invalid value; `nearest` is the closest valid value."""

    def __init__(self, message: str, nearest: str = "") -> None:
        super().__init__(message)
        self.nearest = nearest


class ValueKind:
    """Base class of all kinds: text, compared without regard to the case of ASCII letters; `*` matches any text."""

    operators: tuple[str, ...] = ("=", "!=", "~", "!~")
    word: Any = gettext_lazy("text")
    keyed = False

    def values(self) -> tuple[str, ...]:
        """Return the possible or suggested values, which may be none."""
        return ()

    def test(self, operation: str, wanted: str) -> Test:
        """Return a predicate that compares a value with `wanted`; `operation` is an operator that is not negated.

        Raises: InvalidValue.
        """
        if operation == "~":
            piece = folded(wanted)
            return lambda value: piece in folded(value)
        return Wildcard(wanted).matches

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        """Return the predicate of `test` as a condition on the database column `path`."""
        return Q(**{f"{path}__{'text_contains' if operation == '~' else 'text_matches'}": wanted})


class ChoiceKind(ValueKind):
    """Choice from a fixed set of values."""

    operators = ("=", "!=")
    word = gettext_lazy("one of")

    def __init__(self, *values: str) -> None:
        self._values = values

    def values(self) -> tuple[str, ...]:
        return self._values

    def _known(self, wanted: str) -> str:
        if wanted.lower() in self._values:
            return wanted.lower()
        nearest = get_close_matches(wanted.lower(), self._values, 1, 0.3)
        listed = ", ".join(self._values)
        raise InvalidValue(
            _("“%(value)s” is not one of: %(values)s") % {"value": wanted, "values": listed}, "".join(nearest)
        )

    def test(self, operation: str, wanted: str) -> Test:
        known = self._known(wanted)
        return lambda value: value == known

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{path: self._known(wanted)})


class NumberKind(ValueKind):
    """A number. With `percent` it is a share, written `80` or `80%`, and its values are ratios 0-1."""

    operators = (">", ">=", "<", "<=", "=", "!=")
    word = gettext_lazy("number")

    def __init__(self, *, percent: bool = False) -> None:
        self.percent = percent
        if percent:
            self.word = gettext_lazy("percent")

    def read(self, wanted: str) -> Any:
        with suppress(ValueError):
            value = float(wanted.removesuffix("%") if self.percent else wanted)
            if value == value and abs(value) < 1e18:
                return value / 100 if self.percent else value
        digits = re.sub(r"[^0-9.]", "", wanted)
        raise InvalidValue(_("“%(value)s” is not a number") % {"value": wanted}, digits)

    def test(self, operation: str, wanted: str) -> Test:
        compare, limit = ORDERED[operation], self.read(wanted)
        return lambda value: compare(value, limit)

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{f"{path}__{_LOOKUPS[operation]}": self.read(wanted)})


class Quantity(NumberKind):
    """An amount of a resource in Kubernetes notation, such as 500m, 2 or 16Gi."""

    word = gettext_lazy("quantity")

    def __init__(self, resource: str) -> None:
        super().__init__()
        self.resource = resource

    def read(self, wanted: str) -> Any:
        try:
            return parse_amount(self.resource, wanted)
        except InputError as error:
            digits = "".join(re.findall(r"^[0-9.]+[kKMGTPEmi]{0,2}", wanted))
            raise InvalidValue(translate(error.message), digits) from None


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST_AGE = timedelta(days=365_000)  # a timestamp of a greater age cannot be represented as a datetime


class Age(ValueKind):
    """The age of a timestamp; `age>5m` matches timestamps older than five minutes."""

    operators = (">", "<")
    word = gettext_lazy("duration")

    def values(self) -> tuple[str, ...]:
        return ("5m", "1h", "24h", "7d")

    def _moment(self, wanted: str) -> datetime:
        found = re.fullmatch(r"(\d{1,6})([smhdw])", wanted.lower())
        if found is None:
            digits = "".join(re.findall(r"\d{1,6}", wanted)[:1])
            text = _("“%(value)s” is not a duration: write 30s, 5m, 2h, 3d or 1w") % {"value": wanted}
            raise InvalidValue(text, f"{digits}m" if digits else "")
        before = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        return timezone.now() - min(before, _LONGEST_AGE)

    def test(self, operation: str, wanted: str) -> Test:
        moment = self._moment(wanted)
        return (lambda value: value < moment) if operation == ">" else (lambda value: value > moment)

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{f"{path}__{'lt' if operation == '>' else 'gt'}": self._moment(wanted)})


class IsaKind(ValueKind):
    """Instruction sets, ordered by compatibility; values are the strings that nodes report."""

    operators = (">=", "<=", ">", "<", "=", "!=", "~", "!~")
    word = gettext_lazy("instruction set")

    def values(self) -> tuple[str, ...]:
        return (
            "rv64gc", "rv64gcv", "rva20u64", "rva22u64", "rva22u64_v", "rva23u64",
            "x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8.0-a", "armv8.2-a", "armv9.0-a", "arm64+sve2",
        )  # fmt: skip

    def test(self, operation: str, wanted: str) -> Test:
        if operation == "~":
            return super().test(operation, wanted)
        try:
            asked = parse(wanted)
        except InputError as error:
            nearest = get_close_matches(wanted.lower(), self.values(), 1, 0.5)
            raise InvalidValue(translate(error.advice), "".join(nearest)) from None
        as_node = _offered(wanted) or asked
        decide = _ISA_TESTS[operation]

        @lru_cache(maxsize=4096)
        def holds(text: str) -> bool:
            offered = _offered(text)
            return offered is not None and decide(match(asked, offered).satisfied, match(offered, as_node).satisfied)

        return holds


# For each operator, a test of two facts: `above`, the node runs programs for the requested ISA, and `below`, a machine
# with the requested ISA runs programs for the node's ISA.
_ISA_TESTS: dict[str, Callable[[bool, bool], bool]] = {
    ">=": lambda above, below: above,
    "<=": lambda above, below: below,
    ">": lambda above, below: above and not below,
    "<": lambda above, below: below and not above,
    "=": lambda above, below: above and below,
}


@lru_cache(maxsize=4096)
def _offered(text: str) -> Isa | None:
    """Parse the ISA of a node as leniently as the engine does. Return None if it is invalid."""
    for source in ("node-label", "cpuinfo"):
        with suppress(InputError):
            return parse(text, source=source)
    return None


class Model(ValueKind):
    """GPU models, compared as in pod requests: `A100` does not match `A10`. Values are the models of a node's GPUs."""

    operators = ("=", "!=")
    word = gettext_lazy("GPU model")

    def test(self, operation: str, wanted: str) -> Test:
        return lambda models: any(model_matches(wanted, model) for model in models)


class AnyKind(ValueKind):
    """Several texts, at least one of which has to match; values are tuples."""

    def test(self, operation: str, wanted: str) -> Test:
        inner = super().test(operation, wanted)
        return lambda values: any(inner(value) for value in values)


class Labels(ValueKind):
    """Labels by key: `label:pool=ci`, or `label:pool` alone to match any value. Values are mappings."""

    keyed = True
    word = gettext_lazy("label")


def is_any(tests: Iterable[Test]) -> Test:
    """Return a predicate that is true if one of these predicates is true."""
    listed = tuple(tests)
    return listed[0] if len(listed) == 1 else lambda value: any(test(value) for test in listed)
