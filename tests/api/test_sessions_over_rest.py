"""Sessions over REST: users list and end their own; administrators end those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from hetsched.access.models import BrowserSession

from .conftest import Api

END = "/api/v1/sessions/end/"


def browser(user: User, name: str) -> Client:
    client = Client(headers={"user-agent": name}, raise_request_exception=False)
    # Through the page, so that the session has its origin.
    assert client.post("/login/", {"username": user.username, "password": "a long enough password"}).status_code == 302
    return client


def end(client: Client, **asked: Any) -> Any:
    return client.post(END, asked, content_type="application/json")


def test_sessions_are_listed_with_origin_and_can_be_ended(person: Callable[..., User]) -> None:
    ada = person("ada", "viewer")
    desk, phone = browser(ada, "Desk 1.0"), browser(ada, "Phone 2.0")
    items = {row["browser"]: row for row in desk.get("/api/v1/sessions/").json()["items"]}
    assert {name: row["current"] for name, row in items.items()} == {"Desk 1.0": True, "Phone 2.0": False}
    assert items["Desk 1.0"]["address"] == "127.0.0.1"
    assert end(desk, reason="lost it").json() == {"ended": 1}
    assert (desk.get("/api/v1/plugins/").status_code, phone.get("/api/v1/plugins/").status_code) == (200, 401)
    assert end(desk, id=items["Desk 1.0"]["id"]).json() == {"ended": 1}
    assert desk.get("/api/v1/plugins/").status_code == 401


def test_missing_or_foreign_session_is_rejected(person: Callable[..., User], api: Callable[..., Api]) -> None:
    ada, root = person("ada", "viewer"), person("root", superuser=True)
    desk, admin = browser(ada, "Desk"), browser(root, "Desk")
    for asked, status, code in (
        ({"id": "0" * 16}, 400, "SessionUnknown"),
        ({"id": BrowserSession.objects.get(account=ada).name[:3]}, 400, "SessionUnknown"),  # how several may begin
        ({"account": "root"}, 403, "PermissionDenied"),
        ({"more": 1}, 400, "BodyInvalid"),
    ):
        answer = end(desk, **asked)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert end(admin, account="absent").status_code == 404
    assert api("viewer").get("sessions/")["items"] == []
    assert end(admin, account="ada", reason="left the team").json() == {"ended": 1}
    assert desk.get("/api/v1/plugins/").status_code == 401
