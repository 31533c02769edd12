"""`hetsched policy`: preview a version, compare versions, check golden placements.

Versions are checked on a server. Files are checked without a server, so that a pipeline can check a policy before it is
merged. Exit codes: 0 success, 1 a golden placement is broken (or, with `--fail-on`, the preview has a forbidden
result), 2 invalid input, 3 server unreachable. A golden placement that cannot be checked is reported as unknown.
"""

from __future__ import annotations

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .options import STDIN, choose_policies, read_cluster, read_sources
from .output import Output, OutputFormat, ProgressDisplay, console, note, print_json, table

if TYPE_CHECKING:
    from hetsched.contracts.api.golden import GoldenCheck

app = typer.Typer(help="Preview and compare policies and check golden placements.", no_args_is_help=True)
golden = typer.Typer(help="Check and export golden placements.", no_args_is_help=True)
app.add_typer(golden, name="golden")

EXIT_BROKEN = 1
_SHOWN = 20
_WAIT_SECONDS = 20
_METRICS = ("balance", "cpuUtilization", "memoryUtilization", "gpuAllocation", "unallocatedGpus", "gpuFragmentation")


class PolicyFailure(enum.StrEnum):
    MOVED = "moved"
    INFEASIBLE = "infeasible"


@app.command("preview")
def preview(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    version: Annotated[int, typer.Option("--version", min=1, help="Version to preview.", show_default=False)],
    cluster: Annotated[str, typer.Option(help="Cluster whose decisions are replayed.", show_default=False)] = "",
    last: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of decisions to replay, each of a different pod.")
    ] = 1000,
    all_pods: Annotated[
        bool, typer.Option("--all", help="Use this version also for pods that name another policy.")
    ] = False,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", help="Compare with the versions that made the decisions instead of the active version."
        ),
    ] = False,
    fail_on: Annotated[
        PolicyFailure | None,
        typer.Option(
            "--fail-on",
            help="moved: exit 1 if a pod moves or finds no node; infeasible: exit 1 only if a pod finds no node.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Replay decisions with a version of a policy, and show changed placements and cluster metrics."""
    asked = {
        "version": version, "cluster": cluster, "last": last, "scope": "all" if all_pods else "own",
        "baseline": "recorded" if recorded else "active",
    }  # fmt: skip
    with connect(server, token) as client:
        address = f"policies/{quote(name, safe='')}/preview/"
        made = client.send("POST", address, body=encode(asked), headers=_JSON).json()
        found = _wait_for_preview(client, f"{address}{made['id']}/")
    problem, result = found["problem"], found["result"]
    if problem is not None:
        raise InputError(problem["code"], problem["message"], place=f"{name}@{version}")
    if result is None:
        raise InputError("PreviewCancelled", "the preview was cancelled", place=f"{name}@{version}")
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        _show_preview(console(), found)
    bad = {
        None: 0,
        PolicyFailure.MOVED: result["moved"] + result["infeasible"],
        PolicyFailure.INFEASIBLE: result["infeasible"],
    }
    raise typer.Exit(EXIT_BROKEN if bad[fail_on] else 0)


def _wait_for_preview(client: Client, address: str) -> dict[str, Any]:
    """Wait for the end of a preview and show its progress; Ctrl-C cancels the preview."""
    try:
        with ProgressDisplay("preview", 100) as track:
            while True:
                began = time.monotonic()
                found: dict[str, Any] = client.get(address, wait=1 if sys.stderr.isatty() else _WAIT_SECONDS)
                track(round(100 * found["progress"]))
                if found["state"] not in ("waiting", "running"):
                    return found
                time.sleep(max(0.0, 0.2 - (time.monotonic() - began)))
    except KeyboardInterrupt:
        client.send("DELETE", address)
        raise


def _show_preview(out: Console, found: dict[str, Any]) -> None:
    result = found["result"]
    out.print(
        f"{result['decisions']:,} decisions of {escape(found['cluster'])}, {result['from']} to {result['to']}, "
        f"{result['departures']:,} pods ended and {result['foreign']:,} pods of other schedulers were added in between",
        soft_wrap=True,
    )
    before, after = result["baseline"], result["draft"]
    shown = table("", _side_label(before), _side_label(after), right=(_side_label(before), _side_label(after)))
    for key in ("placed", "pending", "evicted"):
        shown.add_row(key, f"{before[key]:,}", f"{after[key]:,}")
    for key in _METRICS:
        shown.add_row(key, *(_figure(side["metrics"][key]) for side in (before, after)))
    out.print(shown)
    out.print(
        f"same {result['same']:,}, moved {result['moved']:,}, newly infeasible {result['infeasible']:,}, "
        f"newly feasible {result['feasible']:,}, unplaced under both {result['pendingBoth']:,}",
        soft_wrap=True,
    )
    changes = table("pod", "from", "to", "margin", "", right=("margin",))
    for change in result["changes"][:_SHOWN]:
        margin = "" if change["margin"] is None else f"{change['margin']:+.2f}"
        cells = (change["pod"], change["from"] or "-", change["to"] or "-", margin, change["reason"] or "")
        changes.add_row(*map(escape, cells))
    if changes.row_count:
        out.print(changes)
    fidelity = result["fidelity"]
    why = ", ".join(f"{reason['code']} {reason['pods']:,}" for reason in fidelity["reasons"])
    out.print(
        f"[dim]{fidelity['equal']:,} of {fidelity['compared']:,} pods are on the node that the baseline chooses"
        f"{f' ({why})' if why else ''}[/]",
        soft_wrap=True,
    )
    for entry in result["notes"]:
        note(entry["message"])


def _side_label(side: dict[str, Any]) -> str:
    return escape(f"{side['policy']} v{side['version']}" if side["version"] else f"{side['policy']} at that time")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"


@app.command("diff")
def difference(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    before: Annotated[int, typer.Argument(metavar="N", min=0, help="Earlier version; 0 for an empty policy.")],
    after: Annotated[int, typer.Argument(metavar="M", min=1, help="Later version.")],
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the differences between two versions of a policy."""
    with connect(server, token) as client:
        found = client.get(f"policies/{quote(name, safe='')}/versions/{before}/diff/{after}/")
    if output is OutputFormat.JSON:
        print_json(found)
        return
    out, changes = console(), found["diff"]
    if changes["same"]:
        out.print("the versions are identical")
        return
    shown = table("plugin", "", "place", "weight", "parameters", right=("place", "weight"))
    for plugin in changes["plugins"]:
        change = "moved" if plugin["moved"] and plugin["change"] == "changed" else plugin["change"]
        params = ", ".join(f"{p['name']} {_plain(p['before'])} -> {_plain(p['after'])}" for p in plugin["params"])
        shown.add_row(
            plugin["plugin"],
            change,
            _change_text(plugin["placeBefore"], plugin["placeAfter"]),
            _change_text(plugin["weightBefore"], plugin["weightAfter"]),
            escape(params),
        )
    if shown.row_count:
        out.print(shown)
    for field in ("ties", "description"):
        if changes[field]:
            line = f"{field}: {_plain(changes[field]['before'])} -> {_plain(changes[field]['after'])}"
            out.print(escape(line), soft_wrap=True)


def _plain(value: Any) -> str:
    return encode(value).decode()


def _change_text(before: float | None, after: float | None) -> str:
    texts = ["-" if value is None else f"{value:g}" for value in (before, after)]
    return texts[0] if before == after else " -> ".join(texts)


@golden.command("check")
def check(
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="NAME|FILE",
            help="Name of a cluster on the server, or files with nodes.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="Policy to check; with -f, the option can be repeated.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        int, typer.Option("--version", min=0, help="Version on the server; 0 for the active version.")
    ] = 0,
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="File with GoldenPlacement objects; with this option, the values of --cluster are files.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check golden placements under a policy, on the server or on files.

    Exit codes: 0 none is broken, 1 at least one is broken, 2 invalid input, 3 server unreachable.
    """
    if filename:
        found = _check_files(cluster or [], policy or [], filename)
    else:
        found = _check_server(cluster or [], policy or [], version, server, token)
    if output is OutputFormat.JSON:
        print_json({"results": [to_plain(one) for one in found]})
    else:
        _show_goldens(console(), found)
    raise typer.Exit(EXIT_BROKEN if any(one.broken for one in found) else 0)


def _check_server(cluster: list[str], policy: list[str], version: int, server: str, token: str) -> list[GoldenCheck]:
    """Check golden placements on the server; a policy from a file is not saved."""
    from hetsched.adapters.files import parse_cluster
    from hetsched.contracts.api.golden import GoldenCheck

    if len(policy) != 1 or len(cluster) > 1:
        text = "without -f, one --policy and at most one --cluster are possible"
        raise InputError("OptionMissing", text, place="--policy", hint="Use --policy NAME, or -f FILE to check files")
    asked: dict[str, Any] = {"policy": policy[0], "version": version, "cluster": "".join(cluster)}
    if policy[0] == STDIN or Path(policy[0]).is_file():
        read = parse_cluster(read_sources(policy, "--policy")).policies
        if len(read) != 1:
            message = f"the file must contain one SchedulingPolicy object, not {len(read)}"
            raise InputError("PolicyAmbiguous", message, place=f"--policy {policy[0]}")
        spec = read[0]
        asked |= {"policy": spec.name, "version": 0, "plugins": to_plain(spec.plugins)}
        asked["ties"] = to_plain(spec.ties)
    with connect(server, token) as client:
        body = encode(asked)
        found = client.send("POST", "golden-placements/check/", body=body, headers=_JSON, repeat=True).json()
    return [msgspec.convert(found, GoldenCheck, dec_hook=from_parts)]


def _check_files(cluster: list[str], policy: list[str], filename: list[str]) -> list[GoldenCheck]:
    """Check golden placements from files, without a server."""
    from hetsched.adapters.objects.golden_placements import parse_goldens
    from hetsched.contracts.api.golden import GoldenCheck
    from hetsched.contracts.objects.cluster import ClusterContent
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.framework.cycle import Scheduler
    from hetsched.engine.framework.policy import compile_policy
    from hetsched.engine.framework.registry import load_registry
    from hetsched.engine.simulation.golden_placements import empty, judge

    nodes = read_cluster(cluster)
    goldens = parse_goldens(read_sources(filename, "-f"), cluster=Path(cluster[0]).stem, known=nodes)
    specs, _ = choose_policies(policy, nodes, ClusterContent())
    state = ClusterState.of(nodes, nodes=empty(nodes.nodes), running=())
    found = []
    for spec in specs:
        scheduler = Scheduler(state.fork(), compile_policy(spec, load_registry(), implied=True))
        own = [definition.golden for definition in goldens if definition.policy in ("", spec.name)]
        found.append(GoldenCheck.of(spec.name, 0, tuple(judge(scheduler, golden) for golden in own)))
    return found


def _show_goldens(out: Console, found: list[GoldenCheck]) -> None:
    colours = {"kept": "green", "broken": "red", "unknown": "yellow"}
    for one in found:
        version = f" v{one.version}" if one.version else ""
        out.print(
            f"[bold]{escape(one.policy)}{version}[/]: {one.kept} kept, {one.broken} broken, {one.unknown} unknown"
        )
        shown = table("state", "golden", "cluster", "expected", "got")
        for result in one.results:
            state = f"[{colours[result.state]}]{result.state.value}[/]"
            shown.add_row(state, *map(escape, (result.golden, result.cluster, result.expected, result.got)))
        if shown.row_count:
            out.print(shown)


@golden.command("export")
def export(
    cluster: Annotated[str, typer.Option(help="Only golden placements of this cluster.", show_default=False)] = "",
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
) -> None:
    """Print the golden placements of the server as objects for `check -f`."""
    from hetsched.adapters.objects.documents import load_documents
    from hetsched.adapters.objects.golden_placements import golden_object
    from hetsched.contracts.api.golden import Expectation

    query = {"cluster": cluster} if cluster else {}
    with connect(server, token) as client:
        found = list(client.items("golden-placements/", most=10_000, **query))
    items = [
        golden_object(
            item["name"],
            item["policy"],
            msgspec.convert(item["expect"], Expectation),
            load_documents(item["manifest"].encode(), name=item["name"])[0].object,
        )
        for item in found
    ]
    print_json({"apiVersion": "v1", "kind": "List", "items": items})


_JSON = {"Content-Type": "application/json"}
