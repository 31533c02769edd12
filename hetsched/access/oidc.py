"""Sign-in through an identity provider: OpenID Connect, authorization code with PKCE.

The deployment chooses the provider (`HETSCHED_OIDC_ISSUER`), not the user. A response is accepted if it is signed with
an asymmetric algorithm by a key of the provider, if issuer, audience, times and nonce are valid, and if the browser is
the one that started the sign-in (state in its session). An account is identified by issuer and subject; its name is
only for display and never selects an account that was created in another way. The roles of an account are mapped from
its groups (`HETSCHED_OIDC_ROLES`) at each sign-in. A user without a role is refused and loses any earlier roles. The
server's own requests to the provider are sent through `adapters.http.outbound`, with all its limits. The issuer's host
and `HETSCHED_OIDC_HOSTS` may have any address; other hosts that the provider names must have public addresses.
Limits: a user who was removed from the provider stays signed in until the session expires or an administrator ends it.
Source: OpenID Connect Core 1.0 §3.1; RFC 7636 (PKCE); RFC 9207 (issuer identification in the response).
"""

from __future__ import annotations

import functools
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import structlog
from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client.apps import DjangoOAuth2App
from authlib.integrations.django_client.integration import DjangoIntegration
from authlib.integrations.requests_client import OAuth2Session
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth import login as log_in
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from joserfc.errors import JoseError
from requests import PreparedRequest, RequestException, Response
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from hetsched.adapters.http import outbound
from hetsched.journal import audit
from hetsched.storage.write_lock import write_transaction

from .models import ExternalAccount
from .roles import Role

ADMINISTRATOR = "admin"
SIGNATURES = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_NEXT = "_oidc_next"
# Headers that `outbound` sets itself.
_UNSENT_HEADERS = frozenset({"host", "user-agent", "accept-encoding", "connection", "content-length"})
log = structlog.get_logger(__name__)


class SignInRefused(Exception):
    """A sign-in is refused; the reason is logged but not shown to the user."""


class _OutboundTransport(BaseAdapter):
    """Transport that sends the requests of the OAuth library through `adapters.http.outbound`.

    A response with a status of 300 or more raises an error that does not contain the body.
    """

    def send(self, request: PreparedRequest, *_options: Any, **_more: Any) -> Response:
        url, body = str(request.url), request.body
        forwarded = {name: value for name, value in request.headers.items() if name.lower() not in _UNSENT_HEADERS}
        sent = {name: value if isinstance(value, str) else value.decode("latin-1") for name, value in forwarded.items()}
        plain = body.encode() if isinstance(body, str) else body
        assert plain is None or isinstance(plain, bytes)  # this client does not stream bodies
        try:
            response = outbound.call(url, _allowed(), method=str(request.method), headers=sent, body=plain)
        except outbound.OutboundError as refused:
            raise RequestException(f"{refused.code}: {refused.message}") from None
        if response.status >= 300:
            raise RequestException(f"{urlsplit(url).netloc} answers {response.status}")
        answer = Response()
        answer.status_code, answer.url, answer.request = response.status, url, request
        answer.headers, answer.raw = CaseInsensitiveDict(response.headers), BytesIO(response.body)
        return answer

    def close(self) -> None:
        """Do nothing, because no connection stays open."""


def _allowed() -> outbound.AllowedHosts:
    issuer = urlsplit(settings.HETSCHED_OIDC_ISSUER)
    named = frozenset({issuer.netloc.lower(), *settings.HETSCHED_OIDC_HOSTS})
    plain = {issuer.netloc.lower()} if issuer.scheme == "http" else set()
    return outbound.AllowedHosts(named | {"*"}, frozenset(plain))


