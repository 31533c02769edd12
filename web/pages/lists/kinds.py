"""What the values of a field are: how a filter writes them, and when a row's value is what was asked for.

Rule: a kind reads the text behind the operator once and gives back a test of values, or a condition of the database.
What is unknown (None) is equal to nothing and less or more than nothing; `=unknown` finds it.
ISA: `isa>=rv64gcv` keeps what runs programs for rv64gcv, `isa<=rva22u64` what offers nothing beyond that profile,
`isa=x86-64-v3` what offers exactly that, each by the lattice of `hetsched.isa`; `~` looks for a piece of the text.
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

from hetsched.contracts.cards import model_matches
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import parse_amount
from hetsched.isa import Isa, match, parse

from ..told import told

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


class Wrong(Exception):
    """A value that a kind cannot read; `nearest` is one that it can."""

    def __init__(self, message: str, nearest: str = "") -> None:
        super().__init__(message)
        self.nearest = nearest


class Kind:
    """Values that are compared as text, case aside; `*` stands for any characters."""

    operators: tuple[str, ...] = ("=", "!=", "~", "!~")
    word: Any = gettext_lazy("text")
    keyed = False

    def values(self) -> tuple[str, ...]:
        """Return the values there are, where they are known beforehand."""
        return ()

    def test(self, operation: str, wanted: str) -> Test:
        """Return the test of values for one of `operators` but the negated ones.

        Raises: Wrong.
        """
        if operation == "~":
            piece = wanted.lower()
            return lambda value: piece in value.lower()
        pattern = re.compile(_as_regex(wanted), re.IGNORECASE)
        return lambda value: pattern.fullmatch(value) is not None

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        """Return the same as a condition on a column of the database."""
        if operation == "~":
            return Q(**{f"{path}__icontains": wanted})
        if "*" not in wanted:
            return Q(**{f"{path}__iexact": wanted})
        inner = wanted.strip("*")
        if inner and "*" not in inner:
            lookup = {(True, True): "icontains", (True, False): "iendswith", (False, True): "istartswith"}
            return Q(**{f"{path}__{lookup[wanted.startswith('*'), wanted.endswith('*')]}": inner})
        return Q(**{f"{path}__iregex": f"^{_as_regex(wanted)}$"})


def _as_regex(pattern: str) -> str:
    return ".*".join(re.escape(piece) for piece in pattern.split("*"))


class Choice(Kind):
    """One of a few words."""

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
        raise Wrong(_("“%(value)s” is none of: %(values)s") % {"value": wanted, "values": listed}, "".join(nearest))

    def test(self, operation: str, wanted: str) -> Test:
        known = self._known(wanted)
        return lambda value: value == known

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{path: self._known(wanted)})


class Number(Kind):
    """A number; with `percent` a share, written `80` or `80%`, whose values are ratios 0-1."""

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
        raise Wrong(_("“%(value)s” is not a number") % {"value": wanted}, digits)

    def test(self, operation: str, wanted: str) -> Test:
        compare, limit = ORDERED[operation], self.read(wanted)
        return lambda value: compare(value, limit)

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{f"{path}__{_LOOKUPS[operation]}": self.read(wanted)})


class Quantity(Number):
    """An amount of a resource as Kubernetes writes it: 500m, 2, 16Gi."""

    word = gettext_lazy("quantity")

    def __init__(self, resource: str) -> None:
        super().__init__()
        self.resource = resource

    def read(self, wanted: str) -> Any:
        try:
            return parse_amount(self.resource, wanted)
        except InputError as error:
            digits = "".join(re.findall(r"^[0-9.]+[kKMGTPEmi]{0,2}", wanted))
            raise Wrong(told(error.message), digits) from None


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Age(Kind):
    """How long ago a moment was: `age>5m` is older than five minutes; values are moments."""

    operators = (">", "<")
    word = gettext_lazy("time span")

    def values(self) -> tuple[str, ...]:
        return ("5m", "1h", "24h", "7d")

    def _moment(self, wanted: str) -> datetime:
        found = re.fullmatch(r"(\d{1,6})([smhdw])", wanted.lower())
        if found is None:
            digits = "".join(re.findall(r"\d{1,6}", wanted)[:1])
            said = _("“%(value)s” is not a time span: write 30s, 5m, 2h, 3d or 1w") % {"value": wanted}
            raise Wrong(said, f"{digits}m" if digits else "")
        return timezone.now() - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])

    def test(self, operation: str, wanted: str) -> Test:
        moment = self._moment(wanted)
        return (lambda value: value < moment) if operation == ">" else (lambda value: value > moment)

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{f"{path}__{'lt' if operation == '>' else 'gt'}": self._moment(wanted)})


class IsaKind(Kind):
    """Instruction sets, ordered by what runs on what; values are the strings that nodes state."""

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
            raise Wrong(told(error.advice), "".join(nearest)) from None
        as_node = _offered(wanted) or asked
        decide = _ISA_TESTS[operation]

        @lru_cache(maxsize=4096)
        def holds(text: str) -> bool:
            offered = _offered(text)
            return offered is not None and decide(match(asked, offered).satisfied, match(offered, as_node).satisfied)

        return holds


# By whether the node runs programs for what is asked, and such a machine runs programs for the node.
_ISA_TESTS: dict[str, Callable[[bool, bool], bool]] = {
    ">=": lambda above, below: above,
    "<=": lambda above, below: below,
    ">": lambda above, below: above and not below,
    "<": lambda above, below: below and not above,
    "=": lambda above, below: above and below,
}


@lru_cache(maxsize=4096)
def _offered(text: str) -> Isa | None:
    """Read what a node states, as leniently as the engine does; None where it cannot be read."""
    for source in ("node-label", "cpuinfo"):
        with suppress(InputError):
            return parse(text, source=source)
    return None


class Model(Kind):
    """Card models as pods name them: `A100` is no A10; values are the models of a node's cards."""

    operators = ("=", "!=")
    word = gettext_lazy("card model")

    def test(self, operation: str, wanted: str) -> Test:
        return lambda models: any(model_matches(wanted, model) for model in models)


class Any_(Kind):
    """Several texts, of which one has to be it; values are tuples."""

    def test(self, operation: str, wanted: str) -> Test:
        inner = super().test(operation, wanted)
        return lambda values: any(inner(value) for value in values)


class Labels(Kind):
    """Labels by key: `label:pool=ci`, and `label:pool` alone for any value; values are mappings."""

    keyed = True
    word = gettext_lazy("label")


def is_any(tests: Iterable[Test]) -> Test:
    """Return the test that holds where one of these does."""
    listed = tuple(tests)
    return listed[0] if len(listed) == 1 else lambda value: any(test(value) for test in listed)
