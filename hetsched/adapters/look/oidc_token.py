"""The ID token of the auth provider `oidc` in a kubeconfig.

Only a token that has not expired is used: renewing it would replace the refresh token, which would require a write to
the kubeconfig.
Source: client-go 0.37, plugin/pkg/client/auth/oidc; RFC 7519.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from datetime import UTC, datetime
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError

# As in client-go: a token that expires within this time counts as expired.
_MARGIN_SECONDS = 10.0
_RENEW = (
    "Renew the token with a kubectl command if the kubeconfig has a refresh token, else log in again; or replace "
    "auth-provider by exec with int128/kubelogin (kubectl oidc-login setup shows the configuration)"
)


class _Claims(msgspec.Struct):
    exp: float


_claims = msgspec.json.Decoder(_Claims)


def id_token(provider: dict[str, Any], place: str) -> str:
    """Return the ID token. Raises: InputError `KubeconfigMalformed`, `KubeconfigTokenExpired`."""
    config = provider.get("config")
    token = config.get("id-token") if isinstance(config, dict) else None
    if not token:
        raise InputError("KubeconfigTokenExpired", "there is no ID token", place=place, hint=_RENEW)
    try:
        _, payload, _ = token.split(".")
        expires = _claims.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).exp
    except msgspec.ValidationError:
        message = "the ID token does not state the time of its expiry (exp)"
        raise InputError("KubeconfigMalformed", message, place=place, hint=_RENEW) from None
    except (AttributeError, ValueError, RecursionError, msgspec.DecodeError):
        message, hint = "the ID token is not a JSON Web Token", "Compare the file with kubectl config view"
        raise InputError("KubeconfigMalformed", message, place=place, hint=hint) from None
    if expires <= time.time() + _MARGIN_SECONDS:
        moment = datetime.fromtimestamp(max(expires, 0), UTC)
        message = f"the ID token was valid until {moment:%Y-%m-%dT%H:%M:%SZ}"
        raise InputError("KubeconfigTokenExpired", message, place=place, hint=_RENEW)
    return str(token)
