"""`hetsched completion`: what a shell loads so that TAB completes commands, options, and the names a server has."""

from __future__ import annotations

import enum
from typing import Annotated

import typer
from typer.completion import get_completion_script

_VARIABLE = "_HETSCHED_COMPLETE"


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that loads it.")]) -> None:
    """Print the completion of a shell; names are those of the server in HETSCHED_SERVER."""
    print(get_completion_script(prog_name="hetsched", complete_var=_VARIABLE, shell=shell.value))
