"""HTTP client of a command, with its server and token.

A command uses one client. `main` handles the client's errors: exit code 3 for an unreachable server, a rejected token
or a server error; exit code 2 for a rejected request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetsched.client import Client, ServerUnavailable
from hetsched.client.client import DEFAULT_SERVER

from .output import duration, note

__all__ = ["DEFAULT_SERVER", "EXIT_UNREACHABLE", "Client", "ServerOption", "ServerUnavailable", "TokenOption"]

EXIT_UNREACHABLE = 3

ServerOption = Annotated[
    str, typer.Option("--server", envvar="HETSCHED_SERVER", metavar="URL", help="URL of the server.")
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token", envvar="HETSCHED_TOKEN", metavar="TOKEN", help="API token; prefer the environment variable.",
        show_default=False,
    ),
]  # fmt: skip


def connect(server: str, token: str) -> Client:
    """Open a client. Tests replace this function."""
    return Client(server, token, on_pause=lambda seconds: note(f"the server is busy; retrying in {duration(seconds)}"))
