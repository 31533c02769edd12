"""Agent authentication: find the node of an agent by a bound token of hetsched or by its pod's service account token.

A token `hs_…` of role agent names its cluster and node. Any other bearer token is sent as a TokenReview to the API
server of the cluster that the request names (`?cluster=`). It is accepted if the review returns one of the accounts in
`HETSCHED_AGENT_ACCOUNTS` and the node of the pod that the token is bound to. This process caches a review for a minute.
Invariant: an agent reports only for a node that its token names.
"""

from __future__ import annotations

import re
import time
from hashlib import sha256
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.core.cache import cache
from rest_framework.authentication import get_authorization_header
from rest_framework.exceptions import AuthenticationFailed

from hetsched.access.authentication import BearerAuthentication, BearerScheme
from hetsched.access.models import Token
from hetsched.access.tokens import service_account
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster, ClusterKind

from .. import request_scope
from ..problems import RequestRefused

HELD_SECONDS = 60
_REFUSED_SECONDS = 10
# Maximum TokenReviews of this process per second and cluster, because clients can send arbitrary tokens.
MOST_REVIEWS = 100
# The three parts of a JSON Web Token, the format of service account tokens.
_SIGNED = re.compile(rb"[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}")
_MOST_BYTES = 16 << 10
log = structlog.get_logger(__name__)


class AgentIdentity(msgspec.Struct, frozen=True):
    """The cluster and node that an agent may report for."""

    cluster: str
    node: str


class AgentTokens(BearerAuthentication):
    """Authentication by hetsched's own tokens or by service account tokens; for the latter, `request.auth` is an
    `AgentIdentity`.
    """

    def authenticate(self, request: Any) -> tuple[Any, Any] | None:
        kind, _space, given = get_authorization_header(request).partition(b" ")
        given = given.strip()
        if kind.lower() != b"bearer" or given.startswith(b"hs_"):
            return super().authenticate(request)
        if len(given) > _MOST_BYTES or not _SIGNED.fullmatch(given):
            raise AuthenticationFailed("The token is not valid.", code="TokenInvalid")
        identity = _identity(request.GET.get("cluster", ""), given.decode())
        if identity is None:
            raise AuthenticationFailed("The token is not valid.", code="TokenInvalid")
        return service_account("agent"), identity


class AgentScheme(BearerScheme):
    target_class = f"{__name__}.AgentTokens"
    name = "agent"
    priority = 1  # drf-spectacular must try this class before its base class

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        about = "Agent token (hs_…), or service account token of a pod on the node."
        return {"type": "http", "scheme": "bearer", "description": about}


def agent_of(request: Any) -> AgentIdentity:
    """Return the cluster and node of an authenticated agent.

    Raises: RequestRefused 403 for other callers.
    """
    if isinstance(request.auth, AgentIdentity):
        return request.auth
    if isinstance(request.auth, Token) and request.auth.node:
        return AgentIdentity(request.auth.cluster, request.auth.node)
    raise RequestRefused(403, "NodeNotYours", "a report needs a token that is bound to the node")


def _identity(cluster_name: str, token: str) -> AgentIdentity | None:
    from hetsched.adapters.kubernetes.api import ApiFailure
    from hetsched.adapters.kubernetes.connections.service_account_tokens import holder_of
    from hetsched.inventory.connections import api_of

    try:
        cluster = request_scope.cluster_of(cluster_name, hint=False)
    except (RequestRefused, InputError):
        return None
    if cluster.kind != ClusterKind.KUBERNETES:
        return None
    key = f"agent-token-{cluster.pk}-{sha256(token.encode()).hexdigest()}"
    known: AgentIdentity | str | None = cache.get(key)
    if known is not None:
        return known if isinstance(known, AgentIdentity) else None
    _limit_reviews(cluster)
    try:
        holder = holder_of(api_of(cluster), token)
    except (ApiFailure, InputError) as error:
        log.warning("token review failed", cluster=cluster.name, error=str(error)[:300])
        raise RequestRefused(
            503, "TokenNotReviewed",
            Message("the API server of {cluster} did not authenticate the token", cluster=cluster.name),
            headers={"Retry-After": "5"},
        ) from None  # fmt: skip
    identity = None
    if holder is not None and holder.account in settings.HETSCHED_AGENT_ACCOUNTS and holder.node:
        identity = AgentIdentity(cluster.name, holder.node)
    cache.set(key, identity or "refused", HELD_SECONDS if identity else _REFUSED_SECONDS)
    return identity


def _limit_reviews(cluster: Cluster) -> None:
    """Count a TokenReview for a cluster. Raises: RequestRefused 503 above `MOST_REVIEWS` per second."""
    key = f"reviews-{cluster.pk}-{int(time.time())}"
    cache.add(key, 0, 2)
    try:
        shown = cache.incr(key)
    except ValueError:  # the counter of this second has already expired
        return
    if shown > MOST_REVIEWS:
        raise RequestRefused(
            503,
            "TokenNotReviewed",
            Message("too many token reviews for {cluster} are in progress", cluster=cluster.name),
            headers={"Retry-After": "5"},
        )
