"""Connection of a user's own kubeconfig, on the user's machine.

Unlike `kubernetes.connections.kubeconfig`, which validates kubeconfigs of other parties, this module trusts the
kubeconfig: it reads files and runs exec plugins, as kubectl does. Several files (`KUBECONFIG`) are merged; the first
entry of a name is used, and relative paths start at the folder of their file.
Source: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files".
Invariant: no message contains a credential.
"""

from __future__ import annotations

import os
import socket
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hetsched.adapters.exec_credentials.plugin import read_plugin
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.kubeconfig import MAX_BYTES, read
from hetsched.contracts.errors import InputError

from .exec_plugins import run_plugin
from .oidc_token import id_token

if TYPE_CHECKING:
    from kubernetes import client

Plain = dict[str, Any]
_LISTS = {"context": "contexts", "cluster": "clusters", "user": "users"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Fields that change the meaning of a connection and are not implemented.
_UNSUPPORTED = {
    "cluster": {"proxy-url": "Use a direct route, for example a port forward"},
    "user": {
        "username": "Use a token or a client certificate; API servers accept no passwords since version 1.19",
        "as": "Use a kubeconfig without impersonation",
        "as-groups": "Use a kubeconfig without impersonation",
        "as-uid": "Use a kubeconfig without impersonation",
        "as-user-extra": "Use a kubeconfig without impersonation",
    },
}

# Exec plugins that replace the auth providers of older kubeconfigs.
_EXEC_PLUGINS = {
    "gcp": "gke-gcloud-auth-plugin (gcloud container clusters get-credentials writes it)",
    "azure": "Azure/kubelogin (kubelogin convert-kubeconfig writes it)",
}


class _KubeconfigEntry:
    """One entry of a kubeconfig, with the folder of its file."""

    def __init__(self, kind: str, value: Any, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if not isinstance(value, dict):
            raise _malformed(f"{_LISTS[kind]}.{kind}", "the value is not a mapping")
        self.value: Plain = value

    def text(self, field: str) -> str:
        value = self.value.get(field) or ""
        if not isinstance(value, str):
            raise _malformed(self.place(field), "the value is not a text")
        return value

    def place(self, field: str) -> str:
        return f"{_LISTS[self.kind]}.{self.kind}.{field}"

    def data(self, field: str) -> bytes:
        """Return the content of `field-data`, else of the file that `field` names, else nothing."""
        inline = self.text(f"{field}-data")
        if inline:
            try:
                return b64decode(inline, validate=True)
            except ValueError:
                raise _malformed(self.place(f"{field}-data"), "the value is not base64") from None
        return self.file(field)

    def file(self, field: str) -> bytes:
        path = self.text(field)
        if not path:
            return b""
        try:
            return (self.folder / Path(path).expanduser()).read_bytes()
        except OSError as error:
            message = f"the file {path} cannot be read: {error.strerror}"
            hint = "Correct the path, or use kubectl config view --raw --flatten"
            raise InputError("FileUnreadable", message, place=self.place(field), hint=hint) from None


def kubeconfig_paths(option: Path | None, environment: Mapping[str, str]) -> list[Path]:
    """Return the files of `--kubeconfig`, else of `KUBECONFIG`, else `~/.kube/config`; missing files are omitted.

    Raises: InputError `KubeconfigMissing` if there is no file.
    """
    if option is not None:
        paths = [option]
    elif environment.get("KUBECONFIG"):
        paths = [Path(name) for name in environment["KUBECONFIG"].split(os.pathsep) if name]
    else:
        paths = [Path("~/.kube/config")]
    found = [path.expanduser() for path in paths if path.expanduser().is_file()]
    if not found:
        raise InputError(
            "KubeconfigMissing", f"there is no kubeconfig {os.pathsep.join(map(str, paths))}", place="--kubeconfig",
            hint="Use --kubeconfig FILE, or -f FILE for a dump of the cluster",
        )  # fmt: skip
    return found


def open_api(paths: Sequence[Path], *, context: str = "") -> Api:
    """Return a read-only client for a context, by default the current context.

    Raises: InputError `KubeconfigMalformed`, `KubeconfigContextUnknown`, `KubeconfigRefused`, `FileUnreadable`, or the
    errors of an exec plugin.
    """
    configs = []
    for path in paths:
        with path.open("rb") as file:
            configs.append((read(file.read(MAX_BYTES + 1), name=f"--kubeconfig {path}"), path.absolute().parent))
    name = context or next((str(c["current-context"]) for c, _ in configs if c.get("current-context")), "")
    chosen = _entry(configs, "context", name)
    if chosen is None:
        known = sorted({str(one.get("name")) for config, _ in configs for one in _items(config, "context")})
        raise _no_context(name, known, paths)
    parts = {}
    for kind in ("cluster", "user"):
        entry = _entry(configs, kind, chosen.text(kind))
        if entry is None:
            raise _malformed(f"contexts.context.{kind}", f"the file has no {kind} of this name")
        provider = entry.value.get("auth-provider")
        if provider and not _is_oidc(provider):
            raise _unsupported_provider(provider, entry.place("auth-provider"))
        for field, hint in _UNSUPPORTED[kind].items():
            if entry.value.get(field):
                raise InputError("KubeconfigRefused", "the field is not supported", place=entry.place(field), hint=hint)
        parts[kind] = entry
    return Api(_configuration(parts["cluster"], parts["user"]), agent="hetsched-look", reads=True, connect=_connect)


def _is_oidc(provider: Any) -> bool:
    return isinstance(provider, dict) and provider.get("name") == "oidc"


def _unsupported_provider(provider: Any, place: str) -> InputError:
    """Return the error of an `auth-provider`; its hint names the exec plugin that replaces it."""
    name = str(provider.get("name"))[:80] if isinstance(provider, dict) else ""
    plugin = _EXEC_PLUGINS.get(name, "the exec plugin of your identity provider")
    hint = f"Replace auth-provider by exec with {plugin}, or use --context with another user"
    return InputError("KubeconfigRefused", f"the auth provider {name!r} is not supported", place=place, hint=hint)


def _no_context(name: str, known: list[str], paths: Sequence[Path]) -> InputError:
    """Return the error for a context `name` that is not among the `known` ones; an empty name means none is set."""
    if not known:
        hint = "Create a kubeconfig with kubectl config view --raw"
        place = f"--kubeconfig {os.pathsep.join(map(str, paths))}"
        return InputError("KubeconfigMalformed", "the file contains no context", place=place, hint=hint)
    message = f"there is no context {name!r}" if name else "the kubeconfig has no current context"
    hint = f"Use --context with one of: {', '.join(known[:20])}"
    return InputError("KubeconfigContextUnknown", message, place="--context", hint=hint)


def _connect(name: str, port: int, seconds: float) -> socket.socket:
    """Connect without the egress filter, because the user chose the server."""
    return socket.create_connection((name, port), timeout=seconds)


def _configuration(cluster: _KubeconfigEntry, user: _KubeconfigEntry) -> client.Configuration:
    from kubernetes import client

    server = cluster.text("server").rstrip("/")
    url = urlsplit(server)
    if url.scheme not in ("https", "http") or not url.hostname:
        raise _malformed(cluster.place("server"), "the value is not an http or https URL with a host")
    made = client.Configuration(host=server)
    made.proxy = None
    made.tls_server_name = cluster.text("tls-server-name") or None
    made.verify_ssl = cluster.value.get("insecure-skip-tls-verify") is not True
    authority = cluster.data("certificate-authority")
    if authority:
        made.ca_cert_data = authority.decode("ascii", errors="replace")
    token, certificate, key = _credentials(cluster, user)
    if (token or certificate) and url.scheme == "http" and url.hostname not in _LOOPBACK:
        raise InputError(
            "KubeconfigRefused", "the credential would be sent without TLS", place=cluster.place("server"),
            hint="Use an https address",
        )  # fmt: skip
    if token:
        if not token.isascii() or not token.isprintable():
            raise _malformed("users.user.token", "the token is not one line of ASCII text")
        made.api_key["BearerToken"] = f"Bearer {token}"
    if certificate:
        from hetsched.adapters.kubernetes.connections.connection import use_client_certificate

        use_client_certificate(made, certificate, key)
    return made


def _credentials(cluster: _KubeconfigEntry, user: _KubeconfigEntry) -> tuple[str, bytes, bytes]:
    """Return token, client certificate and key; each is empty if the user has none."""
    certificate, key = user.data("client-certificate"), user.data("client-key")
    if bool(certificate) != bool(key):
        raise _malformed("users.user", "a client certificate requires a key, and a key a certificate")
    token = user.file("tokenFile").decode("ascii", errors="replace").strip() or user.text("token")
    if provider := user.value.get("auth-provider"):
        if user.value.get("exec"):
            raise _malformed("users.user", "auth-provider and exec exclude each other")
        token = token or id_token(provider, user.place("auth-provider"))
    if token or certificate or not user.value.get("exec"):
        return token, certificate, key
    plugin = read_plugin(user.value["exec"])
    described = {
        "server": cluster.text("server"),
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.value.get("insecure-skip-tls-verify") is True,
        "certificate-authority-data": b64encode(cluster.data("certificate-authority")).decode(),
        "config": _exec_configuration(cluster),
    }
    given = {name: value for name, value in described.items() if value}
    found = run_plugin(plugin, folder=user.folder, cluster=given)
    return found.token, found.client_certificate_data.encode(), found.client_key_data.encode()


def _exec_configuration(cluster: _KubeconfigEntry) -> Any:
    """Return the extension of a cluster that is meant for exec plugins."""
    extensions = cluster.value.get("extensions") or []
    name = "client.authentication.k8s.io/exec"
    return next((one.get("extension") for one in extensions if isinstance(one, dict) and one.get("name") == name), None)


def _items(config: Plain, kind: str) -> list[Plain]:
    items = config.get(_LISTS[kind]) or []
    if not isinstance(items, list):
        raise _malformed(_LISTS[kind], "the value is not a list")
    return [item for item in items if isinstance(item, dict)]


def _entry(configs: Sequence[tuple[Plain, Path]], kind: str, name: str) -> _KubeconfigEntry | None:
    """Return the first entry of this name."""
    for config, folder in configs:
        for item in _items(config, kind):
            if name and item.get("name") == name:
                return _KubeconfigEntry(kind, item.get(kind) or {}, folder)
    return None


def _malformed(place: str, message: str) -> InputError:
    return InputError("KubeconfigMalformed", message, place=place, hint="Compare the file with kubectl config view")
