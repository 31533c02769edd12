"""`hetsched explain`: show why a pod is where it is, or why it is pending.

For a workload, the command shows the latest decisions about its pods, worst verdict first. For a pod, it shows the
pod's latest decision, and for a decision ID, that decision. For the first few decisions, it also shows changes that
would place the pod now, and the pending time by reason. The exit code corresponds to the verdict.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from hetsched.client import Decision, PodRow, PodWhy
from hetsched.client.waiting import poll_until
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.errors import InputError

from ..client import DEFAULT_SERVER, Client, ServerOption, ServerUnavailable, TokenOption, connect
from ..name_completion import complete_cluster, complete_workload
from ..output import Output, OutputFormat, console, note, print_json
from .decision_view import show_decision
from .live import Watch, follow

_MOST_SHOWN = 20
_MOST_WORKED_OUT = 3  # for each of these decisions, the server evaluates the whole cluster
_WORST_FIRST = (Verdict.MISCONFIGURED, Verdict.NEVER_FITS, Verdict.NOT_NOW)
_EVERY_SECONDS = 2.0


class Explained(NamedTuple):
    """Decision, and the history of its pod (pending time by reason, changes that would help) if it was computed."""

    decision: Decision
    why: PodWhy | None

    def document(self) -> dict[str, Any]:
        return {**self.decision.document, **({"why": self.why.document} if self.why else {})}


class ExplainedDecisions(NamedTuple):
    """Decisions to explain, and pods without a decision."""

    explained: tuple[Explained, ...]
    undecided: tuple[PodRow, ...] = ()
    left_out: int = 0


def explain(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of a workload (w-…) or decision, or a pod (NAMESPACE/NAME).",
            autocompletion=complete_workload,
        ),
    ],
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[str, typer.Option(help="Cluster of the pod.", autocompletion=complete_cluster)] = "",
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Compute the score of every plugin for every node.")
    ] = False,
    watch: Watch = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Explain a decision: verdict, reasons, scores of the nodes, and changes with which the pod would fit.

    Exit codes: 0 placed, 10 not now, 11 never fits, 12 misconfigured, 2 unknown decision, 3 server unreachable.
    """
    with connect(server, token) as client:
        if watch and identity.isdecimal():  # a decision never changes, but its pod gets new decisions
            decided = client.decision(identity)
            identity, cluster = decided.pod, decided.cluster
        found = (
            _watch(client, identity, cluster, all_nodes)
            if watch
            else explain_all(client, identity, cluster, all_nodes=all_nodes)
        )
    if output is OutputFormat.JSON:
        documents = [one.document() for one in found.explained]
        print_json({"items": documents} if identity.startswith("w-") else documents[0])
    else:
        _show(console(), found)
    if found.left_out:
        note(
            f"{_MOST_SHOWN} of {_MOST_SHOWN + found.left_out} decisions, worst verdicts first; "
            "`hetsched get decisions` lists all"
        )
    verdicts = [one.decision.verdict for one in found.explained]
    raise typer.Exit(Verdict.worst(verdicts).exit_code)


def _show(out: Console, found: ExplainedDecisions) -> None:
    for at, one in enumerate(found.explained):
        if at:
            out.print()
        show_decision(out, one.decision, one.why)
    for pod in found.undecided:
        out.print(Text(f"{pod.pod}: {pod.state}, no decision yet"), soft_wrap=True)


# -- requests ---------------------------------------------------------------------------------------------------------


