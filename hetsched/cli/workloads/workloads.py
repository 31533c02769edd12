"""`hetsched submit`, `wait`, `cancel` and `retry`: commands for CI pipelines.

A submission has an idempotency key, so that repeating it is safe. Without `--idempotency-key`, each run of the command
is a new submission. The exit code is the result of the workload: 0 state reached, 10 not now, 11 never fits, 12
misconfigured, 13 timeout, 14 the run itself failed or was cancelled. Any decision ends the wait, even *not now*, unless
`--patient` waits for capacity.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from hetsched.client import Accepted, End, Goal, Refused, Waited, Workload
from hetsched.client.documents import REFUSED
from hetsched.client.waiting import end_of

from ..client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from ..name_completion import complete_hold, complete_policy, complete_workload
from ..options import PodFiles, Priority, Strict, TargetCluster, WaitGoal, check_key_option, read_manifest
from ..output import Output, OutputFormat, console, note, print_json, print_warnings, table
from .live import Watch, follow
from .plans import read_plan, show_fresh, with_command_hints
from .workload_view import change_lines, coloured, show, view

Identity = Annotated[
    str,
    typer.Argument(metavar="ID", help="Workload id as printed by `hetsched submit`.", autocompletion=complete_workload),
]
Timeout = Annotated[
    float, typer.Option(help="Maximum wait in seconds; exit code 13 if it is exceeded.", min=0, max=86400)
]
Patient = Annotated[bool, typer.Option("--patient", help="Keep waiting while the verdict is not-now.")]
Reason = Annotated[str, typer.Option(help="Reason for the audit trail.")]


def submit(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: TargetCluster = "",
    policy: Annotated[
        str,
        typer.Option(help="Policy for placement; overrides the policy of the pods.", autocompletion=complete_policy),
    ] = "",
    priority: Priority = None,
    name: Annotated[str, typer.Option(help="Name of the workload.")] = "",
    plan: Annotated[
        str,
        typer.Option(
            metavar="TOKEN|FILE",
            help="Plan from `hetsched plan`; the server accepts the submission only if the plan is still valid.",
        ),
    ] = "",
    hold: Annotated[str, typer.Option(metavar="ID", help="Id of the hold to use.", autocompletion=complete_hold)] = "",
    callback_url: Annotated[
        str, typer.Option("--callback-url", help="URL that receives a POST request after a decision on the workload.")
    ] = "",
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="K",
            show_default=False,
            help="Idempotency key; a repeated request with the same key and files returns the first response.",
        ),
    ] = None,
    wait_for: Annotated[bool, typer.Option("--wait", help="Wait for the decision.")] = False,
    goal: WaitGoal = None,
    watch: Watch = False,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    strict: Strict = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Submit pods, Jobs or other workloads to a server.

    Exit codes: 0 accepted (with --wait or --for: state reached), 10 not now, 11 never fits, 12 misconfigured, 13
    timeout, 14 the run failed, 2 invalid files or options, 3 server unreachable or token rejected. A plan that is no
    longer valid is rejected with exit code 2, and a new plan is printed.
    """
    manifest = read_manifest(filename)
    with connect(server, token) as client:
        try:
            accepted = client.submit(
                manifest, cluster=cluster, policy=policy, priority=priority, name=name, callback_url=callback_url,
                plan=read_plan(plan), hold=hold, key=check_key_option(idempotency_key), strict=strict,
            )  # fmt: skip
        except Refused as refused:
            show_fresh(client.stale_plan(refused), output)
            raise with_command_hints(refused) from None
        print_warnings(accepted.warnings)
        if not (wait_for or watch or goal):
            _show_accepted(accepted, output)
            return
        if output is OutputFormat.TEXT:
            note(f"{accepted.id}: {'already ' * accepted.replayed}accepted, {_pods(len(accepted.pods))}")
        _finish(client, accepted.id, goal or Goal.PLACED, timeout, output, patient=patient, watch=watch)


def wait(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    goal: Annotated[Goal, typer.Option("--for", help="State to wait for.")] = Goal.PLACED,
    watch: Watch = False,
    timeout: Timeout = 300.0,
    patient: Patient = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Wait for a workload and report the result as the exit code.

    Exit codes: 0 state reached, 10 not now, 11 never fits, 12 misconfigured, 13 timeout, 14 the run failed or was
    cancelled, 3 server unreachable or token rejected.
    """
    with connect(server, token) as client:
        _finish(client, workload, goal, timeout, output, patient=patient, watch=watch)


def cancel(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "cancelled by command",
    wait_for: Annotated[bool, typer.Option("--wait", help="Wait until the live cluster has deleted the pods.")] = False,
    timeout: Timeout = 300.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Cancel a workload: release its reservations and delete its pods in a live cluster.

    Exit codes: 0 cancelled or already ended, 13 not deleted in time, 2 unknown workload, 3 server unreachable.
    """
    with connect(server, token) as client:
        found = client.cancel(workload, reason)
        if wait_for and not _is_ended(found):
            found = client.wait(workload, Goal.FINISHED, timeout_seconds=timeout, patient=True).workload
    _show(found, output)
    if wait_for and not _is_ended(found):
        note(f"{workload}: not deleted after {timeout:g} s")
        raise typer.Exit(End.TIMED_OUT.exit_code)


def retry(
    workload: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "retried by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Retry the pods of a workload that were not placed."""
    with connect(server, token) as client:
        found = client.act(workload, "retry", reason)
    _show(found, output)


def _is_ended(workload: Workload) -> bool:
    return workload.state in ("cancelled", "succeeded", "failed")


def _finish(
    client: Client, workload: str, goal: Goal, timeout_seconds: float, output: OutputFormat, *, patient: bool,
    watch: bool,
) -> None:  # fmt: skip
    """Wait, print the workload and exit with the exit code of its state."""
    try:
        found = (
            _watch(client, workload, goal, timeout_seconds, patient=patient)
            if watch
            else client.wait(workload, goal, timeout_seconds=timeout_seconds, patient=patient)
        )
    except KeyboardInterrupt:
        note(f"the workload continues; to keep waiting: hetsched wait {workload} --for {goal.value}")
        raise
    _show(found.workload, output)
    if found.end is End.TIMED_OUT:
        note(f"{workload}: not {goal.value} after {timeout_seconds:g} s")
    raise typer.Exit(found.end.exit_code)


def _watch(client: Client, workload: str, goal: Goal, timeout_seconds: float, *, patient: bool) -> Waited:
    def over(now: Workload) -> bool:
        return end_of(now.state, goal, patient=patient) is not None

    last = follow(client.watch(workload, timeout_seconds=timeout_seconds), view, change_lines, over=over)
    if last is None:
        raise AssertionError("a watch yields at least one workload state")
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
        note("the same submission was already accepted; this is the original response")
    if any(pod.state in REFUSED for pod in accepted.pods):
        note(f"why: hetsched explain {accepted.id}")
    else:
        note(f"to follow the workload: hetsched wait {accepted.id} --watch")


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"
