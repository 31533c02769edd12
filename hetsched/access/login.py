"""Password login with limits on guessing.

If an account were locked after some failures, any client could lock out its owner. With a limit by address alone, a
thousand machines could guess the password of one account. Attempts are therefore counted for 15 minutes per account and
address (limit 10), per account (100) and per address (100, see `addresses.py`). Above a limit, the password is not
checked. An attempt is counted before its password is checked, so that concurrent attempts are all counted. If the
password is correct, the attempt is subtracted again. A browser that has signed in to an account before has a signed
cookie for the account, and its attempts have a separate counter (limit 10), so guesses from other machines never lock
out the owner. The response is the same for a wrong name, a wrong password and an exceeded limit. The counters are in
the database, so all processes share them.
Source: OWASP, "Slow Down Online Guessing Attacks with Device Cookies".
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.crypto import get_random_string

from hetsched.storage.write_lock import write_transaction

from .addresses import address_key
from .models import LoginFailure

WINDOW = timedelta(minutes=15)
DEVICE_LIFETIME = timedelta(days=180)
_SALT = "hetsched.access.login.device"
log = structlog.get_logger(__name__)


class RateLimitedBackend(ModelBackend):
    """Authentication backend that checks a password only while the attempts are below all limits."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> Any:
        if request is None or username is None:
            return super().authenticate(request, username=username, password=password, **kwargs)
        if not settings.HETSCHED_PASSWORDS:
            raise PermissionDenied
        limits = _limits(request, username)
        if not _count_attempt(limits, timezone.now()):
            log.warning("login.braked", username=username[:150])
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **kwargs)
        if user is None:
            log.warning("login.failed", username=username[:150])
        else:
            _uncount_attempt(limits)
        return user


def set_device_cookie(response: HttpResponse, request: HttpRequest, username: str) -> None:
    """Set the device cookie of an account after a sign-in."""
    if _device(request, _account(username)):
        return
    value = signing.dumps([_account(username), get_random_string(16)], salt=_SALT)
    response.set_cookie(
        settings.HETSCHED_DEVICE_COOKIE_NAME,
        value,
        max_age=DEVICE_LIFETIME,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def delete_expired_failures(now: datetime) -> None:
    """Delete the counters whose window has ended."""
    LoginFailure.objects.filter(window_ends_at__lt=now).delete()


def _account(username: str) -> str:
    return username.lower()[:150]  # truncate last: lowercasing may lengthen a text


def _device(request: HttpRequest, account: str) -> str:
    """Return the device name from the cookie if the browser has signed in to this account before, else ""."""
    try:
        known, device = signing.loads(
            request.COOKIES.get(settings.HETSCHED_DEVICE_COOKIE_NAME, ""), salt=_SALT, max_age=DEVICE_LIFETIME
        )
    except (signing.BadSignature, ValueError, TypeError):
        return ""
    return str(device) if known == account else ""


def _limits(request: HttpRequest, username: str) -> dict[str, int]:
    account, address = _account(username), address_key(request)
    if device := _device(request, account):
        return {f"device {device}": 10}
    return {f"{account}@{address}": 10, f"account {account}": 100, f"address {address}": 100}


def _count_attempt(limits: dict[str, int], now: datetime) -> bool:
    """Count an attempt under each key; count none and return False if a key is at its limit."""
    fresh = {"count": 0, "window_ends_at": now + WINDOW}
    with write_transaction():
        for key in sorted(limits):
            LoginFailure.objects.get_or_create(key=key, defaults=fresh)
            LoginFailure.objects.filter(key=key, window_ends_at__lte=now).update(**fresh)
            if not LoginFailure.objects.filter(key=key, count__lt=limits[key]).update(count=F("count") + 1):
                transaction.set_rollback(True)
                return False
    return True


def _uncount_attempt(limits: dict[str, int]) -> None:
    for key in sorted(limits):
        LoginFailure.objects.filter(key=key, count__gt=0).update(count=F("count") - 1)
