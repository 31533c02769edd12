"""Sockets are closed soon after a token is revoked, a session ends or a role changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from hetsched.access.models import BrowserSession, Token
from hetsched.access.sessions import end_sessions
from hetsched.access.subject import Subject
from hetsched.access.tokens import revoke_token
from web.live import sockets

from .conftest import PATIENCE_SECONDS, hold_topic_openings, in_thread

pytestmark = pytest.mark.django_db(transaction=True)
OURS = "http://testserver"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 0.05)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: Token.objects.all().delete(), 4401),
        (lambda: Token.objects.update(expiry="2020-01-01T00:00:00Z"), 4401),
        (lambda: User.objects.update(is_active=False), 4401),
        (lambda: Token.objects.update(role="agent"), 4403),
    ],
    ids=["revoked", "expired", "account closed", "other role"],
)
async def test_revoked_token_is_disconnected(
    viewers: Any, token: Any, cluster: Any, change: Callable[[], Any], code: int
) -> None:
    viewer = viewers(token=await in_thread(token)("viewer"))
    assert await viewer.connect()
    await viewer.listen("cluster:lab")
    await in_thread(change)()
    assert await viewer.closed() == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: BrowserSession.objects.all().delete(), 4401),
        (lambda: User.objects.get().groups.set([]), 4403),
        (lambda: _new_password(User.objects.get()), 4401),
    ],
    ids=["logged out", "left the group", "new password"],
)
async def test_user_without_the_right_is_disconnected(
    viewers: Any, cookie: Any, change: Callable[[], Any], code: int
) -> None:
    viewer = viewers(cookie=await in_thread(cookie)("ada", "viewer"), origin=OURS)
    assert await viewer.connect()
    await in_thread(change)()
    assert await viewer.closed() == code


def _new_password(user: User) -> None:
    user.set_password("another long password")
    user.save()


async def test_token_that_was_limited_keeps_its_remaining_topics(viewers: Any, token: Any, cluster: Any) -> None:
    viewer = viewers(token=await in_thread(token)("viewer"))
    assert await viewer.connect()
    await viewer.listen("cluster:lab", "decisions")
    await in_thread(lambda: Token.objects.update(namespaces=["team"]))()
    messages = [await viewer.receive(), await viewer.receive()]
    assert {(message["topic"], message["type"]) for message in messages} == {
        ("decisions", "error"),
        ("cluster:lab", "snapshot"),
    }


async def test_topic_that_is_denied_while_it_is_opened_is_not_sent(
    viewers: Any, token: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = hold_topic_openings(monkeypatch)
    viewer = viewers(token=await in_thread(token)("viewer"))
    assert await viewer.connect()
    await viewer.listen("cluster:lab")
    await viewer.send("subscribe", "node:lab/n1")
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        await in_thread(lambda: Token.objects.update(namespaces=["team"]))()
        assert (await viewer.receive())["topic"] == "cluster:lab"  # the socket subscribes again with the new rights
    finally:
        ended.set()
    message = await viewer.receive()
    assert (message["topic"], message["type"]) == ("node:lab/n1", "error")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: revoke_token(Token.objects.get(), actor=None, reason="leaked"), 4401),
        (lambda: _left(Token.objects.get().user), 4403),
        (lambda: _closed(Token.objects.get().user), 4401),
    ],
    ids=["revoked", "left the group", "account closed"],
)
async def test_permission_change_closes_sockets_before_the_periodic_check(
    viewers: Any, token: Any, cluster: Any, change: Callable[[], Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 3600)
    viewer = viewers(token=await in_thread(token)("viewer"))
    assert await viewer.connect()
    await viewer.listen("cluster:lab")
    await in_thread(change)()
    assert await viewer.closed() == code


async def test_ended_session_closes_its_sockets(
    viewers: Any, cookie: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 3600)
    viewer = viewers(cookie=await in_thread(cookie)("ada", "viewer"), origin=OURS)
    assert await viewer.connect()
    await viewer.listen("cluster:lab")
    await in_thread(lambda: _signed_out(User.objects.get()))()
    assert await viewer.closed() == 4401


def _left(user: User) -> None:
    user.groups.clear()


def _closed(user: User) -> None:
    user.is_active = False
    user.save()


def _signed_out(user: User) -> None:
    assert end_sessions(user, actor=Subject(user)) == 1
