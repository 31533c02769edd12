"""Tokens: creation, storage as a digest, lookup, limits and revocation."""

from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core import serializers
from django.test import Client
from django.utils import timezone

from hetsched.access.models import Token
from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token, resolve, revoke_token
from hetsched.contracts.errors import InputError
from hetsched.journal.models import AuditEntry

pytestmark = pytest.mark.django_db


def test_plaintext_is_prefixed_and_256_bits() -> None:
    _token, plaintext = create_token(role="viewer", name="ci")
    assert plaintext.startswith("hs_")
    assert len(bytes.fromhex(plaintext.removeprefix("hs_"))) * 8 == 256


def test_plaintext_is_stored_nowhere() -> None:
    _token, plaintext = create_token(role="viewer", name="ci", reason="try")
    rows = [*Token.objects.all(), *AuditEntry.objects.all()]
    assert plaintext[20:] not in serializers.serialize("json", rows)


def test_token_is_found_with_its_owner() -> None:
    token, plaintext = create_token(role="viewer", name="ci")
    found = resolve(plaintext)
    assert found == token
    assert found.user.username == "service-viewer"


def test_service_account_cannot_log_in() -> None:
    token, _plaintext = create_token(role="viewer", name="ci")
    assert not token.user.has_usable_password()


@pytest.mark.parametrize("wrong", ["", "hs_", "hs_" + "0" * 64, "x" * 67, "hs_" + "é" * 64, "hs_" + "0" * 5000])
def test_invalid_tokens_are_not_found(wrong: str) -> None:
    create_token(role="viewer", name="ci")
    assert resolve(wrong) is None


def test_token_with_one_wrong_character_is_rejected() -> None:
    _token, plaintext = create_token(role="viewer", name="ci")
    assert resolve(plaintext[:-1] + ("0" if plaintext[-1] != "0" else "1")) is None


def test_expired() -> None:
    token, plaintext = create_token(role="viewer", name="ci")
    Token.objects.filter(pk=token.pk).update(expiry=timezone.now() - timedelta(seconds=1))
    assert resolve(plaintext) is None
    assert Token.objects.filter(pk=token.pk).exists()  # a lookup never deletes


def test_token_of_an_inactive_owner_is_rejected() -> None:
    token, plaintext = create_token(role="viewer", name="ci")
    token.user.is_active = False
    token.user.save()
    assert resolve(plaintext) is None


def test_revocation_is_immediate_and_reported() -> None:
    token, plaintext = create_token(role="viewer", name="ci")
    revoke_token(token, actor=None, reason="leaked")
    assert resolve(plaintext) is None
    assert AuditEntry.objects.get(action="token.revoke").reason == "leaked"


def test_use_is_recorded_once_a_minute(django_assert_num_queries: Any) -> None:
    _token, plaintext = create_token(role="viewer", name="ci")
    with django_assert_num_queries(2):
        resolve(plaintext)
    with django_assert_num_queries(1):
        resolve(plaintext)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"role": "root"}, "RoleUnknown"),
        ({"namespaces": ["Team_A"]}, "NamespaceInvalid"),
        ({"namespaces": [".."]}, "NamespaceInvalid"),
        ({"role": "agent"}, "NodeInvalid"),
        ({"role": "agent", "cluster": "lab"}, "NodeInvalid"),
        ({"role": "agent", "cluster": "lab", "node": "../n1"}, "NodeInvalid"),
        ({"role": "operator", "cluster": "lab", "node": "n1"}, "NodeInvalid"),
        ({"lifetime": timedelta(days=91)}, "TokenLifetimeInvalid"),
        ({"lifetime": timedelta(0)}, "TokenLifetimeInvalid"),
    ],
)
def test_invalid_options_create_no_token(options: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        create_token(**{"role": "viewer", "name": "ci", **options})
    assert caught.value.code == code
    assert not Token.objects.exists()


@pytest.mark.parametrize("namespaces", ['"abc"', "[1]", "[null]", '{"a": 1}', '["Bad_"]'])
def test_admin_form_names_the_error_in_the_namespaces(
    client: Client, person: Any, namespaces: str, settings: Any
) -> None:
    settings.STORAGES = {
        **settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }  # fmt: skip
    client.force_login(person("root", superuser=True))
    wishes = {"name": "ci", "role": "viewer", "namespaces": namespaces}
    answer = client.post("/admin/access/token/add/", wishes)
    assert answer.status_code == 200
    assert "NamespaceInvalid" in answer.content.decode()
    assert not Token.objects.exists()


def test_staff_without_the_right_to_administer_finds_no_form(client: Client, person: Any) -> None:
    clerk = person("clerk")
    clerk.is_staff = True
    clerk.save()
    clerk.user_permissions.set(Permission.objects.filter(codename__in=("add_token", "view_token")))
    client.force_login(clerk)
    assert client.get("/admin/access/token/add/").status_code == 403


def test_only_an_admin_hands_out_tokens(person: Any) -> None:
    with pytest.raises(InputError) as caught:
        create_token(role="viewer", name="ci", actor=Subject(person("ada", "operator")))
    assert caught.value.code == "PermissionDenied"
    create_token(role="viewer", name="ci", actor=Subject(person("root", superuser=True)))


def test_agent_token_is_valid_for_one_node() -> None:
    token, plaintext = create_token(role="agent", name="n1", cluster="lab", node="n1.example.org")
    found = resolve(plaintext)
    assert found == token
    assert found is not None
    assert (found.cluster, found.node) == ("lab", "n1.example.org")
    assert AuditEntry.objects.latest("id").details["node"] == "n1.example.org"


def test_digest_uses_the_key_of_the_server(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = True
    token, plaintext = create_token(role="viewer", name="ci")
    assert len(token.digest) == 64
    assert token.digest != sha256(plaintext.encode()).hexdigest()
    assert resolve(plaintext) == token
    settings.SECRET_KEY = "another key " * 4
    assert resolve(plaintext) is None


def test_unkeyed_row_is_rejected_if_a_key_is_set(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = False
    token, plaintext = create_token(role="viewer", name="ci")
    assert len(token.digest) == 128
    assert resolve(plaintext) == token
    settings.SECRET_KEY_GIVEN = True
    assert resolve(plaintext) is None


@pytest.mark.parametrize("wrong", ["its end", "all of it"])
def test_invalid_tokens_take_equal_work(wrong: str, django_assert_num_queries: Any) -> None:
    _token, plaintext = create_token(role="viewer", name="ci")
    other = plaintext[:-8] + "00000000" if wrong == "its end" else "hs_" + "0" * 64
    with django_assert_num_queries(1):
        assert resolve(other) is None
