"""`hetsched whatif`: compute the placement of pods on a cluster, with reasons for pods that do not fit.

The command runs the scheduling engine on a copy of the cluster and does not write anything. The exit code is that of
the worst verdict: 0 all placed, 10 not now, 11 never fits this cluster, 12 misconfigured. A pod of a drained node that
does not fit on another node is treated as not placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from hetsched.adapters.files import parse_cluster
from hetsched.contracts.api.decision import NodeOutcome, Placement, Unplaced, Verdict, WhatIfAnswer, funnel
from hetsched.contracts.errors import InputError

from ..options import ClusterFiles, PodFiles, Strict, choose_policies, compile_choice, read_inputs, read_sources
from ..output import Output, OutputFormat, console, print_json, table
from .explained import (
    alignment_lines,
    displaced_lines,
    eviction_lines,
    expected_use_lines,
    image_lines,
    margin_lines,
    nearest_lines,
    pairing_lines,
    stale_lines,
)

_SHOWN_NODES = 10
_COLOURS = {
    Verdict.PLACED: "green",
    Verdict.NOT_NOW: "yellow",
    Verdict.NEVER_FITS: "red",
    Verdict.MISCONFIGURED: "magenta",
}


def whatif(
    filename: PodFiles,
    cluster: ClusterFiles,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME|FILE", help="Policy for placement.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the score of every plugin for every node.")] = False,
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Do not preempt running pods.")] = False,
    drain: Annotated[
        list[str] | None,
        typer.Option("--drain", metavar="NODE", help="Drain this node before the placement; can be repeated."),
    ] = None,
    add_nodes: Annotated[
        list[str] | None, typer.Option("--add-nodes", metavar="FILE", help="File with additional nodes.")
    ] = None,
    copy_node: Annotated[
        list[str] | None, typer.Option("--copy-node", metavar="NODE=N", help="Add N copies of this node.")
    ] = None,
    strict: Strict = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compute the placement of pods on a cluster described by files, without changing anything.

    Exit codes: 0 all placed, 10 not now, 11 never fits this cluster, 12 misconfigured, 2 invalid files or options.
    """
    nodes, asked = read_inputs(cluster, filename, strict=strict)
    added = parse_cluster(read_sources(add_nodes, "--add-nodes")).nodes if add_nodes else ()
    (spec,), pods = choose_policies([policy] if policy else [], nodes, asked)
    compiled = compile_choice(spec, preemption=not no_preempt)

    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.simulation.hypothetical_nodes import check_drained, copies, with_nodes
    from hetsched.engine.simulation.what_if import what_if

    state = ClusterState.of(nodes)
    if added or copy_node:
        state = with_nodes(state, (*added, *copies(state, _counts(copy_node or []))))
    state.add_storage(asked.storage, asked.devices)
    emptied = check_drained(state, drain or [])
    answer = what_if(state, compiled, pods, explain=explain, drain=emptied, evaluated_at=_now(), consume=True)
    answer = msgspec.structs.replace(answer, warnings=asked.warnings or None)
    if output is OutputFormat.JSON:
        print_json(answer.document())
    else:
        show(answer)
    raise typer.Exit(answer.verdict.exit_code)


def _counts(wanted: Iterable[str]) -> dict[str, int]:
    """Parse `NODE=N` options. Raises: InputError."""
    counts: dict[str, int] = {}
    for text in wanted:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdecimal() or len(number) > 6:
            raise InputError(
                "NodeCopiesInvalid",
                f"{text!r} is not of the form NODE=N",
                place="--copy-node",
                hint="Write the number of copies, such as node-3=2",
            )
        counts[name] = counts.get(name, 0) + int(number)
    return counts


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show(answer: WhatIfAnswer) -> None:
    """Print a result as text."""
    out = console()
    colour = _COLOURS[answer.verdict]
    out.print(f"[bold {colour}]{answer.verdict.value}[/]  {escape(answer.summary)}", soft_wrap=True)
    if answer.placements:
        _show_placements(out, answer.placements)
        placed = answer.placements
        lines = pairing_lines(placed), alignment_lines(placed), image_lines(placed), expected_use_lines(placed)
        for line in chain(*lines):
            out.print(escape(line), soft_wrap=True)
    for line in (*displaced_lines(answer.displaced), *eviction_lines(answer.evictions)):
        out.print(escape(line), soft_wrap=True)
    for line in stale_lines(answer.balance):
        out.print(escape(line), soft_wrap=True)
    for pod in answer.unplaced:
        _show_unplaced(out, pod)
    margins = {margin.pod: margin for margin in answer.tipping or ()}
    for pod_rows in _by_pod(answer.nodes or ()):
        _show_matrix(out, pod_rows)
        if pod_rows[0].pod in margins:
            for line in margin_lines(margins[pod_rows[0].pod]):
                out.print(escape(line), soft_wrap=True)
    out.print(
        f"\n[dim]policy {escape(answer.policy.name)} v{answer.policy.version}, balance {answer.balance.before:.4f} -> "
        f"{answer.balance.after:.4f}, snapshot {answer.snapshot}, {answer.evaluated_at}; nothing is reserved[/]",
        soft_wrap=True,
    )


