"""`audit/`: who did what to which object, when and why; `audit/chain/`: how far the trail is sealed and verified.

Rule: entries are only ever added. A token that is limited to namespaces sees what was done to workloads that it sees
and nothing else; entries about tokens are for those who may manage them.
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
from hetsched.journal.chain import ChainState, chain_state
from hetsched.journal.models import AuditEntry

from . import reach
from .documents import Document, Rows, page_of
from .paging import LIST_QUERIES, page
from .views import ApiView, answer

FILTERS = {
    "actor": "Only what this actor did; a part of the name is enough.",
    "action": "Only this action, or all that begin so: `node.` are all on nodes.",
    "kind": "Only about objects of this kind: node, workload, cluster, policy, token, …",
    "object": "Only about objects whose name holds this.",
    "request": "Only what came by the request of this id.",
    "since": "Not before this day or moment (RFC 3339).",
    "until": "Before this moment, or up to the end of this day.",
}
_COLUMNS = ("id", "at", "actor", "role", "action", "object_kind", "object_name", "reason", "details", "request_id")


class Audited(Document, frozen=True):
    """One entry; `details` holds what was before and after where that is known, `requestId` finds the log records."""

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
    """How far the trail is sealed; `broken` names the entries that are not what was sealed."""


class Entries(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**LIST_QUERIES, **FILTERS}

    @extend_schema(responses=page_of(Audited))
    def get(self, request: Any) -> HttpResponse:
        """List what was done, the latest first."""
        rows = filtered(visible(self.subject), request.GET)
        found, following = page(request, rows, "id", descending=True)
        return answer(request, Rows([audited(row) for row in found], following))


class Seals(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=Chain)
    def get(self, request: Any) -> HttpResponse:
        """Say how far the trail is sealed, and whether what was sealed is still so."""
        return answer(request, chain_state())


def visible(subject: Subject) -> QuerySet[AuditEntry]:
    """Return the entries that the asker may see, the latest first."""
    rows = AuditEntry.objects.order_by("-id")
    if not subject.may(Action.ADMIN):
        rows = rows.exclude(object_kind="token")
    if subject.namespaces is None:
        return rows
    # Tokens of other namespaces may bear the same name, so that an actor's name says nothing.
    return rows.filter(object_kind="workload", object_name__in=reach.workloads(subject).values("pk"))


def filtered(rows: QuerySet[AuditEntry], given: Mapping[str, str]) -> QuerySet[AuditEntry]:
    """Narrow entries by what is given of `FILTERS`.

    Raises: InputError `QueryInvalid`.
    """
    lookups = {
        "actor": "actor__icontains", "kind": "object_kind", "object": "object_name__icontains", "request": "request_id"
    }  # fmt: skip
    rows = rows.filter(**{lookup: given[name] for name, lookup in lookups.items() if given.get(name)})
    if action := given.get("action"):
        rows = rows.filter(action__startswith=action) if action.endswith(".") else rows.filter(action=action)
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
        raise InputError("QueryInvalid", f"{text[:40]!r} is no day and no moment", place=name) from None


def audited(row: AuditEntry) -> Audited:
    """Return the document of an entry."""
    return Audited(row.pk, row.at, *(getattr(row, name) for name in _COLUMNS[2:]))


routes = [path("audit/", Entries.as_view()), path("audit/chain/", Seals.as_view())]
