"""`hetsched agent`: pass the command line to the agent, which parses it itself."""

from __future__ import annotations

import typer

from hetsched.agent.command import main

SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def agent(context: typer.Context) -> None:
    """Report this machine once or continuously: instruction sets, CPUs and zones, GPUs, kubelet, load."""
    raise typer.Exit(main(context.args))
