"""Fixtures for tests of the Django apps.

The broker (wake-ups are recorded) and the channel layer (in this process) are faked. The tests check rows, events,
conflicts and forms, but not the engine's decisions or real processes.
"""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.placement import dispatch
from tests.builtins import builtin_policies

IN_THIS_PROCESS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.fixture
def builtins(db: None) -> None:
    """Create the built-in policies, for tests that do not use `a_cluster`."""
    builtin_policies()


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

        def apply_async(self, queue: str, ignore_result: bool, retry: bool) -> None:
            pass

    monkeypatch.setattr(dispatch, "current_app", Broker())
    return sent
