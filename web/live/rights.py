"""Authenticate sockets and check their permissions.

A socket is authenticated by the token in its subprotocol `bearer.<token>`, or else by the session cookie of its
handshake. Every check looks up the credential again, so a revoked token, a logout or a changed role closes the socket
at the next check. A socket may subscribe to everything that its credential may read through REST. For a token limited
to namespaces, these are clusters, policies and the workloads of its namespaces.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from django.utils import timezone, translation

from hetsched.access.changes import TOPIC
from hetsched.access.models import Token
from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.access.tokens import resolve
from hetsched.journal.publish import revision_of
from hetsched.placement.queries.topics import unknown_topic

from .database import QueryBatcher

BEARER = "bearer."


class SocketCredential(msgspec.Struct, frozen=True):
    """The credential of a socket; a token is referenced by its row, never by its plaintext."""

    token_id: str = ""
    session_key: str = ""


class HandshakeCredentials(msgspec.Struct, frozen=True):
    """The credential in a handshake: the plaintext of a token, or a session key."""

    plaintext: str = ""
    session_key: str = ""


class SubjectLookup(msgspec.Struct, frozen=True):
    """Result of a lookup: the subject (None if the credential is not valid), and the revision of the topic `access`
    before the lookup.
    """

    held: SocketCredential
    subject: Subject | None
    number: int


class Denied(msgspec.Struct, frozen=True):
    """The reason why a topic is denied."""

    code: str
    detail: str
    hint: str


def read_credentials(scope: Any) -> HandshakeCredentials:
    """Return the credential of the handshake; a token takes precedence over a cookie."""
    for name in scope.get("subprotocols", ()):
        if name.startswith(BEARER):
            return HandshakeCredentials(plaintext=name.removeprefix(BEARER))
    return HandshakeCredentials(session_key=scope.get("cookies", {}).get(settings.SESSION_COOKIE_NAME, ""))


def language_of(scope: Any) -> str:
    """Return the language of a socket: English for a token, else the language that LocaleMiddleware would choose."""
    if read_credentials(scope).plaintext:
        return "en"
    accepted = dict(scope.get("headers", ())).get(b"accept-language", b"").decode("latin-1")
    request = SimpleNamespace(COOKIES=scope.get("cookies", {}), META={"HTTP_ACCEPT_LANGUAGE": accepted})
    return translation.get_language_from_request(cast(HttpRequest, request))


@QueryBatcher
def look_up_subject(came_with: HandshakeCredentials) -> SubjectLookup:
    """Look up the subject of a handshake. No other function reads a token's plaintext."""
    number = revision_of(TOPIC)
    if not came_with.plaintext:
        credential = SocketCredential(session_key=came_with.session_key)
        return SubjectLookup(credential, current_subject(credential), number)
    token = resolve(came_with.plaintext)
    if token is None:
        return SubjectLookup(SocketCredential(), None, number)
    return SubjectLookup(SocketCredential(token_id=str(token.pk)), Subject(token.user, token), number)


@QueryBatcher
def refresh_subject(credential: SocketCredential) -> SubjectLookup:
    """Look up the subject of a credential again, with the current revision of the topic `access`."""
    number = revision_of(TOPIC)
    return SubjectLookup(credential, current_subject(credential), number)


def current_subject(credential: SocketCredential) -> Subject | None:
    """Return the subject of a credential (user, and token if any), or None if the credential is no longer valid."""
    if credential.token_id:
        token = Token.objects.select_related("user").filter(pk=credential.token_id).first()
        if token is None or not token.user.is_active or (token.expiry and token.expiry < timezone.now()):
            return None
        return Subject(token.user, token)
    if credential.session_key:
        session = import_module(settings.SESSION_ENGINE).SessionStore(credential.session_key)
        user = get_user(cast(HttpRequest, SimpleNamespace(session=session)))
        return Subject(user) if user.is_authenticated and user.is_active else None
    return None


def denial_of_kind(subject: Subject, topic: str) -> Denied | None:
    """Return the reason why all topics of a kind are denied, which reveals nothing about the topic, or None."""
    if not subject.may(Action.VIEW):
        return Denied(
            "PermissionDenied", "a subscription needs the right 'view'", "Ask an administrator for the role viewer"
        )
    if subject.namespaces is None or topic.partition(":")[0] in ("cluster", "watch", "policies", "workload"):
        return None
    return Denied(
        "PermissionDenied",
        "this token is limited to its namespaces",
        "Subscribe to cluster:<name>, watch:<name>, policies or workload:<id>, or use a token without namespaces",
    )


def denial_of(subject: Subject, topic: str, namespaces: frozenset[str]) -> Denied | None:
    """Return the reason why a topic is denied, or None if it is permitted.

    For the topic of a workload, `namespaces` are the namespaces of its pods and objects.
    """
    denied = denial_of_kind(subject, topic)
    if denied is not None or subject.namespaces is None or not topic.startswith("workload:"):
        return denied
    if namespaces and namespaces <= subject.namespaces:
        return None
    unknown = unknown_topic(topic)  # as in REST, a workload in other namespaces is reported as unknown
    return Denied(unknown.code, unknown.message, unknown.hint)
