"""Registry credentials from the pull secrets of a namespace.

Secrets of the types `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg` are read. An entry applies to the
registry at its host or, if it has a path, to repositories below that path; the longest matching path is used. Docker
Hub may be listed under several host names. Credential helpers and identity tokens are not used. An invalid secret is
treated as absent, and its content is never quoted.
Source: Kubernetes documentation, "Images: using imagePullSecrets"; docker's config.json.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec

from .reference import DOCKER_HUB, Reference
from .registry import RegistryCredential

_KEYS = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}
_HUB_NAMES = {"docker.io", "index.docker.io", "registry-1.docker.io"}


class _Entry(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""


class _Secret(msgspec.Struct):
    type: str = ""
    data: dict[str, str] = {}


def credential_for(reference: Reference, secrets: Iterable[bytes]) -> RegistryCredential | None:
    """Return the credential with the longest path that matches an image; the first one is used on a tie.

    `secrets` are Secret objects as JSON, as read from the API server.
    """
    best: tuple[int, RegistryCredential] | None = None
    for secret in secrets:
        for name, entry in _entries(secret).items():
            host, _, path = name.removeprefix("https://").removeprefix("http://").rstrip("/").partition("/")
            path = "" if path in ("v1", "v2") else path
            credential = _credential(entry)
            if credential is None or not _fits(reference, host.lower(), path):
                continue
            if best is None or len(path) > best[0]:
                best = len(path), credential
    return best[1] if best else None


def _fits(reference: Reference, host: str, path: str) -> bool:
    same = host in _HUB_NAMES if reference.host == DOCKER_HUB else host == reference.host
    return same and (not path or f"{reference.path}/".startswith(f"{path}/"))


def _entries(secret: bytes) -> dict[str, _Entry]:
    try:
        found = msgspec.json.decode(secret, type=_Secret)
        key = _KEYS.get(found.type, "")
        document: dict[str, Any] = msgspec.json.decode(base64.b64decode(found.data.get(key, ""), validate=True))
        if key == ".dockerconfigjson":
            document = document["auths"]
        return msgspec.convert(document, dict[str, _Entry])
    except (msgspec.DecodeError, msgspec.ValidationError, binascii.Error, KeyError, TypeError):
        return {}


def _credential(entry: _Entry) -> RegistryCredential | None:
    if entry.username and entry.password:
        return RegistryCredential(entry.username, entry.password)
    try:
        user, colon, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return RegistryCredential(user, password) if colon and user else None
