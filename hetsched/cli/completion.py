"""`hetsched completion`: print the script that enables completion in a shell."""

from __future__ import annotations

import enum
from typing import Annotated

import typer
from typer.completion import get_completion_script

_VARIABLE = "_HETSCHED_COMPLETE"


class ShellName(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[ShellName, typer.Argument(help="Shell to print the completion for.")]) -> None:
    """Print the shell completion; it completes names of the server in HETSCHED_SERVER."""
    print(get_completion_script(prog_name="hetsched", complete_var=_VARIABLE, shell=shell.value))
