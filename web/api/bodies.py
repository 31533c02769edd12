"""Request bodies: one strict JSON reader for documents, and raw files for manifests.

A document is decoded with depth, size and text limits, then converted to a struct that forbids unknown fields, so a
view sees only checked values. Media types: `application/json` for a document or a manifest, `application/yaml` for a
manifest, `text/csv` for trace rows.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http.request import UnreadablePostError

from hetsched.adapters.objects.documents import read_json
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError

from .problems import RequestRefused

JSON = "application/json"
YAML = "application/yaml"
CSV = "text/csv"
_SAME = {"application/x-yaml": YAML, "text/yaml": YAML, "text/x-yaml": YAML, "application/csv": CSV}

T = TypeVar("T")


def media_type(request: Any, *allowed: str) -> str:
    """Return the body's media type, one of `allowed`.

    Raises: RequestRefused 415, also for a charset other than UTF-8.
    """
    found = request.content_type.lower() if hasattr(request, "content_type") else ""
    kind, _, parameters = found.partition(";")
    kind = _SAME.get(kind.strip(), kind.strip())
    charset = parameters.partition("charset=")[2].strip(' "').lower()
    if kind not in allowed or charset not in ("", "utf-8", "us-ascii"):
        raise RequestRefused(
            415,
            "UnsupportedMediaType",
            f"the body is {found[:100] or 'without a media type'}",
            hint=f"Send {' or '.join(allowed)} in UTF-8",
            headers={"Accept-Post": ", ".join(allowed)},
        )
    return kind


def raw(request: Any, *, large: bool = False) -> bytes:
    """Return the whole body.

    Raises: InputError `BodyTooLarge`.
    """
    cap = settings.HETSCHED_MANIFEST_BYTES if large else settings.HETSCHED_BODY_BYTES
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        raise InputError("BodyTooLarge", f"the body is larger than {cap} bytes") from None
    except UnreadablePostError:
        raise InputError("BodyUnreadable", "the connection closed before the end of the body") from None
    if len(body) > cap:
        raise InputError("BodyTooLarge", f"the body has {len(body)} bytes, {cap} are allowed here")
    return body


def read(request: Any, document: type[T], *, large: bool = False) -> T:
    """Read a JSON body into a struct.

    Raises: InputError with the field in `place`; RequestRefused 415.
    """
    media_type(request, JSON)
    return convert(plain(raw(request, large=large)), document)


def wrapped(request: Any, document: type[T]) -> T | None:
    """Read a manifest from the field `manifest` of a document; None if the body is the manifest itself.

    Raises: InputError; RequestRefused 415 for media types other than JSON, YAML and CSV.
    """
    if media_type(request, JSON, YAML, CSV) != JSON:
        return None
    values = plain(raw(request, large=True))
    is_document = isinstance(values, dict) and ("manifest" in values or not {"apiVersion", "kind"} & values.keys())
    return convert(values, document) if is_document else None


def source(manifest: str | dict[str, Any]) -> bytes:
    """Return a manifest as bytes, given as text or as an object."""
    return manifest.encode() if isinstance(manifest, str) else encode(manifest)


def names(given: list[str] | str) -> list[str]:
    """Return names that are given as a list or as one text, separated by commas or blanks."""
    return given if isinstance(given, list) else given.replace(",", " ").split()


def text(body: bytes) -> str:
    """Return a body as text.

    Raises: InputError `BodyNotUtf8`.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "BodyNotUtf8", f"byte {error.start} is not UTF-8", place="body", hint="Save the file as UTF-8 text"
        ) from None


def plain(body: bytes) -> Any:
    """Read JSON text into plain values.

    Raises: InputError.
    """
    try:
        return read_json(text(body))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        message = f"it is not JSON: {error.msg}"
        raise InputError("BodyMalformed", message, place=place, hint="Send one JSON document in UTF-8") from None


def _whole(values: Any) -> Any:
    """Return the same values with 1.0 as 1: in JSON both are the same number."""
    if isinstance(values, float):
        return int(values) if values.is_integer() else values
    if isinstance(values, dict):
        return {name: _whole(value) for name, value in values.items()}
    return [_whole(value) for value in values] if isinstance(values, list) else values


def convert(values: Any, document: type[T]) -> T:
    """Convert plain values into a struct.

    Raises: InputError `BodyInvalid` with the field in `place`.
    """
    try:
        return msgspec.convert(_whole(values), document)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        place = path.rstrip("`").removeprefix("$").lstrip(".")
        field = _FIELD.search(message)
        hint = "The fields are listed at /api/v1/docs"
        if field is not None:
            hint = f"Known: {', '.join(_fields(document))}" if "unknown" in message and not place else hint
            place = f"{place}.{field[1]}".lstrip(".")
        elif choices := _choices(document, place):
            hint = f"Known: {', '.join(choices)}"
        raise InputError("BodyInvalid", message, place=place, hint=hint) from None


_FIELD = re.compile(r"field `(.+)`")  # a missing or an unknown field


def _choices(document: Any, place: str) -> list[str]:
    """Return the allowed values of a field with a fixed set of values."""
    types = (field.type for field in msgspec.structs.fields(document) if field.encode_name == place)
    return [str(word) for kind in types if get_origin(kind) is Literal for word in get_args(kind)]


def _fields(document: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(document)]
