"""`webhooks/` and `callback-secret/`: notifications of workload states, and their signatures.

A subject sees and changes its own webhooks; operators without a namespace limit see and change all. Only the response
that creates a secret contains it. A token that is limited to namespaces can create webhooks only for these namespaces.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.access.tokens import check_namespaces
from hetsched.placement.actions.webhooks import (
    WebhookSettings,
    add_webhook,
    change_callback_secret,
    change_webhook,
    change_webhook_secret,
    end_callback_secret,
    remove_webhook,
    try_webhook,
)
from hetsched.placement.models import SigningSecret, Webhook
from hetsched.placement.notifications.deliveries import webhook_holder

from .. import bodies, request_scope
from ..documents import Document, Request, page_of
from ..etags import etag_of
from ..pagination import LIST_QUERIES
from ..problems import not_found
from ..resources import ResourceView
from ..views import ApiView, answer
from .deliveries import DeliveryRow, delivery_row


class WebhookDraft(Request, frozen=True):
    """Webhook settings; empty `states`, `namespaces` and `cluster` select everything that the owner of the webhook may
    see.
    """

    name: str
    url: str
    reason: str
    cluster: str = ""
    namespaces: list[str] | str = []
    states: list[str] | str = []
    enabled: bool = True


class SecretRotation(Request, frozen=True):
    """Rotation of a secret; the previous secret also signs for `overlapSeconds` more seconds, by default one day."""

    reason: str
    overlap_seconds: int = 86_400


class SecretDetail(Document, frozen=True):
    """Signature settings without the secret; the previous secret also signs until `beforeUntil`."""

    signed: bool
    made_at: datetime | None = None
    before_until: datetime | None = None


class CreatedSecret(SecretDetail, frozen=True, kw_only=True):
    """New secret, shown once."""

    secret: str


class WebhookDetail(Document, frozen=True):
    """Webhook; `pausedBecause` is the reason if the server paused it."""

    id: str
    name: str
    url: str
    cluster: str | None
    namespaces: list[str]
    states: list[str]
    enabled: bool
    paused_because: str
    created_by: str
    created_at: datetime
    secret_made_at: datetime | None


class CreatedWebhook(WebhookDetail, frozen=True, kw_only=True):
    """New webhook with its secret, shown once."""

    secret: str


class WebhookResource(ResourceView):
    """Base of the views of webhooks, limited to those that the caller may see and change."""

    noun = "webhook"
    lookup_url_kwarg = "webhook_id"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Webhook]:
        return visible(self.subject).select_related("cluster")

    def document(self, row: Webhook) -> WebhookDetail:
        return WebhookDetail(**_fields(row))

    def tag(self, row: Webhook) -> str:
        return tag(row)


class WebhooksView(WebhookResource):
    actions: ClassVar = {"GET": Action.SUBMIT, "POST": Action.SUBMIT}
    within: ClassVar = ("POST",)
    queries: ClassVar = LIST_QUERIES

    @extend_schema(responses=page_of(WebhookDetail))
    def get(self, request: Any) -> HttpResponse:
        """List webhooks, latest first."""
        return self.list(request)

    @extend_schema(request=WebhookDraft, responses={201: CreatedWebhook})
    def post(self, request: Any) -> HttpResponse:
        """Create a webhook; only this response contains its secret."""
        asked = bodies.read(request, WebhookDraft)
        wanted = _wanted(asked, self.subject)
        hook, secret = add_webhook(wanted, owner=self.subject.owner, actor=self.subject, reason=asked.reason)
        made = CreatedWebhook(secret=secret, **_fields(hook))
        headers = {"Location": f"{request.path}{hook.pk}/", "ETag": tag(hook), "Cache-Control": "no-store"}
        return answer(request, made, status=201, headers=headers)


class WebhookView(WebhookResource):
    actions: ClassVar = {"GET": Action.SUBMIT, "PUT": Action.SUBMIT, "DELETE": Action.SUBMIT}
    within: ClassVar = ("PUT", "DELETE")
    matched: ClassVar = {"PUT": True, "DELETE": True}
    queries: ClassVar = {"reason": "Of a DELETE: reason for the audit trail."}

    @extend_schema(responses=WebhookDetail)
    def get(self, request: Any, webhook_id: str) -> HttpResponse:
        """Show a webhook."""
        return self.retrieve(request)

    @extend_schema(request=WebhookDraft, responses=WebhookDetail)
    def put(self, request: Any, webhook_id: str) -> HttpResponse:
        """Change a webhook or resume a paused webhook; needs If-Match."""
        asked = bodies.read(request, WebhookDraft)
        with self.matched_object() as hook:
            change_webhook(hook, _wanted(asked, self.subject), actor=self.subject, reason=asked.reason)
        return self.written(hook)

    @extend_schema(responses={204: None})
    def delete(self, request: Any, webhook_id: str) -> HttpResponse:
        """Delete a webhook and its deliveries; needs If-Match."""
        with self.matched_object() as hook:
            remove_webhook(hook, actor=self.subject, reason=request.GET.get("reason", ""))
        return HttpResponse(status=204)


class WebhookSecretView(WebhookResource):
    actions: ClassVar = {"POST": Action.SUBMIT}
    within: ClassVar = ("POST",)

    @extend_schema(request=SecretRotation, responses=CreatedSecret)
    def post(self, request: Any, webhook_id: str) -> HttpResponse:
        """Rotate the secret of a webhook; only this response contains it."""
        asked = bodies.read(request, SecretRotation)
        hook = self.get_object()
        secret = change_webhook_secret(hook, overlap=_overlap(asked), actor=self.subject, reason=asked.reason)
        return _made(request, webhook_holder(hook.pk), secret)


class WebhookTestView(WebhookResource):
    actions: ClassVar = {"POST": Action.SUBMIT}
    within: ClassVar = ("POST",)

    @extend_schema(request=None, responses={202: DeliveryRow})
    def post(self, request: Any, webhook_id: str) -> HttpResponse:
        """Send a test event to a webhook."""
        made = try_webhook(self.get_object(), actor=self.subject)
        location = {"Location": f"/api/v1/deliveries/{made.pk}/"}
        return answer(request, delivery_row(made), status=202, headers=location)


class CallbackSecretView(ApiView):
    actions: ClassVar = {"GET": Action.SUBMIT, "POST": Action.SUBMIT, "DELETE": Action.SUBMIT}
    within: ClassVar = ("POST", "DELETE")
    queries: ClassVar = {"reason": "Of a DELETE: reason for the audit trail."}

    @extend_schema(responses=SecretDetail)
    def get(self, request: Any) -> HttpResponse:
        """Show whether callbacks of the caller's submissions are signed."""
        return answer(request, _shown(self.subject.owner))

    @extend_schema(request=SecretRotation, responses=CreatedSecret)
    def post(self, request: Any) -> HttpResponse:
        """Create or rotate the secret that signs callbacks of the caller's submissions."""
        asked = bodies.read(request, SecretRotation)
        owner = self.subject.owner
        secret = change_callback_secret(owner, overlap=_overlap(asked), actor=self.subject, reason=asked.reason)
        return _made(request, owner, secret)

    @extend_schema(responses={204: None})
    def delete(self, request: Any) -> HttpResponse:
        """Stop signing callbacks of the caller's submissions."""
        if not end_callback_secret(self.subject.owner, actor=self.subject, reason=request.GET.get("reason", "")):
            raise not_found("callback secret", self.subject.name, "Create a callback secret with POST callback-secret/")
        return HttpResponse(status=204)


