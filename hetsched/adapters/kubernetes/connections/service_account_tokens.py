"""Service account tokens: the review of an agent's token, and the renewal of our own token.

Review: with a shared secret, each agent could report for every node. A pod's projected token, in contrast, names an
audience, the service account, the pod and the pod's node. The API server checks whether the token is currently valid
for our audience; the token of a deleted pod is not valid. The claims of an agent's token are not parsed.
Renewal: the claims of our own token name its account, audiences and lifetime. They are not verified, because only the
API server that receives the request decides about it. A new token has the same audiences and lifetime.
Source: Kubernetes authentication.k8s.io/v1 TokenReview and TokenRequest; KEP-4193 (node name in the claims, on by
default since 1.30); RFC 7519.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta

import msgspec

from hetsched.contracts.documents import encode

from ..api import Api, Resource

AUDIENCE = "hetsched"
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_API_VERSION = "authentication.k8s.io/v1"
# Minimum of the field expirationSeconds of a TokenRequest.
SHORTEST = timedelta(minutes=10)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
_NODE = "authentication.kubernetes.io/node-name"
_POD = "authentication.kubernetes.io/pod-name"


class TokenHolder(msgspec.Struct, frozen=True):
    """Owner of a token: account as `namespace:name`, pod and node; fields are empty if the token does not name them."""

    account: str
    pod: str = ""
    node: str = ""


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _TokenReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _TokenReview(msgspec.Struct):
    status: _TokenReviewStatus = msgspec.field(default_factory=_TokenReviewStatus)


_decode = msgspec.json.Decoder(_TokenReview).decode
_ACCOUNT = "system:serviceaccount:"


def holder_of(api: Api, token: str) -> TokenHolder | None:
    """Return the owner of a token, or None if the token is not valid for our audience.

    Raises: ApiFailure if the API server does not respond or denies the review.
    """
    wanted = {"token": token, "audiences": [AUDIENCE]}
    body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": wanted}
    status = _decode(api.send("POST", TOKEN_REVIEWS.path(), encode(body))).status
    # An API server without audience support ignores our audience and returns no audiences, so its result is rejected.
    if not status.authenticated or AUDIENCE not in status.audiences or not status.user.username.startswith(_ACCOUNT):
        return None
    return TokenHolder(
        status.user.username.removeprefix(_ACCOUNT), _only(status.user.extra, _POD), _only(status.user.extra, _NODE)
    )


def _only(extra: dict[str, list[str]], key: str) -> str:
    values = extra.get(key, [])
    return values[0] if len(values) == 1 else ""


class TokenClaims(msgspec.Struct, frozen=True):
    """Claims of a service account token. `bound_to` is the kind of the object that the token ends with, or empty."""

    namespace: str
    account: str
    audiences: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    bound_to: str = ""

    @property
    def lifetime(self) -> timedelta:
        return self.expires_at - self.issued_at


class _Payload(msgspec.Struct):
    sub: str
    iat: int
    exp: int
    aud: list[str] | str = []
    kubernetes: dict[str, object] = msgspec.field(default_factory=dict, name="kubernetes.io")


class _TokenRequestStatus(msgspec.Struct):
    token: str = ""


class _TokenRequest(msgspec.Struct):
    status: _TokenRequestStatus = msgspec.field(default_factory=_TokenRequestStatus)


_payload = msgspec.json.Decoder(_Payload)
_requested = msgspec.json.Decoder(_TokenRequest)
_OWNERS = {"pod": "Pod", "secret": "Secret", "node": "Node"}


def claims_of(token: str) -> TokenClaims | None:
    """Return the unverified claims of a service account token; None for other tokens and tokens without an end."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = _payload.decode(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        issued, expires = (datetime.fromtimestamp(at, UTC) for at in (payload.iat, payload.exp))
    except (ValueError, OverflowError, OSError, msgspec.MsgspecError):
        return None
    namespace, _, account = payload.sub.removeprefix(_ACCOUNT).partition(":")
    if not payload.sub.startswith(_ACCOUNT) or not namespace or not account or expires <= issued:
        return None
    audiences = (payload.aud,) if isinstance(payload.aud, str) else tuple(payload.aud)
    owner = next((kind for claim, kind in _OWNERS.items() if claim in payload.kubernetes), "")
    return TokenClaims(namespace, account, audiences, issued, expires, owner)


def request_token(api: Api, claims: TokenClaims) -> str:
    """Return a new token for the account of `claims`, with the same audiences and lifetime.

    Raises: ApiFailure; ValueError if the claims contain an invalid name, or the response no token of the account.
    """
    seconds = int(max(claims.lifetime, SHORTEST).total_seconds())
    wanted = {"audiences": list(claims.audiences), "expirationSeconds": seconds}
    body = {"apiVersion": _API_VERSION, "kind": "TokenRequest", "spec": wanted}
    path = ACCOUNTS.path(namespace=claims.namespace, name=claims.account, part="token")
    try:
        token = _requested.decode(api.send("POST", path, encode(body))).status.token
    except msgspec.MsgspecError:
        token = ""
    found = claims_of(token)
    if found is None or (found.namespace, found.account) != (claims.namespace, claims.account):
        raise ValueError("the response contains no token of the account")
    return token
