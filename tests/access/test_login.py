"""The login page and its limits on password guessing."""

import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from hetsched.access.models import LoginFailure
from hetsched.access.tokens import service_account

PASSWORD = "a long enough password"
pytestmark = pytest.mark.django_db


def attempt(client: Client, password: str, name: str = "ada", address: str = "192.0.2.1") -> bool:
    answer = client.post("/login/", {"username": name, "password": password}, REMOTE_ADDR=address)
    return bool(answer.status_code == 302)


def test_right_password(client: Client, person: Any) -> None:
    person("ada")
    assert attempt(client, PASSWORD)


def test_admin_login_leads_here(client: Client) -> None:
    assert client.get("/admin/login/?next=/admin/").headers["Location"] == "/login/?next=/admin/"


def test_tenth_failure_blocks_the_address(client: Client, person: Any) -> None:
    person("ada")
    for _try in range(10):
        assert not attempt(client, "wrong")
    assert not attempt(client, PASSWORD)
    assert attempt(client, PASSWORD, address="192.0.2.2")


def test_login_is_possible_again_after_15_minutes(client: Client, person: Any) -> None:
    person("ada")
    for _try in range(10):
        attempt(client, "wrong")
    with time_machine.travel(timezone.now() + timedelta(minutes=15, seconds=1)):
        assert attempt(client, PASSWORD)


def test_failures_from_many_addresses_lock_the_account(client: Client, person: Any) -> None:
    person("ada")
    for number in range(100):
        attempt(client, "wrong", address=f"198.51.100.{number}")
    assert not attempt(client, PASSWORD)
    person("bob")
    assert attempt(client, PASSWORD, name="bob")


def test_lower_case_expansion_fits_the_column(client: Client) -> None:
    # One capital dotted I is two characters in lower case: 150 x 2 + "@192.0.2.1" would be 310 of 300.
    assert not attempt(client, "wrong", name="\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}" * 150)
    assert max(len(key) for key in LoginFailure.objects.values_list("key", flat=True)) <= 300


def test_foreign_next_is_not_followed(client: Client, person: Any) -> None:
    person("ada")
    answer = client.post("/login/", {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer.headers["Location"] == "/"


def test_logout_needs_a_post(client: Client, person: Any) -> None:
    client.force_login(person("ada"))
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/").status_code == 302


def test_locked_account_can_log_in_from_a_known_browser(client: Client, person: Any) -> None:
    person("ada")
    assert attempt(client, PASSWORD)
    client.post("/logout/")
    for number in range(101):
        attempt(Client(), "wrong", address=f"198.51.100.{number}")
    assert not attempt(Client(), PASSWORD)  # closed to unknown browsers
    assert attempt(client, PASSWORD)


def test_browser_cookie_has_one_account_and_its_own_limit(client: Client, person: Any) -> None:
    person("ada")
    person("bob")
    assert attempt(client, PASSWORD)
    client.post("/logout/")
    for number in range(100):
        attempt(Client(), "wrong", name="bob", address=f"198.51.100.{number}")
    assert not attempt(client, PASSWORD, name="bob")
    for _try in range(10):
        attempt(client, "wrong")
    assert not attempt(client, PASSWORD)


@pytest.mark.parametrize("forged", ["", "x", "WyJhZGEiLCJ4Il0:1:x", "[]"])
def test_forged_cookie_does_not_bypass_the_lock(person: Any, forged: str) -> None:
    person("ada")
    for number in range(100):
        attempt(Client(), "wrong", address=f"198.51.100.{number}")
    client = Client()
    client.cookies["hetsched-device"] = forged
    assert not attempt(client, PASSWORD)


def test_ipv6_network_has_one_limit(client: Client, person: Any) -> None:
    person("ada")
    for number in range(10):
        attempt(client, "wrong", address=f"2001:db8:0:1::{number}")
    assert not attempt(client, PASSWORD, address="2001:db8:0:1:ffff::1")
    assert attempt(client, PASSWORD, address="2001:db8:0:2::1")


def test_ipv4_mapped_addresses_are_counted_separately(client: Client, person: Any) -> None:
    # All of IPv4 lies in one /64 of IPv6: a dual-stack server receives ::ffff:192.0.2.1.
    person("ada")
    for _try in range(10):
        attempt(client, "wrong", address="::ffff:192.0.2.1")
    assert not attempt(client, PASSWORD, address="192.0.2.1")
    assert attempt(client, PASSWORD, address="::ffff:192.0.2.2")


def test_correct_passwords_are_not_counted(person: Any) -> None:
    person("ada")
    for _try in range(12):
        assert attempt(Client(), PASSWORD)


@pytest.mark.parametrize("name", ["ada", "absent", "closed", "service-viewer"])
def test_login_does_not_reveal_existing_accounts(client: Client, person: Any, name: str) -> None:
    person("ada")
    closed = person("closed")
    closed.is_active = False
    closed.save()
    service_account("viewer")
    answers = [client.post("/login/", {"username": name, "password": "wrong"}) for _try in range(12)]
    texts = {re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", answer.content.decode()) for answer in answers}
    texts = {re.sub(r"[0-9a-f]{32}", "", text) for text in texts}
    assert {answer.status_code for answer in answers} == {200}
    assert len(texts) == 1  # the same before and after the limit
    # The typed name is shown in its field again, and nowhere else.
    (text,) = texts
    assert text.count(f'value="{name}"') == 1
    assert name not in text.replace(f'value="{name}"', "").replace("username", "").replace("data-", "")
