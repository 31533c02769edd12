"""Request bodies: one strict JSON reader for documents, and raw files for manifests.

A document is decoded with depth, size and text limits, then converted to a struct that forbids unknown fields, so a
view sees only checked values. Media types: `application/json` for a document or a manifest, `application/yaml` for a
manifest, `text/csv` for trace rows.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http.request import UnreadablePostError

from hetsched.adapters.plain_values import read_json
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError, without_path
from hetsched.contracts.message import Message, joined
from hetsched.contracts.type_remedies import field_of, remedy_for

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
            Message("the media type {text} of the body is not supported", text=found[:100])
            if found
            else "the body has no media type",
            hint=Message("Send {names} in UTF-8", names=joined(" or ", allowed)),
            headers={"Accept-Post": ", ".join(allowed)},
        )
    return kind


def raw(request: Any, *, large: bool = False) -> bytes:
    """Return the bytes of the request body; `large` selects the size limit for manifests.

    Raises: InputError `BodyTooLarge`.
    """
    cap = settings.HETSCHED_MANIFEST_BYTES if large else settings.HETSCHED_BODY_BYTES
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        raise InputError("BodyTooLarge", Message("the body is larger than {n} bytes", n=cap)) from None
    except UnreadablePostError:
        raise InputError("BodyUnreadable", "the connection closed before the end of the body") from None
    if len(body) > cap:
        raise InputError("BodyTooLarge", too_large(len(body), cap))
    return body


def read(request: Any, document: type[T], *, large: bool = False) -> T:
    """Read a JSON body into a struct.

    Raises: InputError with the field in `place`; RequestRefused 415.
    """
    media_type(request, JSON)
    return convert(plain(raw(request, large=large)), document)


def wrapped_document(request: Any, document: type[T]) -> T | None:
    """Return the JSON document that contains a manifest in a field, or None if the body is the manifest itself.

    Raises: InputError; RequestRefused 415 for media types other than JSON, YAML and CSV.
    """
    if media_type(request, JSON, YAML, CSV) != JSON:
        return None
    values = plain(raw(request, large=True))
    is_document = isinstance(values, dict) and ("manifest" in values or not {"apiVersion", "kind"} & values.keys())
    return convert(values, document) if is_document else None


def source(manifest: str | dict[str, Any]) -> bytes:
    """Return the bytes of a manifest that is given as text or as an object."""
    return manifest.encode() if isinstance(manifest, str) else encode(manifest)


def too_large(size: int, cap: int) -> Message:
    """Return the error message for a body that is larger than allowed."""
    return Message("the body has {n} bytes; the maximum for this request is {m}", n=size, m=cap)


def name_mismatch(stated: str, name: str) -> Message:
    """Return the error message for a body whose object name differs from the name in the URL."""
    return Message("the body names {text}, but the URL names {text_b}", text=repr(stated[:80]), text_b=repr(name))


def names(given: list[str] | str) -> list[str]:
    """Return a list of names; a text is split at commas and blanks."""
    return given if isinstance(given, list) else given.replace(",", " ").split()


def text(body: bytes) -> str:
    """Return a body as text.

    Raises: InputError `BodyNotUtf8`.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = Message("byte {n} is not UTF-8", n=error.start)
        raise InputError("BodyNotUtf8", message, place="body", hint="Save the file as UTF-8 text") from None


def plain(body: bytes) -> Any:
    """Decode a JSON body into dicts, lists and scalars.

    Raises: InputError.
    """
    try:
        return read_json(text(body))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        message = Message("the text is not valid JSON: {text}", text=error.msg)
        raise InputError("BodyMalformed", message, place=place, hint="Send one JSON document in UTF-8") from None


def _whole(values: Any) -> Any:
    """Replace integral floats in the values by integers, because JSON does not distinguish 1.0 from 1."""
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
        message, _ = without_path(error)
        hint = remedy_for(error, document, values) or "The fields are listed at /api/v1/docs"
        raise InputError("BodyInvalid", message, place=field_of(error), hint=hint) from None