def _show_placements(out: Console, placements: Iterable[Placement]) -> None:
    shown = table("pod", "node", "isa", "zones", "gpus", "score", right=("score",))
    for item in placements:
        shown.add_row(escape(item.pod), escape(item.node), _isa(item), _zones(item), _gpus(item), f"{item.score:.2f}")
    out.print()
    out.print(shown)


def _isa(item: Placement) -> str:
    isa = item.isa
    if isa.mode == "any":
        return "any"
    slower = f", {isa.slowdown:g} x slower" if isa.slowdown else ""
    return escape(f"{isa.mode}: {isa.required} on {isa.offered}{slower}")


def _zones(item: Placement) -> str:
    return escape(" ".join(f"{zone.name}[{zone.cpus or 'counted'}]" for zone in item.zones)) or "-"


def _gpus(item: Placement) -> str:
    whole = ("" if card.milli == 1000 else f":{card.milli}m" for card in item.gpus)
    return " ".join(f"{card.index}{share}" for card, share in zip(item.gpus, whole, strict=True)) or "-"


def _show_unplaced(out: Console, pod: Unplaced) -> None:
    out.print(f"\n[{_COLOURS[pod.verdict]}]{pod.verdict.value}[/]  [bold]{escape(pod.pod)}[/]")
    shown = table("nodes", "plugin", "code", "reason", right=("nodes",))
    for reason in pod.reasons:
        where = f"{reason.field}: " if reason.field and reason.field not in reason.message else ""
        shown.add_row(str(reason.nodes or "-"), reason.plugin, reason.code, escape(where + reason.message))
    out.print(shown)
    steps = [f"{plugin} {remaining}" if plugin else f"{remaining} nodes" for plugin, remaining in funnel(pod.reasons)]
    if steps:
        out.print(f"[dim]{' > '.join(steps)}[/]", soft_wrap=True)
    for line in nearest_lines(pod.nearest_fit):
        out.print(escape(line), soft_wrap=True)


def _by_pod(rows: Iterable[NodeOutcome]) -> Iterator[list[NodeOutcome]]:
    pods: dict[str, list[NodeOutcome]] = {}
    for row in rows:
        pods.setdefault(row.pod, []).append(row)
    yield from pods.values()


def _show_matrix(out: Console, rows: list[NodeOutcome]) -> None:
    """Print the best nodes with their weighted scores, and one line for the other nodes."""
    feasible = [row for row in rows if row.feasible]
    plugins = list(dict.fromkeys(score.plugin for row in feasible for score in row.scores))
    shown = table("rank", "node", *plugins, "total", right=("rank", *plugins, "total"))
    for row in feasible[:_SHOWN_NODES]:
        weighted = {score.plugin: f"{score.weighted:.2f}" for score in row.scores}
        cells = (weighted.get(plugin, "-") for plugin in plugins)
        shown.add_row(str(row.rank), escape(row.name), *cells, f"{row.total or 0.0:.2f}")
    out.print(f"\nnodes for [bold]{escape(rows[0].pod)}[/]: {len(feasible)} of {len(rows)} feasible")
    if feasible:
        out.print(shown)
    if len(feasible) > _SHOWN_NODES:
        out.print(f"[dim]and {len(feasible) - _SHOWN_NODES} more; -o json lists all[/]")
