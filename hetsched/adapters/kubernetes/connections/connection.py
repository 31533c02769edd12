"""Address and credentials of a cluster's API server, as a configuration of the official client.

The source is a kubeconfig that `kubeconfig` has validated, or the pod's own service account. Proxy variables of the
environment are ignored. The TLS library reads client certificates only from files, so they are written to a directory
private to this process. The directory is removed together with the configuration.

If the kubeconfig names a program for its credentials, the configuration requests them from the program when they are
needed, and again before they end or after the API server has rejected them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from base64 import b64encode
from typing import Any

from kubernetes import client
from kubernetes import config as loader
from kubernetes.config.config_exception import ConfigException

from hetsched.adapters.exec_credentials.allowed_programs import ExecPolicy
from hetsched.adapters.exec_credentials.kept_credential import KeptCredential, kept_credential
from hetsched.adapters.exec_credentials.plugin import ExecCredential
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

from .kubeconfig import NO_PROGRAMS, Access, one_context


def from_kubeconfig(document: Any, *, programs: ExecPolicy = NO_PROGRAMS) -> client.Configuration:
    """Return the configuration for the current context of a kubeconfig document.

    `programs` are the programs that may be run for credentials.
    Raises: InputError `KubeconfigMalformed`, `KubeconfigContextUnknown` or `KubeconfigRefused`, or the errors of a
    program.
    """
    access = Access(one_context(document, programs=programs))
    made = client.Configuration(host=access.server)
    made.proxy = None  # proxy variables of the environment are for other traffic
    made.ca_cert_data = access.authority.decode()
    made.tls_server_name = access.server_name or None
    if access.token:
        made.api_key["BearerToken"] = f"Bearer {access.token}"
    if access.certificate:
        use_client_certificate(made, access.certificate, access.key)
    if access.plugin is not None:
        described = {
            "server": access.server,
            "certificate-authority-data": b64encode(access.authority).decode(),
            **({"tls-server-name": access.server_name} if access.server_name else {}),
        }
        hook = ExecCredentialHook(kept_credential(access.plugin, programs, described))
        hook(made)
        made.refresh_api_key_hook = hook  # type: ignore[assignment]  # the official client declares no type
    return made


class ExecCredentialHook:
    """Hook of a configuration: before each request it sets the current credential of a program."""

    def __init__(self, credential: KeptCredential) -> None:
        self._credential = credential
        self._used: ExecCredential | None = None
        self._lock = threading.Lock()

    def __call__(self, configuration: client.Configuration) -> None:
        """Set the credential. Raises: InputError `ExecPluginFailed`, `ExecCredentialInvalid`."""
        found = self._credential.current()
        with self._lock:
            if found is self._used:
                return
            if found.token:
                configuration.api_key["BearerToken"] = f"Bearer {found.token}"
            if found.client_certificate_data:
                before = configuration.cert_file
                certificate, key = found.client_certificate_data.encode(), found.client_key_data.encode()
                use_client_certificate(configuration, certificate, key)
                if before:
                    shutil.rmtree(os.path.dirname(before), ignore_errors=True)
            self._used = found

    def may_block(self) -> bool:
        """Return True if the next request would wait for the program."""
        return self._credential.may_block()

    def reject(self) -> None:
        """Request another credential, because the API server rejected the current one."""
        self._credential.reject()


def use_client_certificate(configuration: client.Configuration, certificate: bytes, key: bytes) -> None:
    """Set the client certificate of a configuration, PEM, in files that are removed together with it."""
    folder = tempfile.mkdtemp(prefix="hetsched-")
    weakref.finalize(configuration, shutil.rmtree, folder, True)
    configuration.cert_file = _written(folder, "client.crt", certificate)
    configuration.key_file = _written(folder, "client.key", key)


def inside() -> client.Configuration:
    """Return the configuration of the pod's service account; its token is reloaded when it is rotated.

    Raises: InputError `NotInCluster`.
    """
    made = client.Configuration()
    made.proxy = None
    try:
        loader.load_incluster_config(client_configuration=made)
    except ConfigException as error:
        raise InputError(
            "NotInCluster", Message("this process has no service account: {text}", text=str(error))
        ) from None
    return made


def _written(folder: str, name: str, content: bytes) -> str:
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path
