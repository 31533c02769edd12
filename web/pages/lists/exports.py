"""Export all rows of the current view, with the shown columns, as CSV or JSON.

Rows are streamed as they are read, because a table of 50,000 pods must not be held in memory. A spreadsheet evaluates a
cell that begins like a formula, so in CSV a text that begins with = + - @, a tab or a line break gets a leading
apostrophe (OWASP, CSV injection). JSON values are unchanged. Column names and values are machine-readable: they are not
translated, ratios are 0-1, and amounts are in base units.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from hetsched.contracts.documents import encode
from hetsched.contracts.times import rfc3339

if TYPE_CHECKING:
    from .view import ListView

PIECE_ROWS = 500
FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def export(view: ListView, rows: Iterable[Any]) -> StreamingHttpResponse:
    """Return a response that streams these rows in the requested format."""
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
    """Yield the pieces of an export; the database thread produces each piece."""
    take = sync_to_async(_next)
    while (piece := await take(pieces)) is not None:
        yield piece


def _next(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)


def _values(view: ListView, row: Any) -> list[Any]:
    return [_plain(column.value(row)) for column in view.columns]


def _plain(value: Any) -> Any:
    return rfc3339(value) if isinstance(value, datetime) else value


def _csv(view: ListView, rows: Iterator[Any]) -> Iterator[str]:
    def written(lines: Iterable[list[Any]]) -> str:
        text = io.StringIO()
        csv.writer(text).writerows([[_harmless(value) for value in line] for line in lines])
        return text.getvalue()

    yield written([[column.name for column in view.columns]])
    while piece := list(islice(rows, PIECE_ROWS)):
        yield written(_values(view, row) for row in piece)


def _harmless(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = " ".join(str(item) for item in value)
    elif isinstance(value, dict):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _json(view: ListView, rows: Iterator[Any]) -> Iterator[str]:
    cluster = view.shell.cluster.name if view.shell.cluster else None
    head = {"list": view.listing.name, "cluster": cluster, "query": view.query, "sort": view.sort, **view.held}
    yield encode(head).decode()[:-1] + ',"items":['
    names = [column.name for column in view.columns]
    between = ""
    while piece := list(islice(rows, PIECE_ROWS)):
        lines = [encode(dict(zip(names, _values(view, row), strict=True))).decode() for row in piece]
        yield between + ",\n".join(lines)
        between = ",\n"
    yield "]}\n"