def visible(subject: Subject) -> QuerySet[Webhook]:
    """Return the webhooks that the caller may see and change."""
    rows = Webhook.objects.all()
    sees_all = subject.may(Action.OPERATE) and subject.namespaces is None
    return rows if sees_all else rows.filter(owner=subject.owner)


def tag(hook: Webhook) -> str:
    """Return the ETag of a webhook."""
    return etag_of(hook.pk, hook.version)


def _fields(hook: Webhook) -> dict[str, Any]:
    made = SigningSecret.objects.filter(holder=webhook_holder(hook.pk)).values_list("made_at", flat=True).first()
    return {
        "id": hook.pk,
        "name": hook.name,
        "url": hook.url,
        "cluster": hook.cluster.name if hook.cluster is not None else None,
        "namespaces": hook.namespaces,
        "states": hook.states,
        "enabled": hook.enabled,
        "paused_because": hook.paused_because,
        "created_by": hook.created_by,
        "created_at": hook.created_at,
        "secret_made_at": made,
    }


def _wanted(asked: WebhookDraft, subject: Subject) -> WebhookSettings:
    """Return the requested settings, limited to the caller's scope.

    Raises: RequestRefused 403, 404; InputError `NamespaceInvalid`.
    """
    namespaces = check_namespaces(bodies.names(asked.namespaces))
    request_scope.check_namespaces(subject, namespaces)
    if not namespaces and subject.namespaces is not None:
        namespaces = sorted(subject.namespaces)
    return WebhookSettings(
        name=asked.name,
        url=asked.url,
        cluster=request_scope.cluster_of(asked.cluster) if asked.cluster else None,
        namespaces=namespaces,
        states=bodies.names(asked.states),
        enabled=asked.enabled,
    )


def _overlap(asked: SecretRotation) -> timedelta:
    return timedelta(seconds=max(min(asked.overlap_seconds, 10**9), -1))


def _shown(holder: str) -> SecretDetail:
    row = SigningSecret.objects.filter(holder=holder).first()
    return SecretDetail(False) if row is None else SecretDetail(True, row.made_at, row.before_until)


def _made(request: Any, holder: str, secret: str) -> HttpResponse:
    shown = _shown(holder)
    made = CreatedSecret(shown.signed, shown.made_at, shown.before_until, secret=secret)
    return answer(request, made, headers={"Cache-Control": "no-store"})


routes = [
    path("callback-secret/", CallbackSecretView.as_view()),
    path("webhooks/", WebhooksView.as_view()),
    path("webhooks/<str:webhook_id>/", WebhookView.as_view()),
    path("webhooks/<str:webhook_id>/secret/", WebhookSecretView.as_view()),
    path("webhooks/<str:webhook_id>/test/", WebhookTestView.as_view()),
]
