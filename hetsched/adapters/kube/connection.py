"""Where a cluster's API server is and how we identify ourselves, from a kubeconfig or from inside the cluster.

Problem: a kubeconfig may name programs to run and files to read, and whoever hands one in may be nobody we trust.
Rule: only what stands inline counts: an https server, its authority, a token or a client certificate with its key. What
would run a program, read a file, take a proxy, act as somebody else or skip verification is refused with its field.
What passes is loaded by the official client.
Source: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files".
"""

from __future__ import annotations

import tempfile
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client
from kubernetes import config as loader
from kubernetes.config.config_exception import ConfigException

from hetsched.contracts.errors import InputError

# All that a context, a cluster and a user may say; everything else acts on this machine or weakens the connection.
_FIELDS = {
    "context": {"cluster", "user", "namespace"},
    "cluster": {"server", "certificate-authority-data", "tls-server-name"},
    "user": {"token", "client-certificate-data", "client-key-data"},
}
_LISTS = {"context": "contexts", "cluster": "clusters", "user": "users"}


def from_kubeconfig(document: Any, *, context: str = "") -> client.Configuration:
    """Read a kubeconfig document; `context` names one of its contexts, by default the current one.

    Raises: InputError `KubeconfigMalformed`, `KubeconfigContextUnknown` or `KubeconfigRefused`.
    """
    kept = _checked(document, context)
    made = client.Configuration()
    made.proxy = None  # the environment's proxy is for other traffic
    # The official loader hands a client certificate to the TLS library through files, in a folder of this process.
    folder = tempfile.mkdtemp(prefix="hetsched-")
    try:
        loader.load_kube_config_from_dict(kept, client_configuration=made, persist_config=False, temp_file_path=folder)
    except (ConfigException, ValueError, TypeError) as error:
        raise _malformed("", str(error)[:300]) from None
    return made


def inside() -> client.Configuration:
    """Return the configuration of a pod's own service account, whose token is read again as it is renewed.

    Raises: InputError `NotInCluster`.
    """
    made = client.Configuration()
    made.proxy = None
    try:
        loader.load_incluster_config(client_configuration=made)
    except ConfigException as error:
        raise InputError("NotInCluster", f"there is no service account here: {error}") from None
    return made


def _checked(document: Any, context: str) -> dict[str, Any]:
    """Return a kubeconfig that holds one context and nothing that was not looked at."""
    config = _mapping(document, "")
    name = context or config.get("current-context") or ""
    chosen = _entry(config, "context", name)
    if chosen is None:
        known = ", ".join(str(entry.get("name")) for entry in _entries(config, "context")) or "none"
        raise InputError(
            "KubeconfigContextUnknown", f"there is no context {name!r}", place="current-context", hint=f"Known: {known}"
        )
    parts: dict[str, dict[str, Any]] = {"context": chosen}
    for kind in ("cluster", "user"):
        found = _entry(config, kind, str(chosen.get(kind) or ""))
        if found is None:
            raise _malformed(f"contexts.context.{kind}", f"the file has no {kind} of this name")
        parts[kind] = found
    server = str(parts["cluster"].get("server") or "")
    if not _is_https(server):
        raise _malformed("clusters.cluster.server", "it is not an https URL of a host")
    if not parts["cluster"].get("certificate-authority-data"):
        raise _malformed("clusters.cluster.certificate-authority-data", "it is missing")
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": parts["cluster"]}],
        "users": [{"name": "chosen", "user": parts["user"]}],
    }


def _malformed(place: str, message: str) -> InputError:
    return InputError("KubeconfigMalformed", message, place=place)


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(place, "it is not a mapping")
    return value


def _entries(config: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    entries = config.get(_LISTS[kind]) or []
    if not isinstance(entries, list):
        raise _malformed(_LISTS[kind], "it is not a list")
    return [_mapping(entry, _LISTS[kind]) for entry in entries]


def _entry(config: dict[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    """Return what stands under a name, every field of it allowed and text."""
    for entry in _entries(config, kind):
        if entry.get("name") != name:
            continue
        place = f"{_LISTS[kind]}.{kind}"
        found = {key: value for key, value in _mapping(entry.get(kind) or {}, place).items() if value}
        for key, value in found.items():
            if key not in _FIELDS[kind]:
                raise InputError(
                    "KubeconfigRefused",
                    "only an inline server, authority, token and client certificate are taken",
                    place=f"{place}.{key}",
                    hint="kubectl config view --raw --flatten --minify writes such a file",
                )
            if not isinstance(value, str) or "\n" in value or "\0" in value:
                raise _malformed(f"{place}.{key}", "it is not one line of text")
        return found
    return None


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and not (parts.username or parts.query or parts.fragment)
