"""Filter lists by the codes of reasons in a JSON column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext_lazy

from .kinds import ValueKind

RECENT = 500


class Code(ValueKind):
    """The code of a reason; `*` matches any characters."""

    operators = ("=", "!=")
    word = gettext_lazy("reason")

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        return Q(**{f"{path}__codes_match": wanted})


def codes_of(reasons: Any) -> list[str]:
    """Return the reason codes that occur in the first `RECENT` of these column values."""
    found: Iterable[Any] = reasons[:RECENT]
    return sorted({reason.code for row in found for reason in row or ()})
