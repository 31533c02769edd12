"""`audit/`: the actor, action, object, time and reason of each change. `audit/chain/`: whether the seals of the entries
are valid.

Entries are append-only. A token that is limited to namespaces sees only entries about workloads that it can see;
entries about tokens require the permission to manage tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.journal.audit import details_of
from hetsched.journal.chain import ChainState, chain_state
from hetsched.journal.models import AuditEntry

from .. import request_scope
from ..documents import Document, page_of
from ..pagination import LIST_QUERIES
from ..resources import ResourceView
from ..views import ApiView, answer

FILTERS = {
    "actor": "Only entries of this actor; matches a part of the name.",
    "action": "Only this action or prefix: `node.` selects all actions on nodes.",
    "kind": "Only entries about this kind of object: node, workload, cluster, policy, token, …",
    "object": "Only entries about objects whose name contains this text.",
    "request": "Only entries of the request with this id.",
    "since": "Start of the period: date or time (RFC 3339).",
    "until": "End of the period: time (exclusive) or date (inclusive).",
}
MOST_CHARACTERS = 1000
_COLUMNS = ("id", "at", "actor", "role", "action", "object_kind", "object_name", "reason", "details", "request_id")


class AuditRow(Document, frozen=True):
    """Audit entry. `details` contains the values before and after the change if known, and `requestId` is the id of the
    request in the logs.
    """

    id: int
    at: datetime
    actor: str
    role: str
    action: str
    object_kind: str
    object_name: str
    reason: str
    details: dict[str, Any]
    request_id: str


class Chain(ChainState, Document, frozen=True):
    """State of the seals of the audit trail; `broken` lists the entries that do not match their seal."""


class AuditEntriesView(ResourceView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**LIST_QUERIES, **FILTERS}
    ordering = "-id"

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return filtered(visible(self.subject), self.request.GET)

    def document(self, row: AuditEntry) -> AuditRow:
        return audited(row)

    @extend_schema(responses=page_of(AuditRow))
    def get(self, request: Any) -> HttpResponse:
        """List audit entries, latest first."""
        return self.list(request)


class AuditSealsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=Chain)
    def get(self, request: Any) -> HttpResponse:
        """Show how many entries are sealed and whether all seals are valid."""
        return answer(request, chain_state())


def visible(subject: Subject) -> QuerySet[AuditEntry]:
    """Return the entries that the caller may see, the latest first."""
    rows = AuditEntry.objects.order_by("-id")
    if not subject.may(Action.ADMIN):
        rows = rows.exclude(object_kind="token")
    if subject.namespaces is None:
        return rows
    # Filter by workload, not by actor: a token that is limited to other namespaces may have the same name as this one.
    return rows.filter(object_kind="workload", object_name__in=request_scope.workloads(subject).values("pk"))


def filtered(rows: QuerySet[AuditEntry], given: Mapping[str, str]) -> QuerySet[AuditEntry]:
    """Filter entries by the query parameters in `FILTERS`.

    Raises: InputError `QueryInvalid`.
    """
    long = next((name for name in FILTERS if len(given.get(name, "")) > MOST_CHARACTERS), None)
    if long is not None:  # databases fail with an internal error on long patterns
        message = Message("the text has more than {n} characters", n=MOST_CHARACTERS)
        raise InputError("QueryInvalid", message, place=long, hint="Send a shorter text")
    lookups = {
        "actor": "actor__text_contains",
        "kind": "object_kind",
        "object": "object_name__text_contains",
        "request": "request_id",
    }
    rows = rows.filter(**{lookup: given[name] for name, lookup in lookups.items() if given.get(name)})
    if action := given.get("action"):
        rows = rows.filter(action__text_starts=action) if action.endswith(".") else rows.filter(action=action)
    if since := given.get("since"):
        rows = rows.filter(at__gte=_moment(since, "since"))
    if until := given.get("until"):
        rows = rows.filter(at__lt=_moment(until, "until", end=True))
    return rows


def _moment(text: str, name: str, *, end: bool = False) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if end and len(text) == len("2026-11-22"):
            found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        message = Message("{text} is not a date or time in RFC 3339", text=repr(text[:40]))
        hint = "Use a form such as 2026-11-22 or 2026-11-22T10:00:00Z"
        raise InputError("QueryInvalid", message, place=name, hint=hint) from None


def audited(row: AuditEntry) -> AuditRow:
    """Return the REST document of an audit entry."""
    shown = {name: getattr(row, name) for name in _COLUMNS} | {"details": details_of(row)}
    return AuditRow(**shown)


routes = [path("audit/", AuditEntriesView.as_view()), path("audit/chain/", AuditSealsView.as_view())]
