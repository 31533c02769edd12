"""Renew the service account tokens of stored kubeconfigs before they end.

Without renewal, a connection with a token of 24 hours fails after a day. A token is renewed after about 80 % of its
lifetime with the TokenRequest API, if its service account may create tokens of itself. The time differs by up to 5 % of
the lifetime between connections, so that many connections do not renew at once. A failed renewal is repeated at each
run, and the stored state has the reason for `hetsched cluster test`, the metrics and an alert.
Invariants: a new token is stored only in place of the kubeconfig from which it was made, so a kubeconfig that was
entered in the meantime is kept; no token appears in the state, in a log record or in the audit trail.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import structlog

from hetsched.contracts.api.stored_tokens import StoredToken
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, shortened
from hetsched.contracts.times import rfc3339
from hetsched.journal.audit import SYSTEM, record
from hetsched.storage.sealed_secrets import seal, unseal
from hetsched.storage.write_lock import write_transaction

from .connections import check_server, purpose_of
from .models import Connection

if TYPE_CHECKING:
    from hetsched.adapters.kubernetes.connections.service_account_tokens import TokenClaims

RENEW_AFTER = 0.8
SPREAD = 0.05
# Column of the sealed kubeconfig by purpose.
COLUMNS = {"connection": "sealed_kubeconfig", "discovery": "sealed_discovery_kubeconfig"}
log = structlog.get_logger(__name__)


def renewal_time(claims: TokenClaims, installation: UUID) -> datetime:
    """Return the time after which a token is renewed: 75 % to 85 % of its lifetime, fixed for an installation."""
    share = RENEW_AFTER + SPREAD * (2 * (installation.int % 1000) / 999 - 1)
    return claims.issued_at + timedelta(seconds=share * claims.lifetime.total_seconds())


def renew_tokens(now: datetime) -> int:
    """Renew the tokens of all connections that are due, and store their state; return the number of renewed tokens."""
    renewed = 0
    for connection in Connection.objects.exclude(sealed_kubeconfig="").select_related("cluster"):
        states = []
        for purpose, column in COLUMNS.items():
            if not getattr(connection, column):
                continue
            state, is_new = _renew(connection, purpose, now)
            renewed += is_new
            if state is not None:
                states.append(state)
        if tuple(states) != connection.stored_tokens:
            Connection.objects.filter(pk=connection.pk).update(stored_tokens=tuple(states))
    return renewed


def _renew(connection: Connection, purpose: str, now: datetime) -> tuple[StoredToken | None, bool]:
    """Renew one token if it is due; return its state, None if it is not renewable, and whether it was renewed."""
    from hetsched.adapters.kubernetes.connections.service_account_tokens import claims_of

    sealed, subject = getattr(connection, COLUMNS[purpose]), purpose_of(connection.cluster, purpose)
    try:
        kept = msgspec.json.decode(unseal(sealed, purpose=subject))
    except InputError:
        return None, False  # the connection reports that SECRET_KEY has changed
    claims = claims_of(kept["users"][0]["user"].get("token", ""))
    if claims is None:
        return None, False
    if now < renewal_time(claims, connection.installation):
        return _state(purpose, claims), False
    if claims.bound_to:
        message = Message("the token ends with its {kind} and cannot be renewed", kind=claims.bound_to)
        return _state(purpose, claims, message), False
    token, failure = _requested_token(kept, claims)
    if failure:
        log.warning("token not renewed", cluster=connection.cluster.name, purpose=purpose, reason=str(failure))
        return _state(purpose, claims, failure), False
    kept["users"][0]["user"]["token"] = token
    fresh = claims_of(token) or claims
    if not _store(connection, purpose, sealed, seal(encode(kept).decode(), purpose=subject), fresh):
        return _state(purpose, claims), False  # the kubeconfig was replaced in the meantime
    log.info("token renewed", cluster=connection.cluster.name, purpose=purpose, ends=rfc3339(fresh.expires_at))
    return _state(purpose, fresh), True


def _requested_token(kept: dict[str, Any], claims: TokenClaims) -> tuple[str, Message]:
    """Return a new token, or the reason why there is none."""
    from hetsched.adapters.kubernetes.api import Api, ApiFailure
    from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
    from hetsched.adapters.kubernetes.connections.kubeconfig import Access
    from hetsched.adapters.kubernetes.connections.service_account_tokens import request_token

    try:
        check_server(Access(kept).server)
        # A TokenRequest changes no object of the cluster, so it is also sent in shadow mode.
        return request_token(Api(from_kubeconfig(kept), agent="hetsched-renewal"), claims), Message("")
    except ApiFailure as failure:
        return "", shortened(failure.text, 300)
    except InputError as error:
        return "", shortened(Message("{detail} [{code}]", detail=error.message, code=error.code), 300)
    except ValueError:
        return "", Message("the API server returned no token of the account")


def _store(connection: Connection, purpose: str, before: str, after: str, claims: TokenClaims) -> bool:
    """Replace the sealed kubeconfig unless another one was stored; return whether it was replaced."""
    column = COLUMNS[purpose]
    with write_transaction():
        stored = Connection.objects.filter(pk=connection.pk, **{column: before}).update(**{column: after})
        if stored:
            record(
                actor=SYSTEM.name,
                role=SYSTEM.role,
                action="cluster.renew-token",
                obj=connection.cluster,
                details={"purpose": purpose, "account": _account(claims), "ends": rfc3339(claims.expires_at)},
            )
    return bool(stored)


def _state(purpose: str, claims: TokenClaims, failure: Message = Message("")) -> StoredToken:  # noqa: B008  (immutable)
    return StoredToken(purpose, _account(claims), rfc3339(claims.expires_at), failure)


def _account(claims: TokenClaims) -> str:
    return f"{claims.namespace}/{claims.account}"