class _Session(OAuth2Session):
    """OAuth session that ignores proxy environment variables and does not follow redirects."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.trust_env = False
        for scheme in ("https://", "http://"):
            self.mount(scheme, _OutboundTransport())

    def request(self, method: str, url: str, **options: Any) -> Any:
        return super().request(method, url, **{**options, "allow_redirects": False})


class _Provider(DjangoOAuth2App):
    client_cls = _Session

    def load_server_metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = super().load_server_metadata()
        if found.get("issuer") != settings.HETSCHED_OIDC_ISSUER:
            found.pop("_loaded_at", None)  # load the metadata again next time
            issuer = str(found.get("issuer"))[:200]
            raise SignInRefused(f"the issuer in the provider's metadata is {issuer!r}, not HETSCHED_OIDC_ISSUER")
        offered = found.get("id_token_signing_alg_values_supported") or ["RS256"]
        found["id_token_signing_alg_values_supported"] = [name for name in offered if name in SIGNATURES]
        return found


@functools.lru_cache(maxsize=8)
def _provider(issuer: str, client_id: str, client_secret: str, scope: str) -> _Provider:
    return _Provider(
        DjangoIntegration("oidc"),
        name="oidc",
        client_id=client_id,
        client_secret=client_secret or None,
        server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": scope, "code_challenge_method": "S256"},
    )


def provider() -> _Provider:
    """Return the provider that the settings name; each process loads its metadata once."""
    return _provider(
        settings.HETSCHED_OIDC_ISSUER,
        settings.HETSCHED_OIDC_CLIENT_ID,
        settings.HETSCHED_OIDC_CLIENT_SECRET,
        settings.HETSCHED_OIDC_SCOPE,
    )


@never_cache
@require_safe
def start_sign_in(request: HttpRequest) -> HttpResponse:
    """Redirect the browser to the provider."""
    wanted = request.GET.get("next", "")
    is_own_url = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    try:
        response: HttpResponse = provider().authorize_redirect(request, _callback(request))
    except (SignInRefused, RequestException, RuntimeError, ValueError) as error:
        log.error("login.provider", error=repr(error)[:500])
        raise PermissionDenied(
            _("The sign-in service returned an invalid response. Try again in a few minutes.")
        ) from None
    request.session[_NEXT] = wanted if is_own_url else ""
    return response


@never_cache
@require_safe
def complete_sign_in(request: HttpRequest) -> HttpResponse:
    """Handle the redirect from the provider, and sign the user in."""
    try:
        claims = _claims(request)
        user = _account_of(claims)
    except (
        SignInRefused,
        OAuthError,
        JoseError,
        RequestException,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
    ) as error:
        log.warning("login.refused", error=repr(error)[:500])
        text = _("Sign-in failed. Try again; if it fails again, ask an administrator and quote the id below.")
        raise PermissionDenied(text) from None
    wanted = request.session.pop(_NEXT, "")
    log_in(request, user, backend="hetsched.access.login.RateLimitedBackend")
    return HttpResponseRedirect(wanted or resolve_url(settings.LOGIN_REDIRECT_URL))


def _callback(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("oidc-callback"))


def _claims(request: HttpRequest) -> dict[str, Any]:
    """Return the verified claims of the provider.

    Raises: SignInRefused, and the errors of the library for an invalid response.
    """
    client, issuer = provider(), settings.HETSCHED_OIDC_ISSUER
    if request.GET.get("iss", issuer) != issuer:
        raise SignInRefused("the response comes from another provider")
    must = {
        "iss": {"essential": True, "value": issuer},
        "aud": {"essential": True, "value": settings.HETSCHED_OIDC_CLIENT_ID},
        "sub": {"essential": True},
        "exp": {"essential": True},
    }
    token = client.authorize_access_token(request, claims_options=must, leeway=30)
    claims = dict(token.get("userinfo") or {})
    if not claims.get("sub"):
        raise SignInRefused("the response contains no ID token")
    if settings.HETSCHED_OIDC_GROUPS_CLAIM not in claims and "userinfo_endpoint" in client.load_server_metadata():
        more = dict(client.userinfo(token=token))
        if more.get("sub") != claims["sub"]:
            raise SignInRefused("the user info belongs to another subject")
        claims = more | claims
    return claims


def _roles(claims: dict[str, Any]) -> set[str]:
    claimed = claims.get(settings.HETSCHED_OIDC_GROUPS_CLAIM) or []
    if isinstance(claimed, str):
        claimed = [claimed]
    groups = [group for group in claimed if isinstance(group, str)] if isinstance(claimed, list) else []
    mapped = settings.HETSCHED_OIDC_ROLES
    return {mapped[group] for group in [*groups, "*"] if group in mapped}


def _account_of(claims: dict[str, Any]) -> Any:
    """Return the account of these claims with its current roles; create it at the first sign-in.

    Raises: SignInRefused.
    """
    subject, roles = str(claims["sub"]), _roles(claims)
    if not 0 < len(subject) <= 255 or "\0" in subject:
        raise SignInRefused("the subject is longer than 255 characters or contains a NUL character")
    if not roles:
        _remove_roles(subject)
        raise SignInRefused(f"no group of {_name(claims, subject)!r} is mapped to a role")
    with write_transaction():
        known = _find_account(subject)
        user = known.user if known else _create_account(settings.HETSCHED_OIDC_ISSUER, subject, _name(claims, subject))
        if not user.is_active:
            raise SignInRefused(f"the account {user.get_username()!r} is disabled")
        _assign_roles(user, roles, created=known is None)
    return user


def _find_account(subject: str) -> ExternalAccount | None:
    rows = ExternalAccount.objects.select_related("user").filter(issuer=settings.HETSCHED_OIDC_ISSUER, subject=subject)
    found: ExternalAccount | None = rows.first()
    return found


def _remove_roles(subject: str) -> None:
    """Remove the roles of an account, and with them the rights of its sessions and tokens."""
    with write_transaction():
        known = _find_account(subject)
        if known is not None:
            _assign_roles(known.user, set(), created=False)


def _name(claims: dict[str, Any], subject: str) -> str:
    for claim in ("preferred_username", "email", "name"):
        if isinstance(claims.get(claim), str) and claims[claim].strip():
            normalized = get_user_model().normalize_username(claims[claim].strip())  # as Django stores names
            return "".join(sign for sign in normalized if sign.isprintable())[:100]
    return subject[:100]


def _create_account(issuer: str, subject: str, name: str) -> Any:
    """Create an account; if the name is taken, append the provider's host and, if necessary, a number."""
    users, host = get_user_model().objects, urlsplit(issuer).hostname or "provider"
    names = (name, f"{name}@{host}"[:140], *(f"{name}@{host}"[:140] + f"-{number}" for number in range(2, 1000)))
    free = next((one for one in names if not users.filter(username__iexact=one).exists()), None)
    if free is None:
        raise SignInRefused(f"all user names derived from {name!r} are taken")
    user = users.create_user(free)  # without a usable password
    ExternalAccount.objects.create(user=user, issuer=issuer, subject=subject)
    return user


def _assign_roles(user: Any, roles: set[str], *, created: bool) -> None:
    had = set(user.groups.values_list("name", flat=True)) | ({ADMINISTRATOR} if user.is_superuser else set())
    if not created and had == roles:
        return
    user.groups.set([Group.objects.get_or_create(name=name)[0] for name in sorted(roles & set(Role))])
    user.is_superuser = user.is_staff = ADMINISTRATOR in roles
    user.save(update_fields=["is_superuser", "is_staff"])
    audit.record(
        actor=user.get_username(),
        role=",".join(sorted(roles)),
        action="account.create" if created else "account.roles",
        obj=("account", user.get_username()),
        details={"roles": sorted(roles), "before": sorted(had), "provider": settings.HETSCHED_OIDC_ISSUER},
    )
