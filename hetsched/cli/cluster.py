"""`hetsched cluster`: add, connect, import, export and test the clusters of a server.

An import is atomic and replaces the whole content of the cluster, but only if the cluster was not changed since this
command read it. An export is a file that `whatif`, `simulate` and `import` can read. The command validates a kubeconfig
and sends only the chosen context.
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

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts
from hetsched.contracts.objects.warnings import ManifestWarning

from .client import DEFAULT_SERVER, Client, ServerOption, ServerUnavailable, TokenOption, connect
from .options import read_inventory, read_kubeconfig
from .output import Output, OutputFormat, console, note, print_json, print_warnings, table

app = typer.Typer(no_args_is_help=True, help="Manage the clusters of a server: add, connect, import, export, test.")

EXIT_NOT_WELL = 1
_JSON = {"Content-Type": "application/json"}

Name = Annotated[str, typer.Argument(help="Name of the cluster.")]
Reason = Annotated[str, typer.Option(help="Reason for the audit trail.")]
InventoryFiles = Annotated[
    list[str],
    typer.Option("--filename", "-f", metavar="FILE", help="File with nodes and running pods; - reads standard input."),
]


Kubeconfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Kubeconfig of a live cluster; credentials must be inline.")
]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig; default: its current context.")]
InCluster = Annotated[bool, typer.Option("--in-cluster", help="Connect to the cluster in which the server runs.")]
Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", help="Namespace that submissions may use; can be repeated.", show_default=False),
]
Shadow = Annotated[
    str | None,
    typer.Option(
        "--shadow",
        metavar="SCHEDULER",
        help="Shadow mode: compare the decisions of hetsched with those of this scheduler, and write nothing.",
        show_default=False,
    ),
]


PullSecrets = Annotated[
    bool | None,
    typer.Option("--read-pull-secrets/--no-read-pull-secrets", help="Read pull secrets for image lookups."),
]


DiscoveryKubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Kubeconfig of the account that labels nodes; without it, discovery only reports differing labels.",
    ),
]


class ClusterKindOption(enum.StrEnum):
    OFFLINE = "offline"
    DEMO = "demo"
    KUBERNETES = "kubernetes"


@app.command()
def add(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    kind: Annotated[
        ClusterKindOption | None,
        typer.Option(
            help="offline: read from files; demo: simulated; kubernetes: live cluster.", show_default="offline"
        ),
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
    """Add an empty cluster for imports, or a live cluster with a kubeconfig."""
    how = _connection_fields(
        kubeconfig, context, in_cluster, namespace, shadow, read_pull_secrets, discovery_kubeconfig
    )
    kind = kind or (ClusterKindOption.KUBERNETES if how else ClusterKindOption.OFFLINE)
    if (kind is ClusterKindOption.KUBERNETES) != (kubeconfig is not None or in_cluster):
        hint = "Kind kubernetes needs --kubeconfig FILE or --in-cluster; other kinds take neither"
        raise InputError("ConnectionUnclear", f"the options do not fit kind {kind.value}", place="--kind", hint=hint)
    body = encode({"name": name, "kind": kind.value, "reason": reason, **how})
    with connect(server, token) as client:
        document = client.send("POST", "clusters/", body=body, headers=_JSON).json()
    _print_result(document, f"cluster [bold]{escape(name)}[/] added", output)


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
    no_shadow: Annotated[bool, typer.Option("--no-shadow", help="Leave shadow mode.")] = False,
    read_pull_secrets: PullSecrets = None,
    discovery_kubeconfig: DiscoveryKubeconfig = None,
    reason: Reason = "connected by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Change the connection of a live cluster: kubeconfig, namespaces of submissions, shadow mode.

    Omitted options keep their value.
    """
    if no_shadow and shadow:
        raise InputError("ConnectionUnclear", "--shadow and --no-shadow cannot be combined", place="--shadow")
    shadow = "" if no_shadow else shadow
    how = _connection_fields(
        kubeconfig, context, in_cluster, namespace, shadow, read_pull_secrets, discovery_kubeconfig
    )
    address = f"clusters/{quote(name, safe='')}/"
    with connect(server, token) as client:
        seen = client.send("GET", address).headers.get("ETag", "*")
        body = encode({"reason": reason, **how})
        headers = {**_JSON, "If-Match": seen}
        document = client.send("PUT", f"{address}connection/", body=body, headers=headers).json()
    _print_result(document, f"cluster [bold]{escape(name)}[/] connected to {escape(document['server'])}", output)


