"""Cursor pagination.

With page numbers, a client would miss or repeat rows while rows are added. Lists are ordered by a unique key instead.
The cursor contains the last key of a page, and the next page starts after it. `?limit=` is 1-1000, 100 by default;
`next` is the address of the next page, or null on the last page.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from django.db.models import QuerySet

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

_WHOLE = re.compile(r"-?[0-9]{1,15}")
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
LIST_QUERIES = {"limit": f"Maximum number of rows, 1-{MAX_LIMIT}.", "cursor": "Cursor from the previous page."}


def limit_of(request: Any) -> int:
    """Return the requested page size.

    Raises: InputError `QueryInvalid`.
    """
    return integer(request, "limit", DEFAULT_LIMIT, least=1, most=MAX_LIMIT)


def integer(request: Any, name: str, default: int, *, least: int, most: int) -> int:
    """Return an integer parameter of the query string.

    Raises: InputError `QueryInvalid`.
    """
    text = request.GET.get(name)
    if text is None:
        return default
    if not (_WHOLE.fullmatch(text) and least <= int(text) <= most):
        template = "{text} is not a whole number from {low} to {high}"
        message = Message(template, text=repr(text[:40]), low=least, high=most)
        hint = "Send a number in the allowed range, or omit the parameter"
        raise InputError("QueryInvalid", message, place=name, hint=hint)
    return int(text)


def flag(request: Any, name: str) -> bool:
    """Return a boolean parameter of the query string, False by default.

    Raises: InputError `QueryInvalid`.
    """
    text = request.GET.get(name, "false")
    if text not in ("true", "false"):
        hint = "Send one of the allowed values, or omit the parameter"
        raise InputError("QueryInvalid", "the value must be true or false", place=name, hint=hint)
    return bool(text == "true")


def page(request: Any, rows: QuerySet[Any, Any], ordering: str) -> tuple[list[Any], str | None]:
    """Return one page of `rows` (models, or `values()`) and the address of the next page.

    `ordering` is a unique key of the rows, prefixed with `-` for descending order.

    Raises: InputError `QueryInvalid`, `CursorInvalid`.
    """
    limit, key = limit_of(request), ordering.removeprefix("-")
    if cursor := request.GET.get("cursor"):
        kind = str if rows.model._meta.get_field(key).get_internal_type() in ("CharField", "TextField") else int
        rows = rows.filter(**{f"{key}__{'gt' if key == ordering else 'lt'}": _decode(cursor, kind)})
    return _cut(request, list(rows.order_by(ordering)[: limit + 1]), key, limit)


def page_of_sorted(request: Any, rows: list[dict[str, Any]], key: str) -> tuple[list[Any], str | None]:
    """Return one page of a list in memory, sorted by a text key, and the address of the next page.

    Raises: InputError `QueryInvalid`, `CursorInvalid`.
    """
    if cursor := request.GET.get("cursor"):
        seen = _decode(cursor, str)
        rows = [row for row in rows if row[key] > seen]
    return _cut(request, list(rows), key, limit_of(request))


def page_of_numbered(request: Any, rows: Sequence[Any]) -> tuple[list[Any], str | None]:
    """Return one page of a list that never changes, and the address of the next page.

    Raises: InputError `QueryInvalid`, `CursorInvalid`.
    """
    limit, start = limit_of(request), 0
    if cursor := request.GET.get("cursor"):
        start = _decode(cursor, int)
    if start + limit >= len(rows):
        return list(rows[start:]), None
    query = request.GET.copy()
    query["cursor"] = _encode(start + limit)
    return list(rows[start : start + limit]), f"{request.path}?{query.urlencode()}"


def _cut(request: Any, found: list[Any], key: str, limit: int) -> tuple[list[Any], str | None]:
    if len(found) <= limit:
        return found, None
    del found[limit:]
    query = request.GET.copy()
    last = found[-1]
    query["cursor"] = _encode(last[key] if isinstance(last, dict) else getattr(last, key))
    return found, f"{request.path}?{query.urlencode()}"


def _encode(key: str | int) -> str:
    return base64.urlsafe_b64encode(encode(key)).decode().rstrip("=")


def _decode(cursor: str, kind: Callable[..., Any]) -> Any:
    try:
        key = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), strict=True)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        key = None
    if type(key) is not kind or (kind is int and not 0 <= key < 2**63) or (kind is str and "\0" in key):
        raise InputError(
            "CursorInvalid",
            "the cursor does not belong to this list",
            place="cursor",
            hint="Use the cursor of the previous page",
        )
    return key
