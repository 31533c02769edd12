"""Sessions are stored as digests, expire by time, and are ended by their user or by administrators only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hetsched.access.changes import TOPIC
from hetsched.access.models import BrowserSession
from hetsched.access.sessions import delete_ended_sessions, end_sessions, sessions_of
from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token
from hetsched.contracts.errors import InputError
from hetsched.journal.models import AuditEntry, Topic

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"
PAGE = "/api/v1/plugins/"


def browser(name: str = "ada") -> Client:
    client = Client(headers={"user-agent": "Browser 1.0"})
    assert client.login(username=name, password=PASSWORD)
    return client


def is_in(client: Client, **headers: str) -> bool:
    return bool(client.get(PAGE, headers=headers).status_code == 200)


def after(**time: float) -> Any:
    return time_machine.travel(timezone.now() + timedelta(**time))


def test_database_contains_no_session_key(person: Any) -> None:
    person("ada", "viewer")
    client = browser()
    cookie = client.cookies["hetsched"].value
    row = BrowserSession.objects.get()
    assert cookie not in str(row.__dict__)
    thief = Client()
    thief.cookies["hetsched"] = row.session_key
    assert (is_in(client), is_in(thief)) == (True, False)


def test_idle_session_expires(person: Any, settings: Any) -> None:
    settings.HETSCHED_SESSION_IDLE_MINUTES = 30
    person("ada", "viewer")
    client = browser()
    with after(minutes=29):
        assert is_in(client)
    with after(minutes=58):
        assert is_in(client)
    with after(minutes=58 + 31):
        assert not is_in(client)


def test_background_requests_do_not_extend_a_session(person: Any, settings: Any) -> None:
    settings.HETSCHED_SESSION_IDLE_MINUTES = 30
    person("ada", "viewer")
    client = browser()
    with after(minutes=20):
        assert is_in(client, **{"sec-fetch-dest": "empty"})
    with after(minutes=40):
        assert not is_in(client, **{"sec-fetch-dest": "empty"})


def test_busy_session_expires_too(person: Any, settings: Any) -> None:
    settings.HETSCHED_SESSION_HOURS, settings.HETSCHED_SESSION_IDLE_MINUTES = 2, 90
    person("ada", "viewer")
    client = browser()
    for minutes in (60, 119):
        with after(minutes=minutes):
            assert is_in(client)
            session = client.session
            session["changed"] = minutes
            session.save()
    with after(minutes=121):
        assert not is_in(client)


def test_session_key_is_replaced_at_sign_in(person: Any) -> None:
    person("ada", "viewer")
    client = Client()
    session = client.session
    session["x"] = 1
    session.save()
    before = session.session_key
    client.cookies["hetsched"] = before
    assert client.login(username="ada", password=PASSWORD)
    thief = Client()
    thief.cookies["hetsched"] = before
    assert not is_in(thief)


def test_user_lists_and_ends_own_sessions(person: Any) -> None:
    ada = person("ada", "viewer")
    phone, desk, here = (browser() for _ in range(3))
    rows = sessions_of(ada)
    assert [(row.address, row.browser) for row in rows] == [("", "")] * 3  # the test's login makes no request
    mine = here.session.row.pk if here.session.row else ""
    (first, *_rest) = [row for row in rows if row.pk != mine]
    assert end_sessions(ada, actor=Subject(ada), name=first.name) == 1
    assert sum(map(is_in, (phone, desk, here))) == 2
    assert end_sessions(ada, actor=Subject(ada), reason="lost a phone") == 2
    assert not any(map(is_in, (phone, desk, here)))
    assert AuditEntry.objects.filter(action="session.end").count() == 2


def test_password_change_ends_all_sessions(person: Any) -> None:
    ada = person("ada", "viewer")
    client = browser()
    ada.set_password("another long password")
    ada.save()
    assert not is_in(client)


def test_only_administrators_end_sessions_of_others(person: Any) -> None:
    ada, bob, root = person("ada", "viewer"), person("bob", "operator"), person("root", superuser=True)
    client = browser()
    token, _plaintext = create_token(role="viewer", name="ada's", user=ada)
    for actor in (Subject(bob), Subject(ada, token)):
        with pytest.raises(InputError, match="PermissionDenied"):
            end_sessions(ada, actor=actor)
    assert is_in(client)
    assert end_sessions(ada, actor=Subject(root)) == 1
    assert not is_in(client)


def test_rows_of_expired_sessions_are_deleted(person: Any, settings: Any) -> None:
    person("ada", "viewer")
    browser()
    delete_ended_sessions(timezone.now())
    assert BrowserSession.objects.count() == 1
    browser()
    later = timezone.now() + timedelta(minutes=settings.HETSCHED_SESSION_IDLE_MINUTES + 1)
    with CaptureQueriesContext(connection) as asked:
        delete_ended_sessions(later)
    assert [query["sql"].split()[0] for query in asked.captured_queries] == ["DELETE", "DELETE"]
    assert not BrowserSession.objects.exists()


@pytest.mark.parametrize("end", ["log out", "end the session", "log in again"])
def test_sockets_check_their_rights_again_when_a_session_ends(end: str, person: Any) -> None:
    ada = person("ada", "viewer")
    client = browser()
    before = revision()
    if end == "log out":
        client.post("/logout/")
    elif end == "end the session":
        end_sessions(ada, actor=Subject(ada))
    else:
        client.session.cycle_key()
    assert revision() == before + 1


def revision() -> int:
    """Return the revision of the topic that sockets follow for permission changes."""
    found: int = Topic.objects.values_list("revision", flat=True).get(name=TOPIC)
    return found
