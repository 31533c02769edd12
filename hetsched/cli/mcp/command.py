"""`hetsched mcp`: serve the Model Context Protocol on standard input and output.

A program that assists a user starts the command and calls its tools. Each tool is one or more requests to the REST API
of a running server, with the rights of the token. The SDK `mcp` is an optional dependency.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..client import DEFAULT_SERVER, ServerOption, TokenOption, connect


def mcp(
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Add the tools that submit and cancel workloads.")
    ] = False,
) -> None:
    """Serve the Model Context Protocol on standard input and output: read-only tools for nodes, pods and policies."""
    from .server import build_server

    with connect(server, token) as client:
        build_server(client, allow_writes=allow_writes).run()
