"""System checks that reject an invalid deployment before it serves requests.

A single invalid value is rejected when it is read (`environment.py`); combinations of values are checked here.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

# Read by the client commands and the tests, not by the settings.
FOREIGN = frozenset({"HETSCHED_SERVER", "HETSCHED_TOKEN"})

# Tag of the checks that a process runs when it starts. Django's own checks of the same tags import the web application.
STARTUP = "startup"

Configs = Sequence[AppConfig] | None


@register(Tags.security, STARTUP)
def check_secret_key(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Reject a server without SECRET_KEY: each process would generate its own key."""
    if settings.SECRET_KEY_GIVEN or settings.DEBUG or settings.EMBEDDED:
        return []
    hint = "Set SECRET_KEY to at least 40 random characters, the same for every process."
    return [Error("SECRET_KEY is not set, so every process generates its own key.", hint=hint, id="hetsched.E001")]


@register(Tags.security, STARTUP)
def check_hosts(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Reject `*` in ALLOWED_HOSTS, which disables the check of the Host header."""
    if settings.DEBUG or "*" not in settings.ALLOWED_HOSTS:
        return []
    hint = "List the host names of this server, comma-separated."
    return [Error("ALLOWED_HOSTS allows every host.", hint=hint, id="hetsched.E002")]


@register(Tags.security, STARTUP)
def check_sign_in(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Reject an incomplete identity provider, and a server without any way to sign in."""
    found: list[CheckMessage] = []
    if settings.HETSCHED_OIDC_ISSUER and not (settings.HETSCHED_OIDC_CLIENT_ID and settings.HETSCHED_OIDC_ROLES):
        hint = "Set HETSCHED_OIDC_CLIENT_ID, and set HETSCHED_OIDC_ROLES to comma-separated GROUP=ROLE pairs."
        found.append(Error("The configuration of the identity provider is incomplete.", hint=hint, id="hetsched.E004"))
    if not settings.HETSCHED_PASSWORDS and not settings.HETSCHED_OIDC_ISSUER:
        hint = "Set HETSCHED_OIDC_ISSUER, or set HETSCHED_PASSWORDS to 1."
        found.append(
            Error(
                "Login is not possible: passwords are disabled and no identity provider is configured.",
                hint=hint,
                id="hetsched.E005",
            )
        )
    return found


@register(Tags.compatibility, STARTUP)
def check_data_folder(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Reject an embedded database whose folder is not writable."""
    if not settings.EMBEDDED:
        return []
    folder = settings.DATA_DIR
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(nearest, os.W_OK | os.X_OK):
        return []
    hint = "Set HETSCHED_DATA to a writable folder."
    return [Error(f"The data folder {folder} is not writable.", hint=hint, id="hetsched.E003")]


@register(Tags.compatibility, STARTUP)
def check_lease(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Warn if leases end before the next sweep, because clusters would change leaders unnecessarily."""
    if settings.HETSCHED_LEASE_SECONDS >= settings.HETSCHED_SWEEP_SECONDS:
        return []
    hint = "Make HETSCHED_LEASE_SECONDS at least as long as HETSCHED_SWEEP_SECONDS."
    return [Warning("The leader's lease is shorter than the sweep interval.", hint=hint, id="hetsched.W001")]


@register(Tags.compatibility, STARTUP)
def check_variables(app_configs: Configs, **kwargs: Any) -> list[CheckMessage]:
    """Warn about a HETSCHED_ variable that is not read, usually a typing error."""
    known = settings.ENV.asked | FOREIGN
    found: list[CheckMessage] = []
    for name in sorted(os.environ):
        if not name.startswith("HETSCHED_") or name.startswith("HETSCHED_TEST_") or name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else "Remove it."
        found.append(Warning(f"The environment variable {name} is unknown.", hint=hint, id="hetsched.W002"))
    return found
