"""The field `exec` of a kubeconfig, and the ExecCredential that its program prints.

The output of a program contains the credential and is never shown.
Source: Kubernetes documentation, "client-go credential plugins"; client.authentication.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, verbatim

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLACE = "users.user.exec"


class EnvironmentVariable(msgspec.Struct, frozen=True):
    """Environment variable of an exec plugin."""

    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The field `exec` of a user in a kubeconfig."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    install_hint: str = ""
    interactive_mode: Literal["", "Never", "IfAvailable", "Always"] = ""
    provide_cluster_info: bool = False


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """Credential of an exec plugin: a token, or a client certificate with its key (PEM). `repr` hides it.

    Without `expiration_timestamp` the credential has no known end.
    """

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return "ExecCredential(…)"

    __str__ = __repr__


class _ExecAnswer(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: ExecCredential | None = None


def read_plugin(value: Any) -> ExecPlugin:
    """Convert the field `exec` of a user.

    Raises: InputError `KubeconfigMalformed`, or `ExecPluginUnsupported` for another API version.
    """
    try:
        plugin = msgspec.convert(value, ExecPlugin)
    except msgspec.ValidationError as error:
        raise InputError("KubeconfigMalformed", verbatim(str(error)), place=PLACE) from None
    if plugin.api_version not in VERSIONS or not plugin.command:
        message = Message(
            "the exec plugin uses {name} and {text}",
            name=repr(plugin.api_version[:80]), text=repr(plugin.command[:80]),
        )  # fmt: skip
        hint = Message("Use one of {text} and a command", text=", ".join(VERSIONS))
        raise InputError("ExecPluginUnsupported", message, place=PLACE, hint=hint)
    return plugin


def exec_info(plugin: ExecPlugin, *, interactive: bool, cluster: Mapping[str, Any]) -> str:
    """Return the variable KUBERNETES_EXEC_INFO of the program.

    `cluster` is the value of `spec.cluster`, which the program receives if the kubeconfig asks for it.
    """
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = dict(cluster)
    return encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


def read_credential(plugin: ExecPlugin, output: bytes) -> ExecCredential:
    """Parse the output of a program; no message quotes it. Raises: InputError `ExecCredentialInvalid`."""
    try:
        answer = msgspec.json.decode(output, type=_ExecAnswer)
    except msgspec.DecodeError:
        answer = None
    if answer is None or answer.kind != "ExecCredential":
        raise invalid(plugin, Message("its output is not an ExecCredential in JSON"))
    if answer.api_version != plugin.api_version:
        raise invalid(plugin, Message("its output does not have the API version {text}", text=plugin.api_version))
    status = answer.status
    if status is None or not (status.token or status.client_certificate_data):
        raise invalid(plugin, Message("its output has neither a token nor a client certificate"))
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise invalid(
            plugin, Message("its output has a client certificate without a key, or a key without a certificate")
        )
    if not status.token.isascii() or (status.token and not status.token.isprintable()):
        raise invalid(plugin, Message("the token is not one line of ASCII text"))
    return status


def invalid(plugin: ExecPlugin, reason: Message) -> InputError:
    message = Message(
        "the exec plugin {name} returned no credential: {reason}", name=repr(plugin.command), reason=reason
    )
    hint = "Run the program by hand and check its output"
    return InputError("ExecCredentialInvalid", message, place=PLACE, hint=hint)


def failed(plugin: ExecPlugin, reason: Message, hint: str) -> InputError:
    message = Message("the exec plugin {name} failed: {reason}", name=repr(plugin.command), reason=reason)
    return InputError("ExecPluginFailed", message, place=PLACE, hint=hint)
