"""State of a list (filter, order and columns), all of it in the query string.

`q` is the filter, `sort` a column (descending with a leading `-`), and `columns` are the shown columns. A cookie stores
the latest choice of columns for URLs without `columns`. Rows with equal sort values have a stable order, by name or ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from django.core.paginator import Page
from django.db.models import F, Q, QuerySet
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ..shell import Shell
from .columns import Cell, Column
from .exports import FORMATS, export
from .expressions import MOST_CHARACTERS, ExpressionProblem, FilterField, InvalidExpression, condition, predicate, read

COOKIE_SECONDS = 365 * 86_400
MOST_VALUES = 200


class Listing(msgspec.Struct, frozen=True):
    """Declaration of a list: its filter fields and columns.

    `words` returns the text of a row in memory that is searched for free words, or, for database rows, the condition
    that a free word requires.
    """

    name: str
    fields: tuple[FilterField, ...]
    columns: tuple[Column, ...]
    words: Callable[[Any], Any]
    # Database columns that make the sort order of database rows stable.
    stable: tuple[str, ...] = ()
    sort: str = ""
    page_size: int = 100
    example: str = ""


class ColumnHead(msgspec.Struct, frozen=True):
    """The header of one shown column; a column without `url` cannot be sorted."""

    label: str
    number: bool
    url: str = ""
    sorted: str = ""


class ListView:
    """State of a list in one request: filter, columns, order, page; `held` has other parameters to keep in links."""

    def __init__(self, shell: Shell, listing: Listing, **held: str) -> None:
        self.shell = shell
        self.listing = listing
        self.held = held
        self.query = shell.request.GET.get("q", "")[:MOST_CHARACTERS].replace("\0", "").strip()
        self.fields = {field.name: field for field in listing.fields}
        self.problem: ExpressionProblem | None = None
        try:
            self.terms = read(self.query, self.fields)
        except InvalidExpression as unreadable:
            self.problem, self.terms = unreadable.problem, ()
        self.columns = self._chosen()
        self.sort = self._sort()
        self.page: Page[Any] | None = None

    # --- Selection ----------------------------------------------------------------------------------------------------
    def _chosen(self) -> list[Column]:
        named = self.columns_given or self.shell.request.COOKIES.get(self._cookie, "")[:MOST_CHARACTERS]
        wanted = set(named.split("~"))
        found = [column for column in self.listing.columns if column.name in wanted]
        return found or [column for column in self.listing.columns if column.shown]

    @property
    def columns_given(self) -> str:
        """Return the requested columns, from one parameter or from a form that was sent without JavaScript."""
        given = self.shell.request.GET
        return (given.get("columns", "") or "~".join(given.getlist("column")))[:MOST_CHARACTERS]

    def _sort(self) -> str:
        wanted = self.shell.text("sort")
        known = {column.name for column in self.listing.columns if self._sortable(column)}
        return wanted if wanted.removeprefix("-") in known else self.listing.sort

    def _sortable(self, column: Column) -> bool:
        return column.sortable and bool(column.order or not self.listing.stable)

    @property
    def _cookie(self) -> str:
        return f"columns-{self.listing.name}"

    @property
    def format(self) -> str:
        wanted = self.shell.text("format")
        return wanted if wanted in FORMATS else ""

    @property
    def heavy(self) -> bool:
        """Return whether the filter, the order or the columns need facts that are not loaded by default."""
        sorted_by = self.sort.removeprefix("-")
        used = [column for column in self.listing.columns if column in self.columns or column.name == sorted_by]
        return any(column.heavy for column in used) or any(term.field and term.field.heavy for term in self.terms)

    # --- Rows ---------------------------------------------------------------------------------------------------------
    def kept(self, rows: Iterable[Any]) -> list[Any]:
        """Return the matching rows in memory, sorted; `rows` must already be in the stable order."""
        if self.problem:
            return []
        holds = predicate(self.terms, self.listing.words)
        found = [row for row in rows if holds(row)] if self.terms else list(rows)
        column = next((one for one in self.listing.columns if one.name == self.sort.removeprefix("-")), None)
        if column is not None:
            valued = [(column.value(row), row) for row in found]
            # Unknown values come last, whether the order is ascending or descending.
            there = [pair for pair in valued if pair[0] is not None]
            there.sort(key=itemgetter(0), reverse=self.sort.startswith("-"))
            found = [row for _value, row in there] + [row for value, row in valued if value is None]
        return found

    def filtered(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the matching database rows, unsorted."""
        return rows.none() if self.problem else rows.filter(self.condition())

    def condition(self) -> Q:
        return condition(self.terms, self.listing.words)

    def ordered(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return database rows in the requested order."""
        column = next((one for one in self.listing.columns if one.name == self.sort.removeprefix("-")), None)
        names = column.order if column is not None else ()
        falling = self.sort.startswith("-")
        order = [F(name).desc(nulls_last=True) if falling else F(name).asc(nulls_last=True) for name in names]
        return rows.order_by(*order, *self.listing.stable)

    # --- Addresses ----------------------------------------------------------------------------------------------------
    def url(self, **changes: str) -> str:
        """Return the URL of this view with these changes; an empty value removes the parameter."""
        given = {
            **({"cluster": self.shell.named} if self.shell.named else {}),
            **self.held,
            "q": self.query,
            "sort": self.sort if self.sort != self.listing.sort else "",
            "columns": self.columns_given,
            **changes,
        }
        return "?" + urlencode({name: value for name, value in given.items() if value})

    @property
    def filter_query(self) -> str:
        """Return the query string for the pager's links, without the page number."""
        rest = self.url()[1:]
        return f"&{rest}" if rest else ""

    @property
    def cleared(self) -> str:
        return self.url(q="")

    @property
    def instead(self) -> str:
        return self.url(q=self.problem.instead) if self.problem and self.problem.instead else ""

    @property
    def downloads(self) -> list[tuple[str, str]]:
        return [(name.upper(), self.url(format=name)) for name in FORMATS]

    # --- Display ------------------------------------------------------------------------------------------------------
    @property
    def heads(self) -> list[ColumnHead]:
        return [self._head(column) for column in self.columns]

    def _head(self, column: Column) -> ColumnHead:
        if not self._sortable(column):
            return ColumnHead(str(column.label), column.number)
        rising, falling = column.name, f"-{column.name}"
        first, second = (falling, rising) if column.falling else (rising, falling)
        state = {rising: "ascending", falling: "descending"}.get(self.sort, "")
        return ColumnHead(
            str(column.label), column.number, self.url(sort=second if self.sort == first else first), state
        )

    @property
    def heading(self) -> str:
        """Return the column that identifies the row: `name` or `pod`, else the first column with a label."""
        named = [column.name for column in self.columns if str(column.label)]
        return next((name for name in ("name", "pod", *named) if name in named), "")

    @property
    def rows(self) -> Iterator[list[tuple[Column, Cell, str]]]:
        """Yield the cells of the page, row by row, each with its column and its link."""
        assert self.page is not None
        keep = self.shell.keep()
        for row in self.page.object_list:
            cells = [(column, column.cell_of(row)) for column in self.columns]
            yield [(column, cell, _kept(cell.url, keep)) for column, cell in cells]

    @property
    def choices(self) -> list[tuple[Column, bool]]:
        return [(column, column in self.columns) for column in self.listing.columns]

    @property
    def hidden_fields(self) -> list[tuple[str, str]]:
        """Return the parameters that a form of this view passes on as hidden fields."""
        given = {"cluster": self.shell.named, **self.held, "sort": self.sort, "q": self.query}
        return [(name, value) for name, value in given.items() if value]

    @property
    def suggestions(self) -> dict[str, Any]:
        """Return the data with which the filter box's script makes suggestions."""
        return {
            "fields": [
                {
                    "name": field.name,
                    "help": str(field.help),
                    "kind": str(field.kind.word),
                    "operators": ["="] if field.kind.keyed else list(field.kind.operators),
                    "values": list(field.kind.values()),
                    "found": field.found,
                    "keyed": field.kind.keyed,
                }
                for field in self.listing.fields
            ],
        }

    # --- Responses ----------------------------------------------------------------------------------------------------
    def show(self, rows: Any, template: str, context: dict[str, Any]) -> HttpResponseBase:
        """Return a page of these rows, or all of them as a file. `rows` must be filtered and sorted."""
        if self.format:
            return export(self, rows)
        self.page = self.shell.page_of(rows, self.listing.page_size)
        answer = self.shell.render(template, {"view": self, "page": self.page, **context})
        if self.columns_given:
            chosen = "~".join(column.name for column in self.columns)
            if chosen == "~".join(column.name for column in self.listing.columns if column.shown):
                answer.delete_cookie(self._cookie, samesite="Lax")
            else:
                answer.set_cookie(self._cookie, chosen, max_age=COOKIE_SECONDS, samesite="Lax", httponly=True)
        return answer

    @property
    def wanted_values(self) -> str:
        """Return the field whose values the filter box requests, such as `pool` or `label:pool`, or "" if none."""
        return self.shell.text("values")

    def answer_values(self, values: Iterable[str]) -> HttpResponse:
        """Respond with the distinct values of a field, sorted without regard to case, at most `MOST_VALUES`."""
        found: Sequence[str] = sorted({value for value in values if value}, key=str.lower)[:MOST_VALUES]
        return JsonResponse({"values": found})

    @property
    def filter_words(self) -> str:
        """Return the placeholder of the filter box."""
        return self.listing.example or _("text or field=value")


def _kept(url: str, keep: str) -> str:
    """Return a URL with the parameter of the selected cluster added."""
    return f"{url}{keep.replace('?', '&', 1) if '?' in url else keep}" if url else ""