def _connection_fields(
    kubeconfig: Path | None,
    context: str,
    in_cluster: bool,
    namespaces: list[str] | None,
    shadow: str | None,
    read_pull_secrets: bool | None,
    discovery_kubeconfig: Path | None,
) -> dict[str, Any]:
    """Return the connection fields of a request body: only those whose options are set."""
    how: dict[str, Any] = {}
    if kubeconfig is not None:
        how["kubeconfig"] = read_kubeconfig(kubeconfig, context)
    elif context:
        raise InputError(
            "ConnectionUnclear", "a kubeconfig is missing", place="--context", hint="Add --kubeconfig FILE"
        )
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
    """Replace the nodes and running pods of a cluster with the content of files."""
    body = read_inventory(filename).encode()
    address = f"clusters/{quote(name, safe='')}/"
    with connect(server, token) as client:
        seen = client.send("GET", address).headers.get("ETag", "*")
        headers = {"Content-Type": "application/yaml", "If-Match": seen}
        query = {"reason": reason}
        document = client.send("POST", f"{address}import/", query=query, body=body, headers=headers).json()
    print_warnings(msgspec.convert(document.get("warnings", ()), tuple[ManifestWarning, ...], dec_hook=from_parts))
    _print_result(document, f"imported into [bold]{escape(name)}[/]", output)


def _print_result(document: dict[str, Any], sentence: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        console().print(sentence, soft_wrap=True)


@app.command()
def export(
    name: Name,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
    anonymise: Annotated[
        bool,
        typer.Option("--anonymise", help="Replace names of people, teams, machines and workloads with pseudonyms."),
    ] = False,
    reason: Reason = "exported by command",
) -> None:
    """Export a cluster to a file; decisions on an anonymised export equal those on the original."""
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
    """Test the access to a cluster: server, its components, rights of the token, age of the data.

    For a live cluster the test lists each missing right and each kind of object that is not watched.

    Exit codes: 0 all checks passed, 1 a check failed, 3 server unreachable.
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
    """Run the checks step by step; a check is skipped if an earlier check that it depends on failed."""
    client.probe("/healthz")
    found = [_check("server", True, client.server)]
    _, ready = client.probe("/readyz")
    for part, state in ready.get("components", {}).items():
        found.append(_check(part, state["ok"], _with_age(state.get("detail", ""), state.get("ageSeconds"))))
    try:
        cluster = client.get(f"clusters/{quote(name, safe='')}/")
    except (ServerUnavailable, InputError) as error:
        problem = error.problem if isinstance(error, ServerUnavailable) else error
        return [*found, _check("right to view", False, f"{problem.message} [{problem.code}]")]
    nodes, ages = f"{cluster['readyCount']} of {cluster['nodeCount']}", ready.get("clusters", {}).get(name, {})
    found.append(_check("right to view", True, cluster["kind"]))
    if cluster["kind"] == ClusterKindOption.KUBERNETES or _has_sources(client, name):
        found.extend(_check_connection(client, name))
    detail = _with_age(f"{nodes} nodes Ready", ages.get("syncAgeSeconds"))
    return [*found, _check("inventory", cluster["nodeCount"] > 0, detail)]


def _has_sources(client: Client, name: str) -> bool:
    """Return whether the cluster has collectors."""
    try:
        return bool(client.get(f"clusters/{quote(name, safe='')}/collectors/")["items"])
    except (ServerUnavailable, InputError):
        return False


def _check_connection(client: Client, name: str) -> list[dict[str, Any]]:
    """Request a connection test of a cluster, including rights and metric sources, and return its checks."""
    try:
        checks: list[dict[str, Any]] = client.send("POST", f"clusters/{quote(name, safe='')}/test/").json()["checks"]
    except (ServerUnavailable, InputError) as error:
        problem = error.problem if isinstance(error, ServerUnavailable) else error
        return [_check("right to test", False, f"{problem.message} [{problem.code}]")]
    return checks


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "detail": detail}


def _with_age(detail: str, seconds: float | None) -> str:
    return detail if seconds is None else f"{detail}, {seconds:g} s ago"
