"""Sign-in by OpenID Connect against a real provider on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches, include, path, set_urlconf

from hetsched.access import oidc
from hetsched.access.models import ExternalAccount
from hetsched.journal.models import AuditEntry
from hetsched.project.urls import urlpatterns as ours

from .provider import CLIENT, SECRET, Provider

pytestmark = pytest.mark.django_db
urlpatterns = [
    path("login/oidc/", oidc.start_sign_in, name="oidc"),
    path("login/oidc/callback/", oidc.complete_sign_in, name="oidc-callback"),
    path("", include(ours)),
]
handler403 = "web.pages.errors.forbidden"


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def provider(running: Provider, settings: Any) -> Iterator[Provider]:
    settings.ROOT_URLCONF = __name__
    settings.HETSCHED_OIDC_ISSUER = running.issuer
    settings.HETSCHED_OIDC_CLIENT_ID, settings.HETSCHED_OIDC_CLIENT_SECRET = CLIENT, SECRET
    settings.HETSCHED_OIDC_ROLES = {"platform": "operator", "policy": "policy-admin", "owners": "admin"}
    settings.HETSCHED_OIDC_NAME = "Example"
    clear_url_caches()
    set_urlconf(None)
    oidc._provider.cache_clear()
    running.lies, running.asked = {}, []
    running.person = {"sub": "248289", "preferred_username": "ada", "groups": ["platform", "chess club"]}
    yield running
    clear_url_caches()


def signed_in(provider: Provider, client: Client, begin: str = "/login/oidc/") -> Any:
    """Follow the redirects to the provider and back, as a browser does."""
    left = client.get(begin)
    assert left.status_code == 302, left.content
    return client.get(provider.authorize(left["Location"]).removeprefix("http://testserver"))


def who(client: Client) -> User | None:
    key = client.session.get("_auth_user_id")
    return User.objects.get(pk=key) if key else None


def test_user_gets_the_roles_of_the_providers_groups(provider: Provider, client: Client) -> None:
    assert b"Sign in with Example" in client.get("/login/").content
    answer = signed_in(provider, client, "/login/oidc/?next=/queue/")
    assert (answer.status_code, answer["Location"]) == (302, "/queue/")
    ada = who(client)
    assert ada is not None
    assert (ada.username, [group.name for group in ada.groups.all()]) == ("ada", ["operator"])
    assert not ada.has_usable_password()
    assert AuditEntry.objects.get(action="account.create").details["roles"] == ["operator"]
    assert client.get("/queue/").status_code == 200


def test_authorization_request_has_its_own_state_nonce_and_challenge(provider: Provider, client: Client) -> None:
    asked = [parse_qs(urlsplit(client.get("/login/oidc/")["Location"]).query) for _ in range(2)]
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked[0][name][0]) >= 20, name
        assert asked[0][name] != asked[1][name], name


def test_changed_groups_change_the_roles_at_the_next_sign_in(provider: Provider, client: Client) -> None:
    signed_in(provider, client)
    provider.person = {**provider.person, "groups": ["policy", "owners"]}
    signed_in(provider, Client())
    ada = User.objects.get(username="ada")
    assert ([group.name for group in ada.groups.all()], ada.is_superuser) == (["policy-admin"], True)
    provider.person = {**provider.person, "groups": ["policy"]}
    signed_in(provider, Client())
    assert not User.objects.get(username="ada").is_superuser
    assert User.objects.count() == 1


def test_groups_default_to_the_user_info(provider: Provider, client: Client) -> None:
    provider.lies = {"kept": ["groups"]}
    signed_in(provider, client)
    assert who(client) is not None


def test_existing_name_is_not_linked_to_another_account(provider: Provider, client: Client) -> None:
    local = User.objects.create_user("Ada", password="a long enough password", is_superuser=True)
    signed_in(provider, client)
    assert who(client) != local
    assert ExternalAccount.objects.get().user.username == "ada@127.0.0.1"


REFUSED: dict[str, dict[str, Any]] = {
    "another audience": {"claims": {"aud": "another client"}},
    "an audience too many, for another party": {"claims": {"aud": ["another", CLIENT], "azp": "another"}},
    "another issuer": {"claims": {"iss": "https://evil.example"}},
    "over": {"claims": {"iat": 1_000_000, "exp": 1_000_300}},
    "without an end": {"claims": {"exp": None}},
    "made in an hour": {"claims": {"iat": 4_000_000_000, "nbf": 4_000_000_000}},
    "another nonce": {"claims": {"nonce": "of somebody else"}},
    "without a nonce": {"claims": {"nonce": None}},
    "empty subject": {"claims": {"sub": ""}},
    "a subject that is too long": {"claims": {"sub": "x" * 256}},
    "no group with a role": {"claims": {"groups": ["chess club"]}},
    "groups that are no list": {"claims": {"groups": {"platform": True}}},
    "unsigned": {"signed": "none"},
    "signed by another key": {"signed": "another"},
    "signed by the client's secret": {"signed": "client secret"},
    "a provider that allows no signature": {
        "signed": "none", "metadata": {"id_token_signing_alg_values_supported": ["none"]},
    },
    "a provider that allows shared keys": {
        "signed": "client secret", "metadata": {"id_token_signing_alg_values_supported": ["HS256", "RS256"]},
    },
    "another state": {"back": {"state": "of another browser"}},
    "another code": {"back": {"code": "made up"}},
    "an error": {"back": {"error": "access_denied", "error_description": "<script>alert(1)</script>"}},
    "an answer of another provider": {"back": {"iss": "https://evil.example"}},
    "keys that moved elsewhere": {"moved": ["/keys"]},
    "tokens that moved elsewhere": {"moved": ["/token"]},
    "tokens that lie inside": {"metadata": {"token_endpoint": "https://169.254.169.254/token"}},
    "tokens without TLS": {"metadata": {"token_endpoint": "http://example.com/token"}},
    "tokens that are a file": {"metadata": {"token_endpoint": "file:///etc/passwd"}},
    "keys that lie inside": {"metadata": {"jwks_uri": "https://[::ffff:10.0.0.1]/keys"}},
    "user info that does not end": {"kept": ["groups"], "userinfo": {"sub": "248289", "groups": ["x" * 300_000]}},
    "user info about somebody else": {"kept": ["groups"], "userinfo": {"sub": "other", "groups": ["owners"]}},
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_provider_response_is_rejected(provider: Provider, client: Client, case: str) -> None:
    provider.lies = REFUSED[case]
    answer = signed_in(provider, client)
    assert answer.status_code == 403
    assert b"<script>alert" not in answer.content
    assert who(client) is None
    assert not User.objects.exists()
    assert "/elsewhere" not in provider.asked


def test_response_is_valid_once_and_only_in_its_browser(provider: Provider, client: Client) -> None:
    back = provider.authorize(client.get("/login/oidc/")["Location"]).removeprefix("http://testserver")
    assert Client().get(back).status_code == 403
    assert client.get(back).status_code == 302
    client.post("/logout/")
    assert client.get(back).status_code == 403


@pytest.mark.parametrize(
    "lies", [{"metadata": {"issuer": "https://evil.example"}}, {"moved": ["/.well-known/openid-configuration"]}]
)
def test_metadata_of_another_provider_is_rejected(provider: Provider, client: Client, lies: dict[str, Any]) -> None:
    provider.lies = lies
    assert client.get("/login/oidc/").status_code == 403
    provider.lies = {}
    assert client.get("/login/oidc/").status_code == 302


def test_user_without_role_groups_loses_all_roles(provider: Provider, client: Client) -> None:
    provider.person = {**provider.person, "groups": ["owners", "platform"]}
    signed_in(provider, client)
    provider.person = {**provider.person, "groups": ["chess club"]}
    assert signed_in(provider, Client()).status_code == 403
    ada = User.objects.get()
    assert ([group.name for group in ada.groups.all()], ada.is_superuser, ada.is_staff) == ([], False, False)
    assert AuditEntry.objects.get(action="account.roles").details["before"] == ["admin", "operator"]
    assert client.get("/queue/").status_code != 200


def test_names_are_compared_after_normalisation(provider: Provider, client: Client) -> None:
    # Accounts compare names after compatibility normalisation: fullwidth letters are ADA.
    User.objects.create_user("ada", password="a long enough password")
    wide = "".join(chr(ord(sign) + 0xFEE0) for sign in "ADA")
    provider.person = {**provider.person, "preferred_username": wide}
    signed_in(provider, client)
    assert ExternalAccount.objects.get().user.username == "ADA@127.0.0.1"


def test_inactive_account_cannot_sign_in(provider: Provider, client: Client) -> None:
    signed_in(provider, client)
    User.objects.update(is_active=False)
    assert signed_in(provider, Client()).status_code == 403


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "/\\evil.example"]
)
def test_foreign_redirect_is_not_followed_after_sign_in(provider: Provider, client: Client, wanted: str) -> None:
    assert signed_in(provider, client, f"/login/oidc/?next={wanted}")["Location"] == "/"


def test_sign_in_starts_a_new_session(provider: Provider, client: Client) -> None:
    left = client.get("/login/oidc/")
    before = client.cookies["hetsched"].value
    client.get(provider.authorize(left["Location"]).removeprefix("http://testserver"))
    assert client.cookies["hetsched"].value != before


def test_password_login_can_be_disabled(provider: Provider, client: Client, settings: Any) -> None:
    settings.HETSCHED_PASSWORDS = False
    User.objects.create_user("bob", password="a long enough password")
    assert b'type="password"' not in client.get("/login/").content
    client.post("/login/", {"username": "bob", "password": "a long enough password"})
    assert who(client) is None


def test_provider_is_called_only_by_the_issuers_name(provider: Provider, client: Client) -> None:
    # The issuer is 127.0.0.1, not localhost, although both are the same machine.
    elsewhere = provider.issuer.replace("127.0.0.1", "localhost")
    provider.lies = {"metadata": {"token_endpoint": f"{elsewhere}/token"}}
    assert signed_in(provider, client).status_code == 403
    assert "/token" not in provider.asked


def test_calls_to_the_provider_use_no_environment_proxy(
    provider: Provider, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        for spelled in (name, name.lower()):
            monkeypatch.setenv(spelled, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    signed_in(provider, client)
    assert who(client) is not None
