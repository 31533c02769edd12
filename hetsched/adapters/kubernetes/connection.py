"""Address and credentials of a cluster's API server, as a configuration of the official client.

The source is a kubeconfig that `kubeconfig` has validated, or the pod's own service account. Proxy variables of the
environment are ignored. The TLS library reads client certificates only from files, so they are written to a directory
private to this process. The directory is removed together with the configuration.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

from kubernetes import client
from kubernetes import config as loader
from kubernetes.config.config_exception import ConfigException

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

from .kubeconfig import Access, one_context


def from_kubeconfig(document: Any, *, context: str = "") -> client.Configuration:
    """Return the configuration for `context`, by default the current context, of a kubeconfig document.

    Raises: InputError `KubeconfigMalformed`, `KubeconfigContextUnknown` or `KubeconfigRefused`.
    """
    access = Access(one_context(document, context=context))
    made = client.Configuration(host=access.server)
    made.proxy = None  # proxy variables of the environment are for other traffic
    made.ca_cert_data = access.authority.decode()
    made.tls_server_name = access.server_name or None
    if access.token:
        made.api_key["BearerToken"] = f"Bearer {access.token}"
    if access.certificate:
        use_client_certificate(made, access.certificate, access.key)
    return made


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
