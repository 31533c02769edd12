"""Programs that an installation allows for the credentials of its connections.

A kubeconfig comes from a client of the API, so it may run only a program that the installation names, and may set only
variables that the installation names: PATH or LD_PRELOAD would replace the program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

from .plugin import PLACE, ExecPlugin, read_plugin

MOST_ARGUMENTS, MOST_VARIABLES, LONGEST = 64, 32, 4096
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALLOW = "Add the program to HETSCHED_EXEC_CREDENTIALS of the server, or use a service account token"


class ExecPolicy(msgspec.Struct, frozen=True):
    """Absolute paths of the allowed programs, and the names of the variables that the programs receive.

    The value of a variable is that of the kubeconfig, else that of this process.
    """

    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def program_of(self, plugin: ExecPlugin) -> str:
        """Return the path of the program of a plugin; a command without a folder selects the program of this name.

        Raises: InputError `KubeconfigRefused`, with the reason.
        """
        if not self.programs:
            raise _refused(
                Message("this server runs no program for credentials"),
                _ALLOW,
            )
        found = [path for path in self.programs if plugin.command in (path, os.path.basename(path))]
        if len(found) != 1:
            raise _refused(
                Message("this server does not allow the program {name}", name=repr(plugin.command[:200])),
                _ALLOW,
                part=".command",
            )
        if plugin.interactive_mode == "Always":
            raise _refused(
                Message("the program needs a terminal"),
                "Use a program that runs without a terminal, or use a service account token",
                part=".interactiveMode",
            )
        for variable in plugin.env or ():
            if variable.name not in self.variables:
                raise _refused(
                    Message("this server does not allow the variable {name}", name=repr(variable.name[:200])),
                    "Add the variable to HETSCHED_EXEC_ENVIRONMENT of the server, or remove it from the kubeconfig",
                    part=".env",
                )
        return found[0]

    def environment_of(self, plugin: ExecPlugin, own: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program: PATH, LANG, HOME and the allowed variables of `own` and the plugin."""
        kept = {name: own[name] for name in ("HOME", *self.variables) if name in own}
        stated = {variable.name: variable.value for variable in plugin.env or ()}
        return {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", **kept, **stated}


def accepted_plugin(value: Any, policy: ExecPolicy | None) -> dict[str, Any]:
    """Return the validated field `exec` of an untrusted kubeconfig, without fields for people.

    Without a policy, the program is not checked: the server that receives the kubeconfig checks it.
    Raises: InputError `KubeconfigRefused`, `KubeconfigMalformed`, `ExecPluginUnsupported`.
    """
    if policy is not None and not policy.programs:
        policy.program_of(ExecPlugin("", ""))
    plugin = msgspec.structs.replace(read_plugin(value), install_hint="")
    texts = [plugin.command, *(plugin.args or ())]
    for variable in plugin.env or ():
        texts += [variable.name, variable.value]
    if len(plugin.args or ()) > MOST_ARGUMENTS or len(plugin.env or ()) > MOST_VARIABLES:
        message = Message("more than {n} arguments or {m} variables", n=MOST_ARGUMENTS, m=MOST_VARIABLES)
        raise InputError("KubeconfigMalformed", message, place=PLACE)
    if any(len(text) > LONGEST or not text.isprintable() for text in texts):
        message = Message("each text must be one printable line of at most {n} characters", n=LONGEST)
        raise InputError("KubeconfigMalformed", message, place=PLACE)
    if policy is not None:
        policy.program_of(plugin)
    accepted: dict[str, Any] = to_plain(plugin)
    return accepted


def _refused(message: Message, hint: str, *, part: str = "") -> InputError:
    return InputError("KubeconfigRefused", message, place=f"{PLACE}{part}", hint=hint)
