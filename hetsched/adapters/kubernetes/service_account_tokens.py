"""Node of a service account token, as confirmed by a TokenReview of its API server.

With a shared secret, each agent could report for every node. A pod's projected token, in contrast, names an audience,
the service account, the pod and the pod's node. The API server checks whether the token is currently valid for our
audience; the token of a deleted pod is not valid. The token itself is not parsed.
Source: Kubernetes authentication.k8s.io/v1 TokenReview; KEP-4193 (node name in the claims, on by default since 1.30).
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.documents import encode

from .api import Api, Resource

AUDIENCE = "hetsched"
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


def holder_of(api: Api, token: str, *, audience: str = AUDIENCE) -> TokenHolder | None:
    """Return the owner of a token, or None if the token is not valid for our audience.

    Raises: ApiFailure if the API server does not respond or denies the review.
    """
    wanted = {"token": token, "audiences": [audience]}
    body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": wanted}
    status = _decode(api.send("POST", TOKEN_REVIEWS.path(), encode(body))).status
    # An API server without audience support ignores our audience and returns no audiences, so its result is rejected.
    if not status.authenticated or audience not in status.audiences or not status.user.username.startswith(_ACCOUNT):
        return None
    return TokenHolder(
        status.user.username.removeprefix(_ACCOUNT), _only(status.user.extra, _POD), _only(status.user.extra, _NODE)
    )


def _only(extra: dict[str, list[str]], key: str) -> str:
    values = extra.get(key, [])
    return values[0] if len(values) == 1 else ""
