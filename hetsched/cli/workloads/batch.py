"""`hetsched batch`: send many submissions in one request, one per file.

Each file has a separate idempotency key, derived from the batch's key and the file's name. A batch can be sent again
after any failure, even with more files: accepted files return their first response, and the others are submitted. Exit
codes: 0 all accepted (with --wait: all placed), 2 a file was rejected, otherwise the exit code of the worst verdict.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from hetsched.client import BatchAnswer, End, Goal, Refused
from hetsched.contracts.api.workload import ItemAnswer, ItemProblem

from ..client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from ..options import PlacementPolicy, PodFiles, Priority, Strict, TargetCluster, WaitGoal, check_key_option, read_each
from ..output import Output, OutputFormat, ProgressDisplay, console, note, print_json, print_warnings, table
from .workload_view import coloured
from .workloads import Patient, Timeout

EXIT_REFUSED = 2
_AT_ONCE = 500
_TOGETHER = 100


def batch(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: TargetCluster = "",
    policy: PlacementPolicy = "",
    priority: Priority = None,
    callback_url: Annotated[
        str,
        typer.Option(
            "--callback-url",
            help="URL that receives a POST request when a decision about a workload has been made.",
        ),
    ] = "",
    all_or_nothing: Annotated[
        bool, typer.Option("--all-or-nothing", help=f"Submit all files or none; at most {_TOGETHER} files.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="K",
            show_default=False,
            help="Idempotency key; a repeated request with the same key and files returns the first responses.",
        ),
    ] = None,
    wait_for: Annotated[
        bool, typer.Option("--wait", help="Wait until there is a decision about every workload.")
    ] = False,
    goal: WaitGoal = None,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    strict: Strict = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Submit many files or folders in one request; each file is one workload.

    Exit codes: 0 all accepted (with --wait or --for: all reached that state), 2 some files were rejected, otherwise the
    most severe result (10 not now, 11 never fits, 12 misconfigured, 13 timeout, 14 a run failed), 3 server unreachable
    or token rejected.
    """
    files = read_each(filename)
    key = check_key_option(idempotency_key) or str(uuid.uuid4())
    items = [
        {"manifest": text, "key": f"{key}.{sha256(name.encode()).hexdigest()[:16]}"}
        | ({"strict": True} if strict else {})
        for name, text in files
    ]
    common = {"cluster": cluster, "policy": policy, "priority": priority, "callbackUrl": callback_url}
    with connect(server, token) as client:
        answers = list(_submit_items(client, items, key, all_or_nothing, common, [name for name, _ in files]))
        for (name, _), answer in zip(files, answers, strict=True):
            print_warnings(msgspec.structs.replace(each, place=f"{name} {each.place}") for each in answer.warnings)
        ends = {}
        if wait_for or goal:
            ends = _wait_for_all(client, answers, goal or Goal.PLACED, timeout, patient=patient)
    if output is OutputFormat.JSON:
        print_json(
            {
                "items": [
                    _document(name, answer, ends.get(answer.id))
                    for (name, _), answer in zip(files, answers, strict=True)
                ]
            }
        )
    else:
        _show([name for name, _ in files], answers, ends)
    if any(answer.problem for answer in answers):
        raise typer.Exit(EXIT_REFUSED)
    raise typer.Exit(max((end.exit_code for _, end in ends.values()), default=0))


def _submit_items(
    client: Client, items: Sequence[dict[str, Any]], key: str, together: bool, common: dict[str, Any],
    names: Sequence[str],
) -> Iterator[ItemAnswer]:  # fmt: skip
    """Send the items in chunks and yield the result of each."""
    if together:
        try:
            yield from client.submit_many(items, all_or_nothing=True, key=key, **common).items
        except Refused as refused:
            for item in refused.problem.get("items") or ():
                note(f"{names[item['index']]}: {_problem_text(msgspec.convert(item, ItemProblem))}")
            raise
        return
    for first in range(0, len(items), _AT_ONCE):
        answer: BatchAnswer = client.submit_many(items[first : first + _AT_ONCE], key=f"{key}.{first}", **common)
        yield from answer.items


def _wait_for_all(
    client: Client, answers: Sequence[ItemAnswer], goal: Goal, timeout_seconds: float, *, patient: bool
) -> dict[str, tuple[str, End]]:
    """Wait for all workloads within one timeout and return the state and the result of each."""
    until = time.monotonic() + timeout_seconds
    accepted = [answer.id for answer in answers if answer.id]
    ends = {}
    with ProgressDisplay("waiting", len(accepted)) as track:
        for done, workload in enumerate(accepted, start=1):
            remaining = max(0.0, until - time.monotonic())
            found = client.wait(workload, goal, timeout_seconds=remaining, patient=patient)
            ends[workload] = (found.workload.state, found.end)
            track(done)
    return ends


def _document(name: str, answer: ItemAnswer, ended: tuple[str, End] | None) -> dict[str, Any]:
    document: dict[str, Any] = {"file": name, "status": answer.status}
    if answer.problem is not None:
        return {**document, "problem": _problem(answer.problem)}
    document |= {"id": answer.id, "state": ended[0] if ended else answer.state, "replayed": answer.replayed}
    return {**document, **({"end": ended[1].value} if ended else {})}


def _problem(problem: ItemProblem) -> dict[str, str]:
    return {name: getattr(problem, name) for name in ("code", "detail", "place", "hint") if getattr(problem, name)}


def _problem_text(problem: ItemProblem) -> str:
    return f"{problem.place}: " * bool(problem.place) + f"{problem.detail} [{problem.code}]"


def _show(names: Sequence[str], answers: Sequence[ItemAnswer], ends: dict[str, tuple[str, End]]) -> None:
    shown = table("file", "id", "state", "")
    for name, answer in zip(names, answers, strict=True):
        if answer.problem is not None:
            shown.add_row(Text(name), "-", Text("refused", style="red"), Text(_problem_text(answer.problem)))
            continue
        state, end = ends.get(answer.id, (answer.state, None))
        words = "timed out" if end is End.TIMED_OUT else "already accepted" if answer.replayed else ""
        shown.add_row(Text(name), answer.id, coloured(state), words)
    console().print(shown)
