"""`hetsched plan`: compute a plan. A submission with this plan gets exactly its placement or is rejected.

A plan is a token signed by the server. The server does not store it or reserve capacity. The user stores the token in a
file or in a variable, and `submit --plan` accepts either. The exit code corresponds to the verdict.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from hetsched.client import Refused
from hetsched.contracts.api.decision import WhatIfAnswer
from hetsched.contracts.errors import InputError

from ..client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from ..options import PlacementPolicy, PodFiles, Priority, Strict, TargetCluster, read_manifest
from ..output import Output, OutputFormat, console, note, print_json, print_warnings
from .whatif import show

MAKE_ONE = "hetsched plan -f FILE --out job.plan"
HOLD_ROOM = "hetsched hold create -f FILE --for 30m"
_LONGEST = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{40,}")


def plan(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: TargetCluster = "",
    policy: PlacementPolicy = "",
    priority: Priority = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the score of every plugin for every node.")] = False,
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Do not preempt running pods.")] = False,
    strict: Strict = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write the plan to, for `submit --plan`.", show_default=False),
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compute the placement of pods on a server's cluster and return a plan that `submit` accepts.

    Exit codes: 0 all placed, 10 not now, 11 never fits this cluster, 12 misconfigured, 2 invalid files or options, 3
    server unreachable or token rejected.
    """
    with connect(server, token) as client:
        answer = client.plan(
            read_manifest(filename), cluster=cluster, policy=policy, priority=priority,
            **({"explain": True} if explain else {}), **({"noPreempt": True} if no_preempt else {}),
            **({"strict": True} if strict else {}),
        )  # fmt: skip
    print_warnings(answer.warnings or ())
    if out is not None and answer.plan is not None:
        _write(out, answer.plan.token)
    if output is OutputFormat.JSON:
        print_json(answer.document())
    else:
        show(answer)
        _print_plan(answer, out)
    raise typer.Exit(answer.verdict.exit_code)


def read_plan(argument: str) -> str:
    """Return the token in `--plan`, which is the value itself or the content of the file with this name.

    Raises: InputError `PlanUnreadable`.
    """
    path = Path(argument)
    try:
        if not argument or _TOKEN.fullmatch(argument):
            return argument
        if not path.is_file():
            raise InputError(
                "PlanUnreadable", "the value is neither a file nor a plan",
                place=f"--plan {argument[:80]}", hint=f"Create a plan: {MAKE_ONE}",
            )  # fmt: skip
        text = path.read_bytes()[: _LONGEST + 1].decode().strip()
    except (OSError, ValueError) as error:
        raise InputError("PlanUnreadable", str(error), place=f"--plan {argument[:80]}") from None
    if not text or len(text) > _LONGEST or any(character.isspace() for character in text):
        hint = f"Create a plan: {MAKE_ONE}"
        raise InputError("PlanUnreadable", "the file contains no plan", place=f"--plan {argument}", hint=hint)
    return text


def with_command_hints(refused: Refused) -> InputError:
    """Return an error about a plan or hold with a hint for the command line, or any other error unchanged."""
    fresh = bool((refused.problem.get("whatIf") or {}).get("plan"))
    again = "submit again with --plan and the plan printed above" if fresh else f"create a new plan later: {MAKE_ONE}"
    hints = {
        "PlanStale": f"Check the new result, then {again}. To reserve the capacity for longer: {HOLD_ROOM}",
        "PlanExpired": f"Check the new result, then {again}. To reserve the capacity for longer: {HOLD_ROOM}",
        "PlanInvalid": f"A plan is valid on one server only; create a plan there: {MAKE_ONE}",
        "PlanMismatch": "Use the files, --cluster, --policy and --priority with which the plan was created",
        "NoRoom": "Check the missing resources above; try again later, or create a hold for fewer pods",
    }
    if refused.code not in hints:
        return refused
    return InputError(
        refused.code, refused.message, place="" if refused.code == "NoRoom" else "--plan", hint=hints[refused.code]
    )


def show_fresh(answer: WhatIfAnswer | None, output: OutputFormat) -> None:
    """Print the new plan that is included in the error about a stale plan, if any."""
    if answer is None:
        return
    if output is OutputFormat.JSON:
        print_json(answer.document())
    else:
        show(answer)
        _print_plan(answer, None)


def _write(path: Path, token: str) -> None:
    """Write a plan atomically to a file that only its owner can read."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    part.replace(path)


def _print_plan(answer: WhatIfAnswer, out: Path | None) -> None:
    if answer.plan is None:
        return
    if out is None:
        console().print(f"plan {answer.plan.token}", soft_wrap=True, markup=False)
    what = str(out) if out is not None else "the plan"
    note(f"to submit, use --plan before {answer.plan.expires_at} with the same files and options: {what}")
