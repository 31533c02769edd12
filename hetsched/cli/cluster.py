"""`hetsched cluster`: add, import, export and test the clusters of a server.

Rule: an import replaces what the cluster holds, all of it or nothing, and only if nobody changed the cluster since
this command looked at it. An export is a file that `whatif`, `simulate` and `import` read.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.markup import escape

from .client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from .options import read_inventory
from .output import Output, OutputFormat, console, note, print_json

app = typer.Typer(no_args_is_help=True, help="The clusters of a server: add, import, export, test.")


_JSON = {"Content-Type": "application/json"}

Name = Annotated[str, typer.Argument(help="Name of the cluster.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit log.")]
InventoryFiles = Annotated[
    list[str],
    typer.Option("--filename", "-f", metavar="FILE", help="Nodes and running pods; - is standard input."),
]


class ClusterKind(enum.StrEnum):
    OFFLINE = "offline"
    DEMO = "demo"


@app.command()
def add(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    kind: Annotated[ClusterKind, typer.Option(help="offline: what files say; demo: simulated.")] = ClusterKind.OFFLINE,
    reason: Reason = "added by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a new cluster; it has no nodes until something is imported."""
    body = msgspec.json.encode({"name": name, "kind": kind.value, "reason": reason})
    with connect(server, token) as client:
        document = client.send("POST", "clusters/", body=body, headers=_JSON).json()
    _tell(document, f"cluster [bold]{escape(name)}[/] added", output)


@app.command("import")
def import_inventory(
    name: Name,
    filename: InventoryFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "imported by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Replace what a cluster holds by the nodes and running pods of files."""
    body = msgspec.json.encode({"manifest": read_inventory(filename), "reason": reason})
    address = f"clusters/{quote(name, safe='')}/"
    with connect(server, token) as client:
        seen = client.send("GET", address).headers.get("ETag", "*")
        headers = {**_JSON, "If-Match": seen}
        document = client.send("POST", f"{address}import/", body=body, headers=headers).json()
    _tell(document, f"imported into [bold]{escape(name)}[/]", output)


def _tell(document: dict[str, Any], sentence: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        console().print(sentence, soft_wrap=True)


@app.command()
def export(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    out: Annotated[Path | None, typer.Option(help="File to write; standard output if left out.")] = None,
) -> None:
    """Write a cluster as a file."""
    with connect(server, token) as client:
        content = client.send("GET", f"clusters/{quote(name, safe='')}/export/").content
    if out is None:
        sys.stdout.buffer.write(content)
        return
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(content)
    part.replace(out)
    note(f"{len(content):,} bytes written to {out}")
