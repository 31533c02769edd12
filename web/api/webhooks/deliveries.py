"""`deliveries/`: list webhook deliveries with the result of each attempt, and redeliver one.

A subject sees its own deliveries; operators without a namespace limit see all.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.placement.actions.webhooks import redeliver
from hetsched.placement.models import Delivery

from .. import bodies
from ..documents import Document, Request, page_of
from ..etags import etag_of
from ..pagination import LIST_QUERIES
from ..resources import ResourceView
from ..views import answer

MOST_SHOWN_ATTEMPTS = 100


class DeliveryRow(Document, frozen=True):
    """A delivery in a list; its state is due, delivered or dead. `status`, `code` and `message` describe the latest
    attempt.

    `webhook` is null for the callback URL of a submission.
    """

    id: str
    event: str
    webhook: str | None
    workload: str | None
    url: str
    state: str
    attempts: int
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None
    status: int | None
    code: str
    message: str


class Attempt(Document, frozen=True):
    """One attempt; `status` is null if there was no response."""

    at: datetime
    took_millis: int
    status: int | None
    code: str
    message: str


class DeliveryDetail(DeliveryRow, frozen=True, kw_only=True):
    """Delivery with its body and its latest attempts, latest first."""

    body: dict[str, Any]
    log: list[Attempt]


class Redelivery(Request, frozen=True):
    """Reason for the redelivery."""

    reason: str


class DeliveryResource(ResourceView):
    """Base of the views of deliveries, limited to those that the caller may see."""

    noun = "delivery"
    lookup_url_kwarg = "delivery_id"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Delivery]:
        return visible(self.subject)

    def document(self, row: Delivery) -> DeliveryDetail:
        """Return a delivery with its body and its attempts."""
        log = [
            Attempt(attempt.at, attempt.took_millis, attempt.status, attempt.code, attempt.message)
            for attempt in row.log.order_by("-id")[:MOST_SHOWN_ATTEMPTS]
        ]
        return DeliveryDetail(body=msgspec.json.decode(row.body), log=log, **_fields(row))

    def tag(self, row: Delivery) -> str:
        return tag(row)


class DeliveriesView(DeliveryResource):
    actions: ClassVar = {"GET": Action.SUBMIT}
    queries: ClassVar = {
        **LIST_QUERIES,
        "webhook": "Only deliveries of this webhook.",
        "workload": "Only deliveries about this workload.",
        "state": "Only deliveries in this state: due, delivered or dead.",
        "event": "Only deliveries of this event, such as workload.placed.",
    }
    kinds: ClassVar = {"state": {"type": "string", "enum": list(dict(Delivery.STATES))}}
    filters: ClassVar = {"webhook": "webhook_id", "workload": "workload", "state": "state", "event": "event"}

    def get_queryset(self) -> QuerySet[Delivery]:
        return super().get_queryset().defer("body")

    def document(self, row: Delivery) -> DeliveryRow:  # type: ignore[override]  # without the body and the attempts
        return delivery_row(row)

    @extend_schema(responses=page_of(DeliveryRow))
    def get(self, request: Any) -> HttpResponse:
        """List deliveries, latest first."""
        return self.list(request)


class DeliveryView(DeliveryResource):
    actions: ClassVar = {"GET": Action.SUBMIT}

    @extend_schema(responses=DeliveryDetail)
    def get(self, request: Any, delivery_id: str) -> HttpResponse:
        """Show a delivery with its body and the result of each attempt."""
        return self.retrieve(request)


class RedeliveryView(DeliveryResource):
    actions: ClassVar = {"POST": Action.SUBMIT}
    within: ClassVar = ("POST",)
    matched: ClassVar = {"POST": False}

    @extend_schema(request=Redelivery, responses={202: DeliveryRow})
    def post(self, request: Any, delivery_id: str) -> HttpResponse:
        """Redeliver an event with the same id and body."""
        asked = bodies.read(request, Redelivery)
        with self.matched_object() as row:
            made = redeliver(row, actor=self.subject, reason=asked.reason)
        return answer(request, delivery_row(made), status=202, headers={"ETag": tag(made)})


def visible(subject: Subject) -> QuerySet[Delivery]:
    """Return the deliveries that the caller may see."""
    rows = Delivery.objects.all()
    sees_all = subject.may(Action.OPERATE) and subject.namespaces is None
    return rows if sees_all else rows.filter(owner=subject.owner)


def tag(row: Delivery) -> str:
    """Return the ETag of a delivery."""
    return etag_of(row.pk, row.state, row.attempts, row.began_at)


def delivery_row(row: Delivery) -> DeliveryRow:
    return DeliveryRow(**_fields(row))


def _fields(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.pk,
        "event": row.event,
        "webhook": row.webhook_id,
        "workload": row.workload or None,
        "url": row.url,
        "state": row.state,
        "attempts": row.attempts,
        "created_at": row.created_at,
        "next_at": row.not_before if row.state == Delivery.DUE else None,
        "ended_at": row.ended_at,
        "status": row.status,
        "code": row.code,
        "message": row.message,
    }


routes = [
    path("deliveries/", DeliveriesView.as_view()),
    path("deliveries/<str:delivery_id>/", DeliveryView.as_view()),
    path("deliveries/<str:delivery_id>/redeliver/", RedeliveryView.as_view()),
]
