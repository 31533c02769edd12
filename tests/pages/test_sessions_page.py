"""Users see their own sessions and end them there."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from hetsched.access.models import BrowserSession
from tests.pages.test_node_agent_reports import words
from web.pages.account.sessions import device

PASSWORD = "a long enough password"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
CHROME = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"


@pytest.fixture
def enter(db: None) -> Callable[[str, str], Client]:
    """Return a function that logs a user in with a new browser."""
    viewers = Group.objects.get_or_create(name="viewer")[0]

    def sign_in(name: str, browser: str) -> Client:
        if not User.objects.filter(username=name).exists():
            User.objects.create_user(name, password=PASSWORD).groups.add(viewers)
        client = Client(headers={"user-agent": browser})
        assert client.post("/login/", {"username": name, "password": PASSWORD}).status_code == 302
        return client

    return sign_in


def test_only_own_sessions_are_listed(enter: Callable[[str, str], Client]) -> None:
    enter("bob", "Bob's browser")
    desk, _other = enter("ada", FIREFOX), enter("ada", "<script>alert(1)</script>")
    shown = words(desk, "/sessions/")
    assert f"Firefox on Linux this session {FIREFOX} 127.0.0.1" in shown
    assert "<script>alert(1)</script> 127.0.0.1" in shown
    page = desk.get("/sessions/").content.decode()
    assert "<script>alert" not in page
    assert "Bob" not in shown
    rows = {row.browser: row for row in BrowserSession.objects.filter(account__username="ada")}
    ends = [f'{{"id":"{row.name}"}}' in unescape(page) for row in (rows[FIREFOX], rows["<script>alert(1)</script>"])]
    assert ends == [False, True]  # the menu logs out of this one
    assert not any(row.pk in page for row in rows.values())  # the digest is never shown whole


def test_missing_session_cannot_be_ended(enter: Callable[[str, str], Client]) -> None:
    desk = enter("ada", FIREFOX)
    assert "End all other sessions" not in words(desk, "/sessions/")
    enter("ada", CHROME)
    assert "End all other sessions" in words(desk, "/sessions/")


@pytest.mark.parametrize(
    ("user_agent", "short"), [(FIREFOX, "Firefox on Linux"), (CHROME, "Chrome on Windows"), ("curl/8.0", ""), ("", "")]
)
def test_browser_name_is_shortened(user_agent: str, short: str) -> None:
    assert device(user_agent) == short
