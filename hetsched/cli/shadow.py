"""`hetsched shadow`: compare another scheduler's choices with those of hetsched in shadow mode."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from .client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from .output import Output, OutputFormat, console, print_json, table

app = typer.Typer(no_args_is_help=True, help="Compare another scheduler's choices with hetsched's own.")


@app.callback()
def root() -> None:
    """Compare another scheduler's choices with those of hetsched, on a cluster connected with `--shadow`."""


@app.command()
def report(
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[
        str, typer.Option(help=("Name of the cluster; if omitted, the server's default or only cluster."))
    ] = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Report how often both schedulers chose the same node, the score difference, and the largest differences."""
    query = {"cluster": cluster} if cluster else {}
    with connect(server, token) as client:
        document = client.get("shadow/report/", **query)
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        _show(console(), document)


def _show(out: Console, document: dict[str, Any]) -> None:
    found = document["summary"]
    mode = f" (shadow mode, scheduler {found['scheduler']})" if found["scheduler"] else ""
    out.print(f"[bold]{escape(found['cluster'])}[/]{escape(mode)}: {found['judged']} pods compared", soft_wrap=True)
    if found["waiting"] or found["dropped"]:
        out.print(f"{found['waiting']} pods are waiting for comparison, {found['dropped']} were dropped")
    if not found["judged"]:
        return
    counts = table("", "pods", "share", right=("pods", "share"))
    for name, label in _LABELS:
        counts.add_row(label, str(found[name]), f"{100 * found[name] / found['judged']:.1f} %")
    out.print(counts)
    if found["choices"]:
        out.print(
            f"of {found['choices']} pods with several feasible nodes, {found['sameOfChoices']} are on the same node"
        )
    if found["regretMean"] is not None:
        out.print(
            f"regret in score points: mean {found['regretMean']:.2f}, median {found['regretMedian']:.2f}, "
            f"p90 {found['regretP90']:.2f}, maximum {found['regretMost']:.2f}"
        )
        regret = table("regret", "pods", right=("pods",))
        for item in found["regret"]:
            regret.add_row(_between(item), str(item["pods"]))
        out.print(regret)
    for item in found["refusedFor"]:
        out.print(f"{item['pods']} pods run on nodes that {item['plugin']} rejects ({item['code']})")
    for item in document["worst"]:
        out.print(escape(f"{item['id']}: {item['summary']}"), soft_wrap=True)


_LABELS = (
    ("same", "same node"),
    ("equal", "equal score"),
    ("worse", "worse"),
    ("infeasible", "rejected by hetsched's filters"),
)


def _between(one: dict[str, Any]) -> str:
    if one["above"] is None:
        return "none"
    return f"more than {one['above']:g}" if one["most"] is None else f"{one['above']:g} to {one['most']:g}"
