"""Bearer token authentication for REST.

Every invalid token gets the same response. Session cookies are not read, so requests need no CSRF check.
"""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from .models import Token
from .tokens import resolve


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "hetsched.access.authentication.BearerAuthentication"
    match_subclasses = True
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "hs_…"}


class BearerAuthentication(BaseAuthentication):
    """Authentication by `Authorization: Bearer hs_…`; it sets `request.auth` to the `Token`."""

    def authenticate(self, request: Request) -> tuple[Any, Token] | None:
        kind, _space, value = get_authorization_header(request).partition(b" ")
        if kind.lower() != b"bearer":
            return None
        token = resolve(value.strip().decode("latin-1"))
        if token is None:
            raise AuthenticationFailed(_("The token is not valid."), code="TokenInvalid")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="hetsched"'
