"""Faked here: the broker (wake-ups are noted) and the channel layer (in this process).

Checked here: rows, events, conflicts and forms. Not tested here: what the engine decides, real processes.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from hetsched.placement import dispatch
from hetsched.policies.actions import ensure_builtins

IN_THIS_PROCESS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Bring the built-in policies in once; a test that empties the database gets them with its first cluster."""
    with django_db_blocker.unblock(), override_settings(CHANNEL_LAYERS=IN_THIS_PROCESS):
        ensure_builtins()


@pytest.fixture(autouse=True)
def woken(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """Return the wake-ups that were sent, as (task, arguments)."""
    settings.CHANNEL_LAYERS = IN_THIS_PROCESS
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    sent: list[tuple[str, list[int]]] = []

    class Broker:
        def signature(self, task: str, args: list[int]) -> Broker:
            sent.append((task, args))
            return self

        def apply_async(self, queue: str) -> None:
            pass

    monkeypatch.setattr(dispatch, "current_app", Broker())
    return sent
