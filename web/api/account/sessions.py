"""`sessions/`: list the browser sessions of a user, and end one or all of them.

Users see and end their own sessions. An administrator can name another user in `account`. The key of a session is never
returned: a prefix of its digest identifies it. The live sockets of an ended session close within seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.models import BrowserSession
from hetsched.access.roles import Action
from hetsched.access.sessions import end_sessions, sessions_of
from hetsched.access.subject import Subject

from .. import bodies
from ..documents import Document, Request, Rows, page_of
from ..problems import RequestRefused, not_found
from ..views import ApiView, answer


class SessionEnd(Request, frozen=True):
    """Session to end by `id`; without an `id`, all sessions except the current one. `account` names another user."""

    reason: str = ""
    id: str = ""
    account: str = ""


class SessionDetail(Document, frozen=True):
    """A signed-in browser; `current` is true for the session that sent the request."""

    id: str
    current: bool
    started_at: datetime | None
    seen_at: datetime
    ends_at: datetime
    address: str
    browser: str


class SessionsEnded(Document, frozen=True):
    """Number of ended sessions."""

    ended: int


class SessionsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {"account": "Only sessions of this account; administrators only."}

    @extend_schema(responses=page_of(SessionDetail))
    def get(self, request: Any) -> HttpResponse:
        """List the sessions of the caller or of `account`, the most recently used first."""
        user = requested_account(self.subject, request.GET.get("account", ""))
        here = current_digest(request)
        return answer(request, Rows([detail(row, here) for row in sessions_of(user)], None))


class SessionEndView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}

    @extend_schema(request=SessionEnd, responses=SessionsEnded)
    def post(self, request: Any) -> HttpResponse:
        """End a session, all sessions except the current one, or all sessions of another account."""
        asked = bodies.read(request, SessionEnd)
        user = requested_account(self.subject, asked.account)
        but = "" if asked.id else current_digest(request)
        ended = end_sessions(user, actor=self.subject, name=asked.id[:40], but=but, reason=asked.reason[:2000])
        return answer(request, SessionsEnded(ended))


def requested_account(subject: Subject, account: str) -> Any:
    """Return the requested account, by default the caller's. Raises: RequestRefused 403 or 404."""
    if not account or account == subject.user.get_username():
        return subject.user
    if not subject.may(Action.ADMIN):
        raise RequestRefused(403, "PermissionDenied", "only administrators may see the sessions of other accounts")
    found = get_user_model().objects.filter(username=account).first() if "\0" not in account else None
    if found is None:
        raise not_found("account", account, "Check the name of the account")
    return found


def current_digest(request: Any) -> str:
    """Return the digest of the request's session key, or an empty text if the request has no browser session."""
    row: BrowserSession | None = (
        getattr(request.session, "row", None) if getattr(request, "auth", None) is None else None
    )
    return row.pk if row is not None else ""


def detail(row: BrowserSession, here: str) -> SessionDetail:
    """Return the public fields of a session; it is the current session if its digest is `here`."""
    return SessionDetail(
        row.name, row.pk == here, row.started_at, row.seen_at, row.expire_date, row.address, row.browser
    )


routes = [path("sessions/", SessionsView.as_view()), path("sessions/end/", SessionEndView.as_view())]
