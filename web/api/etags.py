"""ETags: detect unchanged resources and prevent lost updates.

A resource's `ETag` is opaque and strong. A GET whose `If-None-Match` contains it returns 304. A write whose `If-Match`
does not contain it is rejected with 412. A write that requires `If-Match` but does not have it is rejected with 428.
`If-Match: *` matches any version.
Source: RFC 9110 §13; RFC 6585 §3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from django.db import models

from hetsched.contracts.documents import encode
from hetsched.storage.write_lock import write_transaction

from .problems import RequestRefused

_QUOTE = '"'
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def etag_of(*parts: object) -> str:
    """Return the ETag computed from `parts`: the key and revision of a resource, or its whole content."""
    hasher = blake2b(digest_size=12)
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else str(part).encode())
        hasher.update(b"\0")
    return f'"{hasher.hexdigest()}"'


def _first(tag: str) -> str:
    return tag.partition(".")[0]


def unchanged(request: Any, etag: str) -> bool:
    """Return whether the caller's copy of a resource is current, according to `If-None-Match`."""
    given = request.headers.get("If-None-Match", "")
    # Weak comparison as in RFC 9110 §13.1.2: a weak tag matches, too.
    return given.strip() == "*" or etag.strip(_QUOTE) in (tag for _, tag in _TAG.findall(given))


def two_part(facts: str, load: str) -> str:
    """Return a two-part tag: `facts`, the tag of the state that writes depend on, a dot, and `load`, the tag of the
    frequently changing state.
    """
    return f'"{facts.strip(_QUOTE)}.{load.strip(_QUOTE)}"'


def in_language(etag: str, language: str) -> str:
    """Return the tag of a representation in `language`; `check_match` ignores the part that this function adds."""
    return etag if language.startswith("en") else two_part(etag, language)


def tag_of_row(row: models.Model, said: object, shown: Any) -> str:
    """Return a two-part tag. The first part is computed from the row's key and `said` (time or version of the last
    edit), the second part from `shown`, the displayed state.
    """
    return two_part(etag_of(row.pk, said), etag_of(encode(shown)))


def check_match(request: Any, etag: str, *, required: bool) -> None:
    """Reject a write to a resource that has changed since the client read it.

    For a two-part tag only the first part is compared.
    """
    given = request.headers.get("If-Match", "").strip()
    if not given:
        if required:
            raise RequestRefused(
                428,
                "PreconditionRequired",
                "this request needs the header If-Match with the ETag of the version that you read",
                hint="GET the resource first, or use `If-Match: *` to overwrite any version",
            )
        return
    if given == "*":
        return
    # Strong comparison as in RFC 9110 §13.1.1: a weak tag never matches.
    if _first(etag.strip(_QUOTE)) not in (_first(tag) for weak, tag in _TAG.findall(given) if not weak):
        raise RequestRefused(
            412,
            "PreconditionFailed",
            "the resource has changed since you read it",
            hint="GET the resource again, check the difference, and retry with the new ETag",
            headers={"ETag": etag},
        )


@contextmanager
def locked(row: models.Model) -> Iterator[None]:
    """Lock a row while a write compares its ETag and acts, so that one of two writers with the same ETag fails."""
    with write_transaction():
        type(row)._default_manager.select_for_update().filter(pk=row.pk).values_list("pk").first()
        yield
