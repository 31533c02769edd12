"""`hetsched submit` and `hetsched wait`: what a CI pipeline needs.

Rule: one submission, one idempotency key, so that repeating it is safe; without `--idempotency-key` each run of the
command is a submission of its own. The exit code is the truth about the workload: 0 reached, 10 not now, 11 never
fits, 12 misconfigured, 13 time-out, 14 the run itself failed or was cancelled. A decision ends the waiting, also *not
now*, unless `--patient` says to wait for room.
"""

from __future__ import annotations

import enum
import math
import time
import uuid
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.markup import escape

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .options import PodFiles, read_manifest
from .output import Output, OutputFormat, console, note, print_json, table

EXIT_TIMEOUT = 13
EXIT_FAILED = 14
_EXITS = {"not-now": 10, "never-fits": 11, "misconfigured": 12, "failed": EXIT_FAILED, "cancelled": EXIT_FAILED}
_LONGEST_POLL_SECONDS = 30
_PAUSE_SECONDS = 0.5


class Goal(enum.StrEnum):
    PLACED = "placed"
    RUNNING = "running"
    FINISHED = "finished"


_REACHED = {
    Goal.FINISHED: {"succeeded"},
    Goal.RUNNING: {"running", "succeeded"},
    Goal.PLACED: {"placed", "binding", "bound", "running", "succeeded"},
}

Timeout = Annotated[float, typer.Option(help="Seconds to wait at most; then exit code 13.", min=0, max=86400)]
Patient = Annotated[bool, typer.Option("--patient", help="Go on waiting while the answer is not now.")]


def submit(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[str, typer.Option(help="Cluster to place on; the server's only one if left out.")] = "",
    policy: Annotated[str, typer.Option(help="Policy to decide by; goes before what the pods say.")] = "",
    priority: Annotated[int | None, typer.Option(help="Priority for all pods.", show_default=False)] = None,
    callback_url: Annotated[str, typer.Option("--callback-url", help="Told by POST once it is decided.")] = "",
    idempotency_key: Annotated[
        str, typer.Option("--idempotency-key", metavar="K", help="The same key and files: the first answer again.")
    ] = "",
    wait_for: Annotated[bool, typer.Option("--wait", help="Wait until it is decided.")] = False,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Submit pods to a server.

    Exit codes: 0 accepted (with --wait: placed), 10 not now, 11 never fits, 12 misconfigured, 13 time-out, 14 the run
    failed, 2 wrong files or options, 3 server unreachable or token refused.
    """
    asked = {
        "manifest": read_manifest(filename),
        "cluster": cluster,
        "policy": policy,
        "priority": priority,
        "callbackUrl": callback_url,
    }
    body = msgspec.json.encode({name: value for name, value in asked.items() if value not in ("", None)})
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    with connect(server, token) as client:
        accepted = client.send("POST", "workloads/", body=body, headers=headers, repeat=True).json()
        if not wait_for:
            _show(accepted, output)
            return
        if output is OutputFormat.TEXT:
            note(f"{accepted['id']}: accepted, {len(accepted['pods'])} pods")
        _finish(client, accepted["id"], Goal.PLACED, timeout, output, patient=patient)


def wait(
    workload: Annotated[str, typer.Argument(metavar="ID", help="Workload id, as submit printed it.")],
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    goal: Annotated[Goal, typer.Option("--for", help="What to wait for.")] = Goal.PLACED,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Wait for a workload, and say by exit code how it came out."""
    with connect(server, token) as client:
        _finish(client, workload, goal, timeout, output, patient=patient)


def _finish(
    client: Client, workload: str, goal: Goal, timeout_seconds: float, output: OutputFormat, *, patient: bool
) -> None:
    """Wait, print the workload as it is then, and leave with the exit code."""
    document, code = await_goal(client, workload, goal, timeout_seconds, patient=patient)
    _show(document, output)
    if code == EXIT_TIMEOUT:
        note(f"{workload}: not {goal.value} after {timeout_seconds:g} s")
    raise typer.Exit(code)


def await_goal(
    client: Client, workload: str, goal: Goal, timeout_seconds: float, *, patient: bool
) -> tuple[dict[str, Any], int]:
    """Return the workload once it reached `goal`, cannot any more, or time is over, and the exit code."""
    end = time.monotonic() + timeout_seconds
    # The server holds its answer until the workload is that far; a decision is the first thing to know.
    awaited = goal if patient else Goal.PLACED
    while True:
        began = time.monotonic()
        seconds = max(0, min(_LONGEST_POLL_SECONDS, math.ceil(end - began)))
        document = client.get(f"workloads/{quote(workload, safe='')}/", wait=seconds, **{"for": awaited.value})
        state = document["state"]
        if state in _REACHED[goal]:
            return document, 0
        if state in _EXITS and not (patient and state == "not-now"):
            return document, _EXITS[state]
        now = time.monotonic()
        if now >= end:
            return document, EXIT_TIMEOUT
        if awaited is goal:
            time.sleep(max(0.0, min(began + _PAUSE_SECONDS, end) - now))
        awaited = goal


def _show(document: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
        return
    out = console()
    out.print(f"[bold]{escape(document['id'])}[/]  {escape(document['state'])}", soft_wrap=True)
    shown = table("pod", "state", "node", "message")
    for pod in document["pods"]:
        cells = (pod["pod"], pod["state"], pod.get("node") or "-", pod.get("message") or "")
        shown.add_row(*(escape(cell) for cell in cells))
    out.print(shown)
    if document.get("podsNext"):
        note(f"the first {len(document['pods'])} of {document['podCount']} pods")
    if any(pod["state"] in ("not-now", "never-fits", "misconfigured") for pod in document["pods"]):
        note(f"why: hetsched explain {document['id']}")
