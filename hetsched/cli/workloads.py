"""`hetsched submit`, `wait`, `cancel` and `retry`: what a CI pipeline needs.

Rule: one submission, one idempotency key, so that repeating it is safe; without `--idempotency-key` each run of the
command is a submission of its own. The exit code is the truth about the workload: 0 reached, 10 not now, 11 never
fits, 12 misconfigured, 13 time-out, 14 the run itself failed or was cancelled. A decision ends the waiting, also *not
now*, unless `--patient` says to wait for room.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from hetsched.client import Accepted, End, Goal, Refused, Waited, Workload
from hetsched.client.documents import REFUSED
from hetsched.client.waiting import end_of

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .completing import a_cluster, a_hold, a_policy, a_workload
from .live import Watch, follow
from .options import PodFiles, given_key, read_manifest
from .output import Output, OutputFormat, console, note, print_json, table
from .planning import in_commands, read_plan, show_fresh
from .workload_view import coloured, show, told, view

Identity = Annotated[
    str, typer.Argument(metavar="ID", help="Workload id, as submit printed it.", autocompletion=a_workload)
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most; then exit code 13.", min=0, max=86400)]
Patient = Annotated[bool, typer.Option("--patient", help="Go on waiting while the answer is not now.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]


def submit(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[
        str, typer.Option(help="Cluster to place on; the server's only one if left out.", autocompletion=a_cluster)
    ] = "",
    policy: Annotated[
        str, typer.Option(help="Policy to decide by; goes before what the pods say.", autocompletion=a_policy)
    ] = "",
    priority: Annotated[int | None, typer.Option(help="Priority for all pods.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="Name to find it by.")] = "",
    plan: Annotated[
        str, typer.Option(metavar="TOKEN|FILE", help="What `hetsched plan` gave: submit only if it still comes true.")
    ] = "",
    hold: Annotated[str, typer.Option(metavar="ID", help="Use the room of this hold.", autocompletion=a_hold)] = "",
    callback_url: Annotated[str, typer.Option("--callback-url", help="Told by POST once it is decided.")] = "",
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", metavar="K", show_default=False, help="The same key and files: the first answer again."
        ),
    ] = None,
    wait_for: Annotated[bool, typer.Option("--wait", help="Wait until it is decided.")] = False,
    goal: Annotated[
        Goal | None, typer.Option("--for", help="Wait until it is so far; with --wait: placed.", show_default=False)
    ] = None,
    watch: Watch = False,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Submit pods to a server.

    Exit codes: 0 accepted (waiting: placed, or as far as --for), 10 not now, 11 never fits, 12 misconfigured, 13
    time-out, 14 the run failed, 2 wrong files or options, 3 server unreachable or token refused. A plan that does not
    come true any more is refused with 2, and the fresh one is printed.
    """
    manifest = read_manifest(filename)
    with connect(server, token) as client:
        try:
            accepted = client.submit(
                manifest, cluster=cluster, policy=policy, priority=priority, name=name, callback_url=callback_url,
                plan=read_plan(plan), hold=hold, key=given_key(idempotency_key),
            )  # fmt: skip
        except Refused as refused:
            show_fresh(client.stale_plan(refused), output)
            raise in_commands(refused) from None
        if not (wait_for or watch or goal):
            _show_accepted(accepted, output)
            return
        if output is OutputFormat.TEXT:
            note(f"{accepted.id}: accepted{' before' * accepted.replayed}, {_pods(len(accepted.pods))}")
        _finish(client, accepted.id, goal or Goal.PLACED, timeout, output, patient=patient, watch=watch)


def wait(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    goal: Annotated[Goal, typer.Option("--for", help="What to wait for.")] = Goal.PLACED,
    watch: Watch = False,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Wait for a workload, and say by exit code how it came out.

    Exit codes: 0 reached, 10 not now, 11 never fits, 12 misconfigured, 13 time-out, 14 the run failed or was
    cancelled, 3 server unreachable or token refused.
    """
    with connect(server, token) as client:
        _finish(client, workload, goal, timeout, output, patient=patient, watch=watch)


def cancel(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "cancelled by command",
    wait_for: Annotated[bool, typer.Option("--wait", help="Wait until a live cluster has deleted it.")] = False,
    timeout: Timeout = 300.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Cancel a workload: what it holds is freed, what it brought to a live cluster is deleted.

    Exit codes: 0 cancelled or over before, 13 not gone in time, 2 there is none, 3 server unreachable.
    """
    with connect(server, token) as client:
        found = client.cancel(workload, reason)
        if wait_for and not _gone(found):
            found = client.wait(workload, Goal.FINISHED, timeout_seconds=timeout, patient=True).workload
    _show(found, output)
    if wait_for and not _gone(found):
        note(f"{workload}: not gone after {timeout:g} s")
        raise typer.Exit(End.TIMED_OUT.exit_code)


def retry(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "retried by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Try the pods of a workload again that found no node."""
    with connect(server, token) as client:
        found = client.act(workload, "retry", reason)
    _show(found, output)


def _gone(workload: Workload) -> bool:
    return workload.state in ("cancelled", "succeeded", "failed")


def _finish(
    client: Client, workload: str, goal: Goal, timeout_seconds: float, output: OutputFormat, *, patient: bool,
    watch: bool,
) -> None:  # fmt: skip
    """Wait, print the workload as it is then, and leave with the exit code."""
    try:
        found = (
            _watched(client, workload, goal, timeout_seconds, patient=patient)
            if watch
            else client.wait(workload, goal, timeout_seconds=timeout_seconds, patient=patient)
        )
    except KeyboardInterrupt:
        note(f"the workload goes on; wait for it again: hetsched wait {workload} --for {goal.value}")
        raise
    _show(found.workload, output)
    if found.end is End.TIMED_OUT:
        note(f"{workload}: not {goal.value} after {timeout_seconds:g} s")
    raise typer.Exit(found.end.exit_code)


def _watched(client: Client, workload: str, goal: Goal, timeout_seconds: float, *, patient: bool) -> Waited:
    def over(now: Workload) -> bool:
        return end_of(now.state, goal, patient=patient) is not None

    last = follow(client.watch(workload, timeout_seconds=timeout_seconds), view, told, over=over)
    if last is None:
        raise AssertionError("a workload is seen at least once")
    return Waited(last, end_of(last.state, goal, patient=patient) or End.TIMED_OUT)


def _show(workload: Workload, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(workload.document)
    else:
        show(workload)


def _show_accepted(accepted: Accepted, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(accepted.document)
        return
    out = console()
    out.print(Text.assemble((accepted.id, "bold"), "  ", coloured(accepted.state)), soft_wrap=True)
    shown = table("pod", "state")
    for pod in accepted.pods:
        shown.add_row(Text(pod.pod), coloured(pod.state))
    out.print(shown)
    if accepted.replayed:
        note("the same submission was accepted before; this is its answer again")
    if any(pod.state in REFUSED for pod in accepted.pods):
        note(f"why: hetsched explain {accepted.id}")
    else:
        note(f"follow it: hetsched wait {accepted.id} --watch")


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"
