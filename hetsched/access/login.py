"""Password login with a brake on guessing.

Rule: failures are counted for 15 minutes per account and address (10), per account (100) and per address (100); over a
limit the password is not even looked at. The counters live in the database, so every process shares them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import HttpRequest
from django.utils import timezone

from .models import LoginFailure

WINDOW = timedelta(minutes=15)
log = structlog.get_logger(__name__)


class BrakedBackend(ModelBackend):
    """Check a password unless too many were wrong lately."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> Any:
        if request is None or username is None:
            return super().authenticate(request, username=username, password=password, **kwargs)
        limits = _limits(username, request.META.get("REMOTE_ADDR", ""))
        now = timezone.now()
        counted = LoginFailure.objects.filter(key__in=limits, window_ends_at__gt=now).values_list("key", "count")
        if any(count >= limits[key] for key, count in counted):
            log.warning("login.braked", username=username)
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **kwargs)
        if user is None:
            log.warning("login.failed", username=username)
            for key in limits:
                _count_failure(key, now)
        return user


def forget_failures(now: datetime) -> None:
    """Delete the counters whose time is over."""
    LoginFailure.objects.filter(window_ends_at__lt=now).delete()


def _limits(username: str, address: str) -> dict[str, int]:
    account = username.lower()[:150]  # in this order: a lower-case text may be the longer one
    return {f"{account}@{address}": 10, f"account {account}": 100, f"address {address}": 100}


def _count_failure(key: str, now: Any) -> None:
    if not LoginFailure.objects.filter(key=key, window_ends_at__gt=now).update(count=F("count") + 1):
        LoginFailure.objects.update_or_create(key=key, defaults={"count": 1, "window_ends_at": now + WINDOW})
