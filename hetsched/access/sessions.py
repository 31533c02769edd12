"""Browser sessions and their lifetime.

The cookie holds the key and the row only its digest, so that a stolen database does not allow signing in. A session
ends at most `HETSCHED_SESSION_HOURS` after its start, and `HETSCHED_SESSION_IDLE_MINUTES` after the last action of its
user (a page view or a write; background requests of an open page are ignored). Signing in begins a new session under a
new key. Changing the password ends all other sessions, as in Django.
Invariant: a session that has ended is never loaded again, even if its row still exists.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.journal import audit
from hetsched.storage.write_lock import write_transaction

from .changes import publish_rights_change
from .models import BrowserSession
from .roles import Action
from .subject import Subject

UPDATE_INTERVAL = timedelta(minutes=1)
_SIGN_IN = "_began"


def digest_of(key: str) -> str:
    """Return the stored digest of a key: 160 bits of its SHA-256."""
    return sha256(f"session {key}".encode()).hexdigest()[:40]


class SessionStore(DatabaseStore):
    """Session store in the database, keyed by the digests of the session keys."""

    row: BrowserSession | None = None

    @classmethod
    def get_model_class(cls) -> type[BrowserSession]:
        return BrowserSession

    def _get_session_from_db(self) -> BrowserSession | None:
        now = timezone.now()
        found = BrowserSession.objects.filter(
            session_key=digest_of(self.session_key or ""),
            expire_date__gt=now,
            seen_at__gt=now - timedelta(minutes=settings.HETSCHED_SESSION_IDLE_MINUTES),
        )
        self.row = found.first()
        if self.row is None:
            self._session_key = None
        return self.row

    def exists(self, session_key: str) -> bool:
        return bool(super().exists(digest_of(session_key)))

    def create_model_instance(self, data: dict[str, Any]) -> BrowserSession:
        session: Any = super().create_model_instance(data)
        session.session_key = digest_of(str(self.session_key))
        sign_in = data.get(_SIGN_IN, {})
        session.account_id = int(data[SESSION_KEY]) if SESSION_KEY in data else None
        session.started_at = datetime.fromisoformat(sign_in["at"]) if sign_in else None
        session.seen_at = timezone.now()
        session.address, session.browser = sign_in.get("address", ""), sign_in.get("browser", "")
        return session

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is None:
            return
        with write_transaction():
            count, _ = BrowserSession.objects.filter(pk=digest_of(key)).delete()
            if count:
                publish_rights_change()


def record_sign_in(request: Any) -> None:
    """Record the time, address and browser of a sign-in, and set the session's expiry."""
    now = timezone.now()
    meta = getattr(request, "META", {})
    request.session[_SIGN_IN] = {
        "at": now.isoformat(),
        "address": str(meta.get("REMOTE_ADDR", ""))[:45],
        "browser": str(meta.get("HTTP_USER_AGENT", ""))[:200].replace("\0", ""),
    }
    request.session.set_expiry(now + timedelta(hours=settings.HETSCHED_SESSION_HOURS))


class LastSeenMiddleware:
    """Middleware that records the time of the last user action of a session, at most once a minute."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        row = getattr(request.session, "row", None)
        now = timezone.now()
        if row is not None and now - row.seen_at > UPDATE_INTERVAL and _is_user_action(request):
            BrowserSession.objects.filter(pk=row.pk).update(seen_at=now)
        return response


def _is_user_action(request: HttpRequest) -> bool:
    return request.method not in ("GET", "HEAD") or request.headers.get("Sec-Fetch-Dest", "document") != "empty"


def sessions_of(user: Any) -> list[BrowserSession]:
    """Return the active sessions of a user, the most recently used first."""
    now = timezone.now()
    idle = now - timedelta(minutes=settings.HETSCHED_SESSION_IDLE_MINUTES)
    rows = BrowserSession.objects.filter(account=user, expire_date__gt=now, seen_at__gt=idle)
    return list(rows.order_by("-seen_at", "session_key"))


def end_sessions(user: Any, *, actor: Subject, name: str = "", but: str = "", reason: str = "") -> int:
    """End one named session of a user, or all except `but`; return the number of ended sessions.

    Users may end their own sessions, and administrators may end the sessions of every user.
    Raises: InputError `PermissionDenied`, `SessionUnknown`.
    """
    own = actor.token is None and actor.user.pk == user.pk
    if not own and not actor.may(Action.ADMIN):
        raise InputError(
            "PermissionDenied", "only administrators may end the sessions of other accounts", place="account"
        )
    rows = BrowserSession.objects.filter(account=user).exclude(pk=but)
    with write_transaction():
        ended = [row for row in rows if not name or row.name == name]
        if name and not ended:
            raise InputError("SessionUnknown", "the session does not exist or has ended", place="id")
        BrowserSession.objects.filter(pk__in=[row.pk for row in ended]).delete()
        if ended:
            publish_rights_change()
            audit.record(
                actor=actor.name,
                role=actor.role,
                action="session.end",
                obj=("account", user.get_username()),
                reason=reason,
                details={"sessions": len(ended)},
            )
    return len(ended)


def delete_ended_sessions(now: datetime) -> None:
    """Delete the rows of ended sessions, which no socket can still be using."""
    idle = now - timedelta(minutes=settings.HETSCHED_SESSION_IDLE_MINUTES)
    for over in (BrowserSession.objects.filter(expire_date__lt=now), BrowserSession.objects.filter(seen_at__lt=idle)):
        over.delete()
