"""`hetsched explain`: why a pod is where it is, or why it is nowhere.

Rule: an id of a decision shows that one with the nodes it weighed; an id of a workload shows the latest decisions about
its pods, the worst first. Exit codes are those of the verdict.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from hetsched.contracts.decision import Evicted, ExpectedUse, NearestFit, Tipping, Verdict

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .explained import eviction_lines, margin_lines, nearest_lines, use_text
from .output import Output, OutputFormat, console, note, print_json, table

_MOST_SHOWN = 20
_MOST_WORKED_OUT = 3  # each costs the server a fold of the whole cluster
_WORST_FIRST = (Verdict.MISCONFIGURED, Verdict.NEVER_FITS, Verdict.NOT_NOW)


def explain(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Id of a workload (w-…) or of a decision.")],
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say why: the verdict, the reasons with numbers, and the nodes that were weighed."""
    with connect(server, token) as client:
        decisions = _decisions(client, identity)
    if output is OutputFormat.JSON:
        print_json({"items": decisions} if identity.startswith("w-") else decisions[0])
    else:
        out = console()
        for decision in decisions:
            _show(out, decision)
    verdicts = [Verdict(decision["verdict"]) for decision in decisions]
    raise typer.Exit(Verdict.worst(verdicts).exit_code)


def _decisions(client: Client, identity: str) -> list[dict[str, Any]]:
    if not identity.startswith("w-"):
        return [_decision(client, identity)]
    workload = client.get(f"workloads/{quote(identity, safe='')}/")
    decided = sorted((pod for pod in workload["pods"] if pod.get("decision")), key=_severity)
    if len(decided) > _MOST_SHOWN:
        note(f"{_MOST_SHOWN} of {len(decided)} decisions, the worst first; see all with get decisions")
    shown = enumerate(decided[:_MOST_SHOWN])
    return [_decision(client, str(pod["decision"]), further=position < _MOST_WORKED_OUT) for position, pod in shown]


def _decision(client: Client, identity: str, *, further: bool = True) -> dict[str, Any]:
    query = {"nearestFit": "true"} if further else {}
    found: dict[str, Any] = client.get(f"decisions/{quote(identity, safe='')}/", **query)
    return found


class _Further(msgspec.Struct, rename="camel"):
    """What a server says of evictions, and works out again where it still can."""

    evictions: tuple[Evicted, ...] = ()
    nominated_node: str | None = None
    nearest_fit: tuple[NearestFit, ...] | None = None
    tipping: Tipping | None = None
    expected_use: ExpectedUse | None = None


def _severity(pod: dict[str, Any]) -> int:
    return _WORST_FIRST.index(pod["state"]) if pod["state"] in _WORST_FIRST else len(_WORST_FIRST)


def _show(out: Console, decision: dict[str, Any]) -> None:
    out.print(f"[bold]{escape(decision['verdict'])}[/]  {escape(decision['summary'])}", soft_wrap=True)
    reasons = table("nodes", "plugin", "code", "reason", right=("nodes",))
    for reason in decision.get("reasons", ()):
        reasons.add_row(str(reason["nodes"] or "-"), reason["plugin"], reason["code"], escape(reason["message"]))
    if reasons.row_count:
        out.print(reasons)
    weighed = [node for node in decision.get("nodes") or () if node["feasible"]]
    if weighed:
        shown = table("rank", "node", "total", "scores", right=("rank", "total"))
        for node in weighed:
            scores = ", ".join(f"{score['plugin']} {score['weighted']:.2f}" for score in node["scores"])
            shown.add_row(str(node["rank"]), escape(node["name"]), f"{node['total']:.2f}", scores)
        out.print(shown)
    waits = [one["text"] for one in decision.get("waitsFor") or () if one["text"]]
    if waits:
        tried = f"; last tried at {decision['triedAt']}" if decision.get("triedAt") else ""
        out.print(escape(f"waits for: {', or '.join(waits)}{tried}"), soft_wrap=True)
    told = msgspec.convert(decision, _Further)
    lines = [*eviction_lines(told.evictions, told.nominated_node), *nearest_lines(told.nearest_fit or ())]
    lines += margin_lines(told.tipping) if told.tipping else ()
    lines += [f"expected use: {use_text(told.expected_use)}"] if told.expected_use else ()
    for line in lines:
        out.print(escape(line), soft_wrap=True)
    out.print()
