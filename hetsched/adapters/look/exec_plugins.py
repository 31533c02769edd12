"""Run the exec plugin of a user's kubeconfig on the user's machine, as kubectl does.

The program is the user's own. It runs without a shell, and its standard error is the user's.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsched.adapters.exec_credentials.execution import ProgramFailure, run_program
from hetsched.adapters.exec_credentials.plugin import (
    PLACE,
    ExecCredential,
    ExecPlugin,
    exec_info,
    failed,
    read_credential,
)
from hetsched.contracts.errors import InputError

_SECONDS = 60.0
_HINT = "Log in again with the tool of the provider, or use another context"


def run_plugin(plugin: ExecPlugin, *, folder: Path, cluster: Mapping[str, Any]) -> ExecCredential:
    """Run an exec plugin and return its credential.

    `folder` is the folder of the kubeconfig, from which a relative command with a path is resolved. `cluster` is the
    value of `spec.cluster`, which the plugin receives if the kubeconfig asks for it.

    Raises: InputError `ExecPluginMissing`, `ExecPluginInteractive`, `ExecPluginFailed`, `ExecCredentialInvalid`.
    """
    interactive = _is_interactive(plugin)
    stated = {one.name: one.value for one in plugin.env or ()}
    info = exec_info(plugin, interactive=interactive, cluster=cluster)
    environment = {**os.environ, **stated, "KUBERNETES_EXEC_INFO": info}
    words = [_program(plugin, folder), *(plugin.args or ())]
    try:
        output = run_program(words, environment, seconds=None if interactive else _SECONDS)
    except ProgramFailure as failure:
        raise failed(plugin, failure.reason, _HINT) from None
    return read_credential(plugin, output)


def _is_interactive(plugin: ExecPlugin) -> bool:
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise InputError(
            "ExecPluginInteractive", f"the exec plugin {plugin.command!r} needs a terminal", place=PLACE,
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
            "ExecPluginMissing", f"there is no program {plugin.command!r}", place=f"{PLACE}.command", hint=hint
        )
    return found
