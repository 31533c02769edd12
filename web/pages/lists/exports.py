"""The current view as a file: every row of it, the shown columns, as CSV or JSON.

Problem: a table of 50,000 pods must not stand in memory, and a spreadsheet runs a cell that begins like a formula.
Rule: rows are written piece by piece as they are read. In CSV a text that begins with = + - @, a tab or a line break
gets an apostrophe in front (OWASP, CSV injection); in JSON nothing is changed. Column names and figures are those of
programs: no translation, ratios 0-1, amounts in base units.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from hetsched.contracts.times import rfc3339

if TYPE_CHECKING:
    from .view import View

PIECE_ROWS = 500
FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def export(view: View, rows: Iterable[Any]) -> StreamingHttpResponse:
    """Return the answer that streams these rows in the format that the view was asked in."""
    wanted = view.format
    if isinstance(rows, QuerySet):
        rows = rows.iterator(chunk_size=PIECE_ROWS)
    pieces = (_csv if wanted == "csv" else _json)(view, iter(rows))
    content: Any = _in_threads(pieces) if isinstance(view.shell.request, ASGIRequest) else pieces
    answer = StreamingHttpResponse(content, content_type=FORMATS[wanted])
    cluster = view.shell.cluster.name if view.shell.cluster else "hetsched"
    answer["Content-Disposition"] = f'attachment; filename="{cluster}-{view.listing.name}.{wanted}"'
    return answer


async def _in_threads(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Take each piece in the thread that may ask the database."""
    take = sync_to_async(_next)
    while (piece := await take(pieces)) is not None:
        yield piece


def _next(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)


def _values(view: View, row: Any) -> list[Any]:
    return [_plain(column.value(row)) for column in view.columns]


def _plain(value: Any) -> Any:
    return rfc3339(value) if isinstance(value, datetime) else value


def _csv(view: View, rows: Iterator[Any]) -> Iterator[str]:
    def written(lines: Iterable[list[Any]]) -> str:
        text = io.StringIO()
        csv.writer(text).writerows([[_harmless(value) for value in line] for line in lines])
        return text.getvalue()

    yield written([[column.name for column in view.columns]])
    while piece := list(islice(rows, PIECE_ROWS)):
        yield written(_values(view, row) for row in piece)


def _harmless(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = " ".join(str(one) for one in value)
    elif isinstance(value, dict):
        value = " ".join(f"{key}={one}" for key, one in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _json(view: View, rows: Iterator[Any]) -> Iterator[str]:
    cluster = view.shell.cluster.name if view.shell.cluster else None
    head = {"list": view.listing.name, "cluster": cluster, "query": view.query, "sort": view.sort, **view.held}
    yield msgspec.json.encode(head).decode()[:-1] + ',"items":['
    names = [column.name for column in view.columns]
    between = ""
    while piece := list(islice(rows, PIECE_ROWS)):
        lines = [msgspec.json.encode(dict(zip(names, _values(view, row), strict=True))).decode() for row in piece]
        yield between + ",\n".join(lines)
        between = ",\n"
    yield "]}\n"
