"""Create, resolve and revoke tokens.

A token is 256 random bits behind the prefix `hs_`, valid for 90 days by default. The row stores HMAC-SHA-256 under a
key derived from SECRET_KEY, so write access to the rows is not enough to forge a token. Without SECRET_KEY, the row
stores plain SHA-512. After SECRET_KEY has been set, tokens with such rows are refused, because anyone with write access
could have forged them, and must be created again. A lookup costs one indexed query and a constant-time comparison, also
for an unknown token, and writes the last-used time at most once a minute. Tokens are looked up at every request, so a
revoked token is refused at the next request, in every process.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import structlog
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import timezone
from knox.crypto import hash_token
from knox.settings import CONSTANTS

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allowance import UNLIMITED, Allowance, amounts, read_quota
from hetsched.journal import audit
from hetsched.storage.hot_statements import TOKENS
from hetsched.storage.sealed_secrets import derived
from hetsched.storage.write_lock import write_transaction

from .models import Token
from .roles import MAY, Action, Role
from .subject import Subject

log = structlog.get_logger(__name__)

LIFETIME = timedelta(days=90)
_PLAINTEXT = re.compile(r"hs_[0-9a-f]{64}")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def create_token(
    *,
    role: str,
    name: str,
    user: Any = None,
    namespaces: Sequence[str] = (),
    cluster: str = "",
    node: str = "",
    lifetime: timedelta = LIFETIME,
    most_priority: int | None = None,
    submits_per_minute: int | None = None,
    quota: Mapping[str, str] | None = None,
    actor: Subject | None = None,
    reason: str = "",
) -> tuple[Token, str]:
    """Create a token and return it with its plaintext, which cannot be retrieved again.

    Without `user`, the token belongs to a service account of its role, which cannot log in. `actor` is None if an
    operator of this machine uses the command line; any other actor needs the action `admin`. An agent's token requires
    the `cluster` and `node` that the agent reports; other tokens must not have them. `most_priority`,
    `submits_per_minute` and `quota` (a resource list) limit the submissions with this token. The default of
    `most_priority` for a token with namespaces is 0.
    Raises: InputError `RoleUnknown`, `NamespaceInvalid`, `NodeInvalid`, `TokenLifetimeInvalid`, `TokenBoundInvalid`,
    `QuotaInvalid`, `PermissionDenied`.
    """
    if role not in set(Role):
        hint = Message("Known: {text}", text=", ".join(Role))
        raise InputError("RoleUnknown", Message("{role} is not a valid role", role=repr(role)), place="role", hint=hint)
    limited_to = check_namespaces(list(namespaces))
    check_binding(role, cluster, node)
    bounds = check_bounds(role, most_priority, submits_per_minute, quota or {})
    if not timedelta(0) < lifetime <= LIFETIME:
        message = Message("the lifetime of a token is at most {n} days", n=LIFETIME.days)
        raise InputError("TokenLifetimeInvalid", message, place="lifetime")
    if actor is not None and not actor.may(Action.ADMIN):
        raise InputError("PermissionDenied", "creating tokens requires the right 'admin'", place="actor")
    with write_transaction():
        owner = user or service_account(Role(role))
        plaintext = f"hs_{secrets.token_hex(32)}"
        token = Token(
            digest=digest_of(plaintext), token_key=plaintext[: CONSTANTS.TOKEN_KEY_LENGTH], ending=plaintext[-4:],
            user=owner, expiry=timezone.now() + lifetime, name=name or role, role=role, namespaces=limited_to,
            cluster=cluster, node=node, **bounds,
        )  # fmt: skip
        token.save(force_insert=True)
        _record(actor, "token.create", token, reason)
    return token, plaintext


def check_namespaces(namespaces: Any) -> list[str]:
    """Return a sorted list of namespace names without duplicates.

    Raises: InputError `NamespaceInvalid`.
    """
    if not isinstance(namespaces, list):
        raise InputError("NamespaceInvalid", "the value is not a list of names", place="namespaces")
    for name in namespaces:
        if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
            message = Message("{text} is not a valid namespace name", text=repr(str(name)[:80]))
            raise InputError("NamespaceInvalid", message, place="namespaces")
    return sorted(set(namespaces))


def check_binding(role: str, cluster: str, node: str) -> None:
    """Check that an agent's token names a node of a cluster and that other tokens do not.

    Raises: InputError `NodeInvalid`.
    """
    if role != Role.AGENT:
        if cluster or node:
            message = Message("a token for role {role} cannot name a node", role=role)
            raise InputError("NodeInvalid", message, place="node")
        return
    for name, place in ((cluster, "cluster"), (node, "node")):
        if len(name) > 253 or not _NODE.fullmatch(name):
            message = Message("an agent token requires the field {what}", what=place)
            if name:
                message = Message("{text} is not a valid {what} name", text=repr(name[:80]), what=place)
            raise InputError(
                "NodeInvalid", message, place=place, hint="An agent token belongs to one node of one cluster"
            )


def check_bounds(role: str, most_priority: Any, submits_per_minute: Any, quota: Any) -> dict[str, Any]:
    """Check the limits of a token's submissions, and return the column values to store.

    Raises: InputError `TokenBoundInvalid`, `QuotaInvalid`.
    """
    for value, range_, place in (
        (most_priority, range(-(2**31), 2**31), "mostPriority"),
        (submits_per_minute, range(1_000_001), "submitsPerMinute"),
    ):
        if value is not None and value not in range_:
            message = Message(
                "the value is not a whole number from {low} to {high}", low=range_.start, high=range_.stop - 1
            )
            raise InputError("TokenBoundInvalid", message, place=place)
    bounds = {"most_priority": most_priority, "submits_per_minute": submits_per_minute, "quota": read_quota(quota)}
    if any(value not in (None, {}) for value in bounds.values()) and Action.SUBMIT not in MAY[Role(role)]:
        message = Message("a token for role {role} cannot submit workloads", role=role)
        raise InputError("TokenBoundInvalid", message, place="role")
    return bounds


def revoke_token(token: Token, *, actor: Subject | None, reason: str) -> None:
    """Revoke a token immediately."""
    with write_transaction():
        _record(actor, "token.revoke", token, reason)
        token.delete()


def digest_of(plaintext: str) -> str:
    """Return the stored digest of a new token."""
    key = derived("token digest")
    return hash_token(plaintext) if key is None else hmac.new(key, plaintext.encode(), "sha256").hexdigest()


def resolve(plaintext: str) -> Token | None:
    """Return the valid token with this plaintext, with its user loaded, or None if there is none."""
    if not _PLAINTEXT.fullmatch(plaintext):
        return None
    now = timezone.now()
    digest = digest_of(plaintext)
    groups: dict[int, list[str]] = defaultdict(list)
    found: dict[int, Token] = {}
    for row in TOKENS(key=plaintext[: CONSTANTS.TOKEN_KEY_LENGTH]):
        groups[row.pk] += [row.group] if row.group is not None else []
        found[row.pk] = row
    candidates = found.values()
    if not candidates:
        hmac.compare_digest(digest, digest)  # an unknown token must take the same time
    for token in candidates:
        if hmac.compare_digest(token.digest, digest) and token.user.is_active and (token.expiry or now) >= now:
            _note_use(token, now)
            token.user_groups = groups[token.pk]
            return token
        if len(token.digest) != len(digest):
            log.warning(
                "token rejected: SECRET_KEY was set or removed after the token was created",
                token=token.name,
                key=token.token_key,
            )
    return None


def _note_use(token: Token, now: Any) -> None:
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1):
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
        token.last_used_at = now


def service_account(role: str) -> Any:
    """Return the service account of a role, which cannot log in; create it if necessary."""
    users = get_user_model().objects
    account, created = users.get_or_create(username=f"service-{role}")
    if created:
        account.set_unusable_password()
        account.save(update_fields=["password"])
        account.groups.add(Group.objects.get_or_create(name=str(role))[0])
    return account


def bounds_of(token: Token) -> dict[str, Any]:
    """Return the limits that are set on a token, by REST field name."""
    found = {
        "mostPriority": token.most_priority, "submitsPerMinute": token.submits_per_minute, "quota": token.quota
    }  # fmt: skip
    return {name: value for name, value in found.items() if value not in (None, {})}


def allowance_of(token: Token | None) -> Allowance:
    """Return the limits for pods submitted with this token; None means a signed-in user, who has no limits."""
    if token is None:
        return UNLIMITED
    namespaces = frozenset(token.namespaces) if token.namespaces else None
    return Allowance(amounts(token.quota), token.priority_ceiling, namespaces)


def _record(actor: Subject | None, action: str, token: Token, reason: str) -> None:
    audit.record(
        actor=actor.name if actor else "command line",
        role=actor.role if actor else "",
        action=action,
        obj=token,
        reason=reason,
        details={
            "name": token.name,
            "role": token.role,
            "namespaces": token.namespaces,
            "key": token.token_key,
            **({"cluster": token.cluster, "node": token.node} if token.node else {}),
            **bounds_of(token),
        },
    )
