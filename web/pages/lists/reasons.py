"""Lists by the codes of their reasons, which stand inside a JSON column."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy

from .kinds import Kind

RECENT = 500


class Code(Kind):
    """The code of a reason, over rows that `with_codes` prepared; `*` stands for anything."""

    operators = ("=", "!=")
    word = gettext_lazy("reason")

    def condition(self, operation: str, wanted: str, path: str) -> Q:
        # Databases differ in the space behind the colon.
        code = '[^"]*'.join(re.escape(piece) for piece in wanted.split("*"))
        return Q(**{f"{path}__iregex": f'"code": ?"{code}"'})


def with_codes(rows: QuerySet[Any], reasons: str) -> QuerySet[Any]:
    """Return the rows with the text of this column of reasons as `codes`."""
    return rows.annotate(codes=Cast(reasons, TextField()))


def codes_of(reasons: Any) -> list[str]:
    """Return the codes that occur in the first few of these columns."""
    found: Iterable[Any] = reasons[:RECENT]
    return sorted({reason.code for row in found for reason in row or ()})
