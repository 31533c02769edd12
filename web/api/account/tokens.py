"""`tokens/`: API tokens with role, scope and expiry; create and revoke them.

Administrators only. Only the response that creates a token contains its plaintext. Later requests identify a token by
its first characters, which are not secret.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, ClassVar

import msgspec
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.models import Token
from hetsched.access.roles import Action
from hetsched.access.tokens import LIFETIME, create_token, revoke_token
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import Cluster

from .. import bodies
from ..documents import Document, Request, Rows, page_of
from ..request_scope import get_row
from ..views import ApiView, answer

_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)


class NewToken(Request, frozen=True):
    """Token to create; `namespaces` lists the namespaces it is limited to, and an empty list allows all.

    An agent's token is valid for one `node` of one `cluster`.

    `mostPriority`, `submitsPerMinute` and `quota` limit its submissions. `quota` limits the total requests of its
    unfinished workloads, as a resource list such as `{"pods": "20", "cpu": "64", "hetsched.io/gpu-milli": "4000"}`.
    Without `mostPriority` a token that is limited to namespaces may use priorities up to 0, and other tokens any
    priority.
    """

    name: str
    role: str
    reason: str
    namespaces: list[str] | str = []
    cluster: str = ""
    node: str = ""
    days: int = LIFETIME.days
    most_priority: int | str | None = None
    submits_per_minute: int | str | None = None
    quota: dict[str, str | int | float] | str = {}


class Revocation(Request, frozen=True):
    """Reason for the revocation."""

    reason: str


class Preempts(Document, frozen=True):
    """The pods that the submissions of a token may preempt: pods of any namespace whose priority is below `below`, or
    all pods if `below` is null.
    """

    below: int | None


class TokenDetail(Document, frozen=True):
    """Token without its secret; `key` is the first characters of the token, `ending` its last characters if known.

    `mostPriority` and `submitsPerMinute` are null and `quota` is empty if the token sets no limit. `priorityCeiling` is
    the highest priority that its pods may have, with the default applied, or null without a limit. `preempts` is null
    if the token cannot submit pods.
    """

    key: str
    ending: str
    name: str
    owner: str
    role: str
    namespaces: list[str]
    cluster: str
    node: str
    created: datetime
    expires: datetime | None
    last_used_at: datetime | None
    most_priority: int | None
    submits_per_minute: int | None
    quota: dict[str, str]
    priority_ceiling: int | None
    preempts: Preempts | None


class CreatedToken(TokenDetail, frozen=True, kw_only=True):
    """New token with its plaintext, shown once."""

    token: str


class TokensView(ApiView):
    actions: ClassVar = {"GET": Action.ADMIN, "POST": Action.ADMIN}

    @extend_schema(responses=page_of(TokenDetail))
    def get(self, request: Any) -> HttpResponse:
        """List tokens, latest first."""
        return answer(request, Rows([token_detail(row) for row in list_tokens()], None))

    @extend_schema(request=NewToken, responses={201: CreatedToken})
    def post(self, request: Any) -> HttpResponse:
        """Create a token; only this response contains its plaintext."""
        asked = bodies.read(request, NewToken)
        if asked.cluster and not Cluster.objects.filter(name=asked.cluster).exists():
            message = Message("unknown cluster {cluster}", cluster=repr(asked.cluster[:80]))
            raise InputError("ClusterUnknown", message, place="cluster")
        token, plaintext = create_token(
            role=asked.role,
            name=_name(asked.name),
            namespaces=bodies.names(asked.namespaces),
            cluster=asked.cluster,
            node=asked.node,
            lifetime=timedelta(days=max(min(asked.days, 10_000), 0)),
            most_priority=_number(asked.most_priority, "mostPriority"),
            submits_per_minute=_number(asked.submits_per_minute, "submitsPerMinute"),
            quota=_quota(asked.quota),
            actor=self.subject,
            reason=require_reason(asked.reason),
        )
        made = CreatedToken(token=plaintext, **msgspec.structs.asdict(token_detail(token)))
        return answer(request, made, status=201, headers={"Cache-Control": "no-store"})


class TokenRevocationView(ApiView):
    actions: ClassVar = {"POST": Action.ADMIN}

    @extend_schema(request=Revocation, responses={204: None})
    def post(self, request: Any, key: str) -> HttpResponse:
        """Revoke a token with immediate effect."""
        asked = bodies.read(request, Revocation)
        token = get_row(Token.objects.all(), "token", key, "token_key")
        revoke_token(token, actor=self.subject, reason=require_reason(asked.reason))
        return HttpResponse(status=204)


def list_tokens() -> list[Token]:
    """Return all tokens with their owners, the latest first."""
    return list(Token.objects.select_related("user").order_by("-created", "token_key"))


def token_detail(row: Token) -> TokenDetail:
    """Return the public fields of a token."""
    return TokenDetail(
        row.token_key, row.ending, row.name, row.user.get_username(), row.role, row.namespaces, row.cluster, row.node,
        row.created, row.expiry, row.last_used_at, row.most_priority, row.submits_per_minute, row.quota,
        row.priority_ceiling if row.submits else None, Preempts(row.priority_ceiling) if row.submits else None,
    )  # fmt: skip


def _name(text: str) -> str:
    name = text.strip()
    if not 0 < len(name) <= 100:
        raise InputError("TokenNameInvalid", "the name must have 1 to 100 characters", place="name")
    return name


def _number(given: int | str | None, place: str) -> int | None:
    """Parse a number. Return None for an empty string, which forms send for an empty field."""
    if given is None or isinstance(given, int):
        return given
    if not given.strip():
        return None
    if not _WHOLE.fullmatch(given.strip()):
        message = Message("{text} is not a whole number", text=repr(given[:40]))
        raise InputError("TokenBoundInvalid", message, place=place)
    return int(given)


def _quota(given: dict[str, str | int | float] | str) -> dict[str, str]:
    """Parse a quota, given as an object or as text such as `pods=20 cpu=64`."""
    if not isinstance(given, str):
        return {name: str(amount) for name, amount in given.items()}
    pairs = [part.partition("=") for part in given.replace(",", " ").split()]
    return {name: amount for name, _, amount in pairs}


routes = [path("tokens/", TokensView.as_view()), path("tokens/<str:key>/revoke/", TokenRevocationView.as_view())]
