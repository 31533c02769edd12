"""Validation of untrusted kubeconfigs.

A kubeconfig may name programs to run and files to read, and its sender may be untrusted. Only inline values are
accepted: an https server, its certificate authority, a token or a client certificate with its key, or a program that
the installation allows for credentials. Fields that run another program, read a file, use a proxy, impersonate a user
or skip verification are rejected by name. Fields that concern only client tools are dropped. Only one context is kept.
Source: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files".
Invariant: this module does not open files, start programs or make calls, and its messages never contain values that may
be secret.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from hetsched.adapters.exec_credentials.allowed_programs import ExecPolicy, accepted_plugin
from hetsched.adapters.exec_credentials.plugin import ExecPlugin, read_plugin
from hetsched.adapters.objects.documents import load_documents
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000
_AUTHORITY, _CERTIFICATE, _KEY = "certificate-authority-data", "client-certificate-data", "client-key-data"
# Fields accepted in a context, a cluster and a user. Any other field, except those in `_LEFT_OUT`, may act on this
# machine or weaken the connection.
_FIELDS = {
    "context": {"cluster", "user"},
    "cluster": {"server", _AUTHORITY, "tls-server-name"},
    "user": {"token", _CERTIFICATE, _KEY},
}
_INLINE = "kubectl config view --raw --flatten --minify writes a kubeconfig with inline credentials"
_REPLACEMENTS = {
    "auth-provider": "Use a service account token, or a program of HETSCHED_EXEC_CREDENTIALS that logs in with OIDC"
}
# Fields without effect on the connection.
_LEFT_OUT = {"namespace", "extensions", "disable-compression"}
# No program may be run for credentials.
NO_PROGRAMS = ExecPolicy()
_LISTS = {"context": "contexts", "cluster": "clusters", "user": "users"}
_LINE = re.compile(r"[\x21-\x7e]{1,200000}")
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")

_HOW_TO_WRITE = Message("Create a kubeconfig with kubectl config view --raw --flatten --minify")

Plain = dict[str, Any]


def read(text: bytes, *, name: str = "kubeconfig") -> Plain:
    """Parse the text of a kubeconfig, YAML or JSON; errors name it `name`, for example by the path of its file.

    Raises: InputError if the text is not valid, is longer than `MAX_BYTES` or expands to more than `MAX_VALUES` values.
    """
    documents = load_documents(text, name=name, max_bytes=MAX_BYTES, max_nodes=MAX_VALUES)
    if len(documents) != 1:
        message = Message("the kubeconfig must contain one document, but contains {n}", n=len(documents))
        raise InputError("KubeconfigMalformed", message, place=name, hint=_HOW_TO_WRITE)
    return documents[0].object


def one_context(document: Any, *, context: str = "", programs: ExecPolicy | None = NO_PROGRAMS) -> Plain:
    """Return a kubeconfig that contains one context (`context` or the current one) and only validated fields.

    `programs` are the programs that may be run for credentials; with None, the server that receives the result decides.
    Raises: InputError `KubeconfigMalformed`, `KubeconfigContextUnknown` or `KubeconfigRefused`, with the field.
    """
    config = _mapping(document, "kubeconfig")
    name = context or config.get("current-context") or ""
    chosen = _entry(config, "context", name, programs)
    if chosen is None:
        entries = _entries(config, "context")[:20]
        known = joined(", ", [str(entry.get("name"))[:80] for entry in entries] or [Message("none")])
        raise InputError(
            "KubeconfigContextUnknown",
            Message("there is no context {name}", name=repr(str(name)[:80])),
            place="current-context",
            hint=Message("Known: {text}", text=known),
        )
    parts: dict[str, Plain] = {}
    for kind in ("cluster", "user"):
        found = _entry(config, kind, chosen.get(kind, ""), programs)
        if found is None:
            raise _malformed(f"contexts.context.{kind}", Message("the file has no {what} of this name", what=kind))
        parts[kind] = found
    _check_cluster(parts["cluster"])
    _check_user(parts["user"])
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": parts["cluster"]}],
        "users": [{"name": "chosen", "user": parts["user"]}],
    }


class Access:
    """Address and credentials of one API server. The string form never shows the credentials."""

    __slots__ = ("authority", "certificate", "key", "plugin", "server", "server_name", "token")

    def __init__(self, kept: Plain) -> None:
        cluster, user = kept["clusters"][0]["cluster"], kept["users"][0]["user"]
        self.server: str = cluster["server"].rstrip("/")
        self.server_name: str = cluster.get("tls-server-name", "")
        self.authority: bytes = b64decode(cluster[_AUTHORITY])
        self.token: str = user.get("token", "")
        self.certificate: bytes = b64decode(user.get(_CERTIFICATE, ""))
        self.key: bytes = b64decode(user.get(_KEY, ""))
        self.plugin: ExecPlugin | None = read_plugin(user["exec"]) if "exec" in user else None

    @property
    def host(self) -> str:
        """`host:port` of the API server."""
        return host_of(self.server)


def host_of(server: str) -> str:
    """Return `host:port` of an https URL."""
    parts = urlsplit(server)
    host = (parts.hostname or "").lower()
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or 443}"


def _malformed(place: str, message: str) -> InputError:
    return InputError("KubeconfigMalformed", message, place=place, hint=_HOW_TO_WRITE)


def _mapping(value: Any, place: str) -> Plain:
    if not isinstance(value, dict):
        raise _malformed(place, "the value is not a mapping")
    return value


def _entries(config: Plain, kind: str) -> list[Plain]:
    entries = config.get(_LISTS[kind]) or []
    if not isinstance(entries, list):
        raise _malformed(_LISTS[kind], "the value is not a list")
    return [_mapping(entry, _LISTS[kind]) for entry in entries]


def _entry(config: Plain, kind: str, name: Any, programs: ExecPolicy | None) -> Plain | None:
    """Return the entry of this name after checking that each field is allowed and contains one line of text."""
    found = [entry for entry in _entries(config, kind) if entry.get("name") == name]
    if not found or not name:
        return None
    if len(found) > 1:
        raise _malformed(_LISTS[kind], Message("two entries are named {text}", text=repr(str(name)[:80])))
    place = f"{_LISTS[kind]}.{kind}"
    kept: Plain = {}
    for key, value in _mapping(found[0].get(kind) or {}, place).items():
        if not value or key in _LEFT_OUT:
            continue
        if (kind, key) == ("user", "exec"):
            kept[key] = accepted_plugin(value, programs)
            continue
        if key not in _FIELDS[kind]:
            raise InputError(
                "KubeconfigRefused",
                "only an inline server, certificate authority, token and client certificate are accepted",
                place=f"{place}.{key[:80]}",
                hint=_REPLACEMENTS.get(key, _INLINE),
            )
        # A context contains names of entries, which may be any text. Other values are sent to a server and must be one
        # line without spaces.
        if not isinstance(value, str) or (kind != "context" and not _LINE.fullmatch(value)):
            raise _malformed(f"{place}.{key}", "the value must be one line of ASCII text without spaces")
        kept[key] = value
    return kept


def _check_cluster(cluster: Plain) -> None:
    place = "clusters.cluster"
    if not _is_https(cluster.get("server", "")):
        raise _malformed(f"{place}.server", "the value is not an https URL with a host")
    name = cluster.get("tls-server-name")
    if name and not _HOST.fullmatch(name):
        raise _malformed(f"{place}.tls-server-name", "the value is not a host name")
    if not cluster.get(_AUTHORITY):
        raise _malformed(f"{place}.{_AUTHORITY}", "the field is missing")
    _certificate(cluster, _AUTHORITY, place)


def _check_user(user: Plain) -> None:
    place = "users.user"
    if "exec" in user:
        if len(user) > 1:
            raise _malformed(f"{place}.exec", "the user has other credentials in addition to a program")
        return
    if not (user.get("token") or user.get(_CERTIFICATE)):
        raise _malformed(place, "the user has neither a token nor a client certificate")
    if not (user.get(_CERTIFICATE) or user.get(_KEY)):
        return
    certificate = _certificate(user, _CERTIFICATE, place)
    try:
        key = load_pem_private_key(_decoded(user, _KEY, place), password=None)
    except (ValueError, TypeError):
        raise _malformed(f"{place}.{_KEY}", "the value is not an unencrypted PEM private key") from None
    spelling = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*spelling) != certificate.public_key().public_bytes(*spelling):
        raise _malformed(f"{place}.{_KEY}", "the private key does not belong to the client certificate")


def _certificate(part: Plain, field: str, place: str) -> x509.Certificate:
    """Return the first certificate in a field."""
    try:
        return x509.load_pem_x509_certificates(_decoded(part, field, place))[0]
    except ValueError:
        raise _malformed(f"{place}.{field}", "the value is not a PEM certificate") from None


def _decoded(part: Plain, field: str, place: str) -> bytes:
    try:
        return b64decode(part.get(field, ""), validate=True)
    except ValueError:
        raise _malformed(f"{place}.{field}", "the value is not base64") from None


def _is_https(url: str) -> bool:
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    odd = parts.query or parts.fragment or "@" in parts.netloc or "\\" in url or ".." in parts.path or port == 0
    return parts.scheme == "https" and bool(_HOST.fullmatch(parts.hostname or "")) and not odd
