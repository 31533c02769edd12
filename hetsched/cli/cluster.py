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

from hetsched.contracts.errors import InputError

from .client import DEFAULT_SERVER, Client, ServerOption, ServerUnavailable, TokenOption, connect
from .options import read_inventory
from .output import Output, OutputFormat, console, note, print_json, table

app = typer.Typer(no_args_is_help=True, help="The clusters of a server: add, import, export, test.")

EXIT_NOT_WELL = 1
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
    body = read_inventory(filename).encode()
    address = f"clusters/{quote(name, safe='')}/"
    with connect(server, token) as client:
        seen = client.send("GET", address).headers.get("ETag", "*")
        headers = {"Content-Type": "application/yaml", "If-Match": seen}
        query = {"reason": reason}
        document = client.send("POST", f"{address}import/", query=query, body=body, headers=headers).json()
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
    reason: Reason = "exported by command",
) -> None:
    """Write a cluster as a file."""
    with connect(server, token) as client:
        content = client.send("GET", f"clusters/{quote(name, safe='')}/export/", query={"reason": reason}).content
    if out is None:
        sys.stdout.buffer.write(content)
        return
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(content)
    part.replace(out)
    note(f"{len(content):,} bytes written to {out}")


@app.command("test")
def check(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say what stands between you and this cluster: server, its parts, the token's rights, the cluster's age.

    Exit codes: 0 all well, 1 something is not, 3 server unreachable.
    """
    with connect(server, token) as client:
        checks = _checks(client, name)
    well = all(found["ok"] for found in checks)
    if output is OutputFormat.JSON:
        print_json({"cluster": name, "ok": well, "checks": checks})
    else:
        shown = table("check", "", "detail")
        for found in checks:
            mark = "[green]ok[/]" if found["ok"] else "[red]failed[/]"
            shown.add_row(escape(found["check"]), mark, escape(found["detail"]))
        console().print(shown)
    raise typer.Exit(0 if well else EXIT_NOT_WELL)


def _checks(client: Client, name: str) -> list[dict[str, Any]]:
    """Ask step by step; what cannot be asked without the step before is left out."""
    client.probe("/healthz")
    found = [_check("server", True, client.server)]
    _, ready = client.probe("/readyz")
    for part, state in ready.get("components", {}).items():
        found.append(_check(part, state["ok"], _aged(state.get("detail", ""), state.get("ageSeconds"))))
    try:
        cluster = client.get(f"clusters/{quote(name, safe='')}/")
    except (ServerUnavailable, InputError) as error:
        told = error.told if isinstance(error, ServerUnavailable) else error
        return [*found, _check("right to view", False, f"{told.message} [{told.code}]")]
    nodes, ages = f"{cluster['readyCount']} of {cluster['nodeCount']}", ready.get("clusters", {}).get(name, {})
    found.append(_check("right to view", True, cluster["kind"]))
    detail = _aged(f"{nodes} nodes Ready", ages.get("syncAgeSeconds"))
    return [*found, _check("inventory", cluster["nodeCount"] > 0, detail)]


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "detail": detail}


def _aged(detail: str, seconds: float | None) -> str:
    return detail if seconds is None else f"{detail}, {seconds:g} s ago"
