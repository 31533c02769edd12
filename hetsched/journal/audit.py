"""The writer of the audit trail.

Code that changes an object calls `record` in the same transaction, so that an entry exists if and only if its change
was committed. An entry contains the request ID, as the log does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from django.db import models
from django.utils import timezone
from structlog.contextvars import get_contextvars

from hetsched.contracts.documents import to_plain
from hetsched.contracts.message import Message, as_parts, from_parts
from hetsched.storage.bulk_rows import insert, new

from .models import AuditEntry


class Actor(Protocol):
    """Actor of a change: a name and the role under which it acts. A request's subject and `Program` are actors."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...


class Program(msgspec.Struct, frozen=True):
    """Actor that is a component of the product, or a user outside a request."""

    name: str
    role: str = "system"


SYSTEM = Program("hetsched")


def record(
    *,
    actor: str,
    action: str,
    obj: models.Model | tuple[str, str],
    role: str = "",
    reason: str = "",
    details: dict[str, Any] | None = None,
) -> AuditEntry:
    """Add one entry; `obj` is a model row, or a tuple of kind and name."""
    entry = _entry(actor, role, action, obj, reason, details)
    entry.save()
    return entry


def record_many(
    actor: Actor, action: str, about: Iterable[tuple[models.Model | tuple[str, str], str, dict[str, Any]]]
) -> None:
    """Add one entry for each object with its reason and details, all with the same action."""
    insert(build_entries(actor, action, about))


def build_entries(
    actor: Actor, action: str, about: Iterable[tuple[models.Model | tuple[str, str], str, dict[str, Any]]]
) -> list[AuditEntry]:
    """Build the unsaved entries of `record_many`, for a caller that inserts them together with other rows."""
    now = timezone.now()
    entries = [_entry(actor.name, actor.role, action, obj, reason, details) for obj, reason, details in about]
    for entry in entries:
        entry.at = now
    return entries


def _entry(
    actor: str, role: str, action: str, obj: models.Model | tuple[str, str], reason: str, details: dict[str, Any] | None
) -> AuditEntry:
    kind, name = obj if isinstance(obj, tuple) else (obj._meta.model_name or "", str(obj))
    return new(
        AuditEntry,
        actor=actor[:255],
        role=role[:100],
        action=action,
        object_kind=kind,
        object_name=name[:400],
        reason=reason,
        details=to_plain(details or {}, hook=as_parts),
        request_id=str(get_contextvars().get("request_id", ""))[:64],
    )


def details_of(entry: AuditEntry) -> dict[str, Any]:
    """Return the details of an entry, with stored messages decoded."""
    return {name: _detail(value) for name, value in entry.details.items()}


def _detail(value: Any) -> Any:
    if not isinstance(value, dict) or value.keys() != {"template", "params"} or not value["params"]:
        return value
    try:
        return from_parts(Message, value)
    except (msgspec.ValidationError, LookupError, AttributeError, ValueError):  # the value only looks like a message
        return value