def explain_all(client: Client, identity: str, cluster: str, *, all_nodes: bool = False) -> ExplainedDecisions:
    """Return the decisions about a workload (w-…), a pod (NAMESPACE/NAME) or a decision ID."""
    if not identity.startswith("w-"):
        if "/" not in identity and not identity.isdecimal():
            hint = "Use the ID of a workload (w-…) or decision, or NAMESPACE/NAME of a pod; hetsched get workloads"
            raise InputError("OptionInvalid", f"{identity!r} is no ID", place="ID", hint=hint)
        number = _latest(client, identity, cluster) if "/" in identity else identity
        return ExplainedDecisions((_explain_one(client, number, all_nodes=all_nodes),))
    pods = client.workload(identity).pods
    decided = sorted((pod for pod in pods if pod.decision), key=_severity)
    explained = tuple(
        _explain_one(client, str(pod.decision), further=at < _MOST_WORKED_OUT, all_nodes=all_nodes)
        for at, pod in enumerate(decided[:_MOST_SHOWN])
    )
    undecided = tuple(pod for pod in pods if not pod.decision)[:_MOST_SHOWN]
    return ExplainedDecisions(explained, undecided, max(len(decided) - _MOST_SHOWN, 0))


def _latest(client: Client, pod: str, cluster: str) -> str:
    """Return the latest decision about a pod."""
    namespace, _, name = pod.partition("/")
    query = {"namespace": namespace, "pod": name, **({"cluster": cluster} if cluster else {})}
    found = next(client.decisions(most=1, **query), None)
    if found is None:
        hint = "The pod may still be queued: hetsched get queue"
        raise InputError("NotFound", f"there is no decision about pod {pod!r}", place="ID", hint=hint)
    return str(found.id)


def _explain_one(client: Client, number: str, *, further: bool = True, all_nodes: bool = False) -> Explained:
    decision = client.decision(number, further=further, all_nodes=all_nodes)
    if not further or decision.pod_id is None:
        return Explained(decision, None)
    try:
        return Explained(decision, client.why(decision.pod_id, outlook=decision.verdict is not Verdict.PLACED))
    except (InputError, ServerUnavailable):  # the pod was deleted or the server is busy, but the decision exists
        return Explained(decision, None)


def _severity(pod: PodRow) -> int:
    return _WORST_FIRST.index(Verdict(pod.state)) if pod.state in _WORST_FIRST else len(_WORST_FIRST)


# -- watch ------------------------------------------------------------------------------------------------------------


def _watch(client: Client, identity: str, cluster: str, all_nodes: bool) -> ExplainedDecisions:
    """Watch until all pods are placed, and return the final state."""

    def ask() -> Sequence[object]:
        return _key(client, identity, cluster)

    def changes() -> Iterator[ExplainedDecisions]:
        last: Sequence[object] | None = None
        while True:
            now = ask() if last is None else poll_until(ask)
            if now != last:
                yield explain_all(client, identity, cluster, all_nodes=all_nodes)
            last = now
            time.sleep(_EVERY_SECONDS)

    def over(found: ExplainedDecisions) -> bool:
        return not found.undecided and all(one.decision.verdict is Verdict.PLACED for one in found.explained)

    last = follow(changes(), _draw, _change_lines, over=over, stream=sys.stderr)
    if last is None:
        raise AssertionError("the watch yields at least one result")
    return last


def _key(client: Client, identity: str, cluster: str) -> Sequence[object]:
    """Return a value that changes when there is something new to explain; computing it is cheap for the server."""
    if identity.startswith("w-"):
        return [(pod.pod, pod.decision, pod.state) for pod in client.workload(identity).pods]
    return [_latest(client, identity, cluster)]


def _draw(found: ExplainedDecisions, height: int) -> list[Text]:
    width = console(sys.stderr).size.width
    page = Console(file=io.StringIO(), width=width, highlight=False, emoji=False, force_terminal=True)
    _show(page, found)
    text = page.file.getvalue()  # type: ignore[attr-defined]
    lines = [Text.from_ansi(line) for line in text.splitlines()]
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], Text(f"and {len(lines) - height + 1} more lines", style="dim")]


def _change_lines(before: ExplainedDecisions | None, now: ExplainedDecisions) -> Iterator[str]:
    known = {one.decision.id for one in before.explained} if before else set()
    for one in now.explained:
        if one.decision.id not in known:
            yield one.decision.summary
    if before is None:
        yield from (f"{pod.pod}: {pod.state}, no decision yet" for pod in now.undecided)
