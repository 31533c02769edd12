"""Credentials from the exec plugin of a user's kubeconfig.

The plugin is the user's own program and runs on the user's machine, as with kubectl; the server never runs one. It runs
without a shell. Its standard error is the user's. Its standard output contains the credential and is never shown.
Source: Kubernetes documentation, "client-go credential plugins"; client.authentication.k8s.io/v1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_SECONDS = 60.0
_MOST_BYTES = 1 << 20
_PLACE = "users.user.exec"


class EnvironmentVariable(msgspec.Struct, frozen=True):
    """Environment variable of an exec plugin."""

    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """The field `exec` of a user in a kubeconfig."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    install_hint: str = ""
    interactive_mode: Literal["", "Never", "IfAvailable", "Always"] = ""
    provide_cluster_info: bool = False


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """Credential of an exec plugin: a token, or a client certificate with its key (PEM). `repr` hides it."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""

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
        raise InputError("KubeconfigMalformed", str(error), place=_PLACE) from None
    if plugin.api_version not in _VERSIONS or not plugin.command:
        raise InputError(
            "ExecPluginUnsupported", f"the exec plugin uses {plugin.api_version!r} and {plugin.command!r}",
            place=_PLACE, hint=f"Use one of {', '.join(_VERSIONS)} and a command",
        )  # fmt: skip
    return plugin


def run_plugin(plugin: ExecPlugin, *, folder: Path, cluster: Mapping[str, Any]) -> ExecCredential:
    """Run an exec plugin and return its credential.

    `folder` is the folder of the kubeconfig, from which a relative command with a path is resolved. `cluster` is the
    value of `spec.cluster`, which the plugin receives if the kubeconfig asks for it.

    Raises: InputError `ExecPluginMissing`, `ExecPluginFailed`, `ExecCredentialInvalid`.
    """
    interactive = _is_interactive(plugin)
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = dict(cluster)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    stated = {one.name: one.value for one in plugin.env or ()}
    environment = {**os.environ, **stated, "KUBERNETES_EXEC_INFO": encode(info).decode()}
    try:
        answer = subprocess.run(
            [_program(plugin, folder), *(plugin.args or ())],
            env=environment, stdin=None if interactive else subprocess.DEVNULL, stdout=subprocess.PIPE,
            timeout=None if interactive else _SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _failed(plugin, f"it did not end within {_SECONDS:g} s") from None
    except OSError as error:
        raise _failed(plugin, error.strerror or type(error).__name__) from None
    if answer.returncode:
        raise _failed(plugin, f"exit code {answer.returncode}")
    return _credential(plugin, answer.stdout)


def _is_interactive(plugin: ExecPlugin) -> bool:
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise InputError(
            "ExecPluginInteractive", f"the exec plugin {plugin.command!r} needs a terminal", place=_PLACE,
            hint="Run the command in a terminal, or use a context with another credential",
        )  # fmt: skip
    return terminal and plugin.interactive_mode != "Never"


def _program(plugin: ExecPlugin, folder: Path) -> str:
    if os.sep in plugin.command and not os.path.isabs(plugin.command):
        path = str(folder / plugin.command)
    else:
        path = plugin.command
    found = shutil.which(path)
    if found is None:
        hint = " ".join(plugin.install_hint.split())[:500] or "Install the program, or add its folder to PATH"
        raise InputError(
            "ExecPluginMissing", f"there is no program {plugin.command!r}", place=f"{_PLACE}.command", hint=hint
        )
    return found


def _credential(plugin: ExecPlugin, output: bytes) -> ExecCredential:
    """Parse the output of a plugin; no message quotes it."""
    try:
        answer = msgspec.json.decode(output, type=_ExecAnswer) if len(output) <= _MOST_BYTES else None
    except msgspec.DecodeError:
        answer = None
    if answer is None or answer.kind != "ExecCredential":
        raise _invalid(plugin, "its output is not an ExecCredential in JSON")
    if answer.api_version != plugin.api_version:
        raise _invalid(plugin, f"its output does not have the API version {plugin.api_version}")
    status = answer.status
    if status is None or not (status.token or status.client_certificate_data):
        raise _invalid(plugin, "its output has neither a token nor a client certificate")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _invalid(plugin, "its output has a client certificate without a key, or a key without a certificate")
    return status


def _invalid(plugin: ExecPlugin, reason: str) -> InputError:
    return InputError(
        "ExecCredentialInvalid", f"the exec plugin {plugin.command!r} returned no credential: {reason}", place=_PLACE,
        hint="Run the program by hand and check its output",
    )  # fmt: skip


def _failed(plugin: ExecPlugin, reason: str) -> InputError:
    return InputError(
        "ExecPluginFailed", f"the exec plugin {plugin.command!r} failed: {reason}", place=_PLACE,
        hint="Log in again with the tool of the provider, or use another context",
    )  # fmt: skip
