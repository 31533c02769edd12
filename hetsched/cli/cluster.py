"""`hetsched cluster`: add, connect, import, export and test the clusters of a server.

Rule: an import replaces what the cluster holds, all of it or nothing, and only if nobody changed the cluster since
this command looked at it. An export is a file that `whatif`, `simulate` and `import` read. Of a kubeconfig only the
chosen context is sent, checked here first.
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
from .options import read_inventory, read_kubeconfig
from .output import Output, OutputFormat, console, note, print_json, table

app = typer.Typer(no_args_is_help=True, help="The clusters of a server: add, connect, import, export, test.")

EXIT_NOT_WELL = 1
_JSON = {"Content-Type": "application/json"}

Name = Annotated[str, typer.Argument(help="Name of the cluster.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit log.")]
InventoryFiles = Annotated[
    list[str],
    typer.Option("--filename", "-f", metavar="FILE", help="Nodes and running pods; - is standard input."),
]


Kubeconfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="How a live cluster is reached; everything inline.")
]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig; its current one if left out.")]
InCluster = Annotated[bool, typer.Option("--in-cluster", help="The server runs inside this cluster.")]
Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", help="Submissions may use it; repeat for more.", show_default=False)
]
Shadow = Annotated[
    str | None,
    typer.Option(
        "--shadow", metavar="SCHEDULER", help="Follow it in shadow of this scheduler: compare, never write.",
        show_default=False,
    ),
]  # fmt: skip


PullSecrets = Annotated[
    bool | None,
    typer.Option("--read-pull-secrets/--no-read-pull-secrets", help="Read pull secrets to look images up."),
]


DiscoveryKubeconfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Of the account that labels nodes; without one they are only compared."),
]


class ClusterKind(enum.StrEnum):
    OFFLINE = "offline"
    DEMO = "demo"
    KUBERNETES = "kubernetes"


@app.command()
def add(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    kind: Annotated[
        ClusterKind | None,
        typer.Option(help="offline: what files say; demo: simulated; kubernetes: live.", show_default="offline"),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    in_cluster: InCluster = False,
    namespace: Namespaces = None,
    shadow: Shadow = None,
    read_pull_secrets: PullSecrets = None,
    discovery_kubeconfig: DiscoveryKubeconfig = None,
    reason: Reason = "added by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a new cluster: empty until something is imported, or a live one by its kubeconfig."""
    how = _how(kubeconfig, context, in_cluster, namespace, shadow, read_pull_secrets, discovery_kubeconfig)
    kind = kind or (ClusterKind.KUBERNETES if how else ClusterKind.OFFLINE)
    if (kind is ClusterKind.KUBERNETES) != (kubeconfig is not None or in_cluster):
        hint = "A cluster of kind kubernetes needs --kubeconfig FILE or --in-cluster, others have neither"
        raise InputError("ConnectionUnclear", f"a cluster of kind {kind.value} is asked for", place="--kind", hint=hint)
    body = msgspec.json.encode({"name": name, "kind": kind.value, "reason": reason, **how})
    with connect(server, token) as client:
        document = client.send("POST", "clusters/", body=body, headers=_JSON).json()
    _tell(document, f"cluster [bold]{escape(name)}[/] added", output)


@app.command("connect")
def reconnect(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    in_cluster: InCluster = False,
    namespace: Namespaces = None,
    shadow: Shadow = None,
    no_shadow: Annotated[bool, typer.Option("--no-shadow", help="Follow it in nobody's shadow any more.")] = False,
    read_pull_secrets: PullSecrets = None,
    discovery_kubeconfig: DiscoveryKubeconfig = None,
    reason: Reason = "connected by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Connect a live cluster anew, change the namespaces that submissions may use, or follow it in shadow.

    The rest stays as it is.
    """
    if no_shadow and shadow:
        raise InputError("ConnectionUnclear", "give --shadow or --no-shadow, not both", place="--shadow")
    shadow = "" if no_shadow else shadow
    how = _how(kubeconfig, context, in_cluster, namespace, shadow, read_pull_secrets, discovery_kubeconfig)
    address = f"clusters/{quote(name, safe='')}/"
    with connect(server, token) as client:
        seen = client.send("GET", address).headers.get("ETag", "*")
        body = msgspec.json.encode({"reason": reason, **how})
        headers = {**_JSON, "If-Match": seen}
        document = client.send("PUT", f"{address}connection/", body=body, headers=headers).json()
    _tell(document, f"cluster [bold]{escape(name)}[/] connected to {escape(document['server'])}", output)


def _how(
    kubeconfig: Path | None,
    context: str,
    in_cluster: bool,
    namespaces: list[str] | None,
    shadow: str | None,
    read_pull_secrets: bool | None,
    discovery_kubeconfig: Path | None,
) -> dict[str, Any]:
    """Return the part of a request that says how a cluster is reached, as far as the options say it."""
    how: dict[str, Any] = {}
    if kubeconfig is not None:
        how["kubeconfig"] = read_kubeconfig(kubeconfig, context)
    elif context:
        raise InputError("ConnectionUnclear", "there is no kubeconfig", place="--context", hint="Add --kubeconfig FILE")
    if in_cluster:
        how["inCluster"] = True
    if namespaces:
        how["namespaces"] = namespaces
    if shadow is not None:
        how["shadowOf"] = shadow
    if read_pull_secrets is not None:
        how["readPullSecrets"] = read_pull_secrets
    if discovery_kubeconfig is not None:
        how["discoveryKubeconfig"] = read_kubeconfig(discovery_kubeconfig, "")
    return how


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
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Replace every name of people, teams, machines and work.")
    ] = False,
    reason: Reason = "exported by command",
) -> None:
    """Write a cluster as a file; anonymised it decides the same and names nobody."""
    query = {"reason": reason} | ({"anonymise": "true"} if anonymise else {})
    with connect(server, token) as client:
        content = client.send("GET", f"clusters/{quote(name, safe='')}/export/", query=query).content
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

    Of a live cluster it names each right that hetsched lacks there, and each kind of object that is not followed.

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
    if cluster["kind"] == ClusterKind.KUBERNETES or _has_sources(client, name):
        found.extend(_asked_there(client, name))
    detail = _aged(f"{nodes} nodes Ready", ages.get("syncAgeSeconds"))
    return [*found, _check("inventory", cluster["nodeCount"] > 0, detail)]


def _has_sources(client: Client, name: str) -> bool:
    """Tell whether systems outside are asked about the cluster."""
    try:
        return bool(client.get(f"clusters/{quote(name, safe='')}/collectors/")["items"])
    except (ServerUnavailable, InputError):
        return False


def _asked_there(client: Client, name: str) -> list[dict[str, Any]]:
    """Have the server ask the API server of a live cluster: rights that are missing, sources that do not answer."""
    try:
        checks: list[dict[str, Any]] = client.send("POST", f"clusters/{quote(name, safe='')}/test/").json()["checks"]
    except (ServerUnavailable, InputError) as error:
        told = error.told if isinstance(error, ServerUnavailable) else error
        return [_check("right to test", False, f"{told.message} [{told.code}]")]
    return checks


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "detail": detail}


def _aged(detail: str, seconds: float | None) -> str:
    return detail if seconds is None else f"{detail}, {seconds:g} s ago"
