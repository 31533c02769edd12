"""Fixtures for tests of pages.

The broker (no worker runs) and the channel layer (in this process) are faked. The tests check the content of pages by
user, and their cost, but not scripts, which a real browser runs (`tests/browser`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from hetsched.inventory.models import Cluster
from hetsched.placement import dispatch
from tests.builders import a_node
from tests.situations import a_cluster


@pytest.fixture(autouse=True)
def local_messages(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    task = SimpleNamespace(apply_async=lambda **_: None)
    monkeypatch.setattr(dispatch, "current_app", SimpleNamespace(signature=lambda *_, **__: task))


@pytest.fixture
def browsing(db: Any) -> Callable[..., Client]:
    """Return a factory of logged-in clients by group; a failing page responds as in production."""

    def make(*groups: str, **facts: Any) -> Client:
        user = User.objects.create_user(f"user-{User.objects.count()}", password="a long enough password", **facts)
        user.groups.set(Group.objects.filter(name__in=groups))
        client = Client(raise_request_exception=False)
        client.force_login(user)
        return client

    return make


@pytest.fixture
def viewer(browsing: Callable[..., Client]) -> Client:
    return browsing("viewer")


@pytest.fixture
def cluster(db: Any) -> Cluster:
    """Return the cluster `fleet`: n1 with two GPUs and a known ISA, and n2, which reports only its capacity."""
    n1 = a_node("n1").isa("x86-64-v3+aes").gpus(2)
    n2 = a_node("n2").isa(None).having(labels={})
    return a_cluster(n1, n2)
