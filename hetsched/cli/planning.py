"""`hetsched plan`: ask a server where pods would go, and have exactly that, or nothing, when they are submitted.

Rule: a plan is a token that the server signed; nothing is written or held for it. It is kept in a file or in a
variable, and `submit --plan` takes either. Exit codes are those of the verdict.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from hetsched.client import Refused
from hetsched.contracts.decision import WhatIfAnswer
from hetsched.contracts.errors import InputError

from .client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from .completing import a_cluster, a_policy
from .options import PodFiles, read_manifest
from .output import Output, OutputFormat, console, note, print_json
from .whatif import show

MAKE_ONE = "hetsched plan -f FILE --out job.plan"
HOLD_ROOM = "hetsched hold create -f FILE --for 30m"
_LONGEST = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{40,}")


def plan(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[
        str, typer.Option(help="Cluster to place on; the server's only one if left out.", autocompletion=a_cluster)
    ] = "",
    policy: Annotated[str, typer.Option(help="Policy to decide by.", autocompletion=a_policy)] = "",
    priority: Annotated[int | None, typer.Option(help="Priority for all pods.", show_default=False)] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show every node with every plugin's score.")] = False,
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Never count on evicting running pods.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan there, for submit --plan.", show_default=False)
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say where pods would go on a server's cluster now, with a plan by which that can be submitted.

    Exit codes: 0 all placed, 10 not now, 11 never fits this cluster, 12 misconfigured, 2 wrong files or options, 3
    server unreachable or token refused.
    """
    with connect(server, token) as client:
        answer = client.plan(
            read_manifest(filename), cluster=cluster, policy=policy, priority=priority,
            **({"explain": True} if explain else {}), **({"noPreempt": True} if no_preempt else {}),
        )  # fmt: skip
    if out is not None and answer.plan is not None:
        _write(out, answer.plan.token)
    if output is OutputFormat.JSON:
        print_json(answer.document())
    else:
        show(answer)
        _tell(answer, out)
    raise typer.Exit(answer.verdict.exit_code)


def read_plan(argument: str) -> str:
    """Return the token of `--plan`: itself, or what stands in the file of this name.

    Raises: InputError `PlanUnreadable`.
    """
    path = Path(argument)
    try:
        if not argument or _TOKEN.fullmatch(argument):
            return argument
        if not path.is_file():
            raise InputError(
                "PlanUnreadable", "there is no file of this name, and it is no plan itself",
                place=f"--plan {argument[:80]}", hint=f"Write one: {MAKE_ONE}",
            )  # fmt: skip
        text = path.read_bytes()[: _LONGEST + 1].decode().strip()
    except (OSError, ValueError) as error:
        raise InputError("PlanUnreadable", str(error), place=f"--plan {argument[:80]}") from None
    if not text or len(text) > _LONGEST or any(character.isspace() for character in text):
        hint = f"Write one: {MAKE_ONE}"
        raise InputError("PlanUnreadable", "there is no plan in it", place=f"--plan {argument}", hint=hint)
    return text


def in_commands(refused: Refused) -> InputError:
    """Return a refusal about a plan or a hold as whoever types commands understands it; others as they are."""
    fresh = bool((refused.problem.get("whatIf") or {}).get("plan"))
    again = "submit again with --plan and the plan printed above" if fresh else f"try again later: {MAKE_ONE}"
    hints = {
        "PlanStale": f"Look at what comes out by now, then {again}. To be sure of room for longer: {HOLD_ROOM}",
        "PlanExpired": f"Look at what comes out by now, then {again}. To be sure of room for longer: {HOLD_ROOM}",
        "PlanInvalid": f"Plans are each server's own; make one: {MAKE_ONE}",
        "PlanMismatch": "Give the same files and the same --cluster, --policy and --priority as the plan was made with",
        "NoRoom": "What each pod lacks stands above; try again later, or hold room for fewer",
    }
    if refused.code not in hints:
        return refused
    return InputError(
        refused.code, refused.message, place="" if refused.code == "NoRoom" else "--plan", hint=hints[refused.code]
    )


def show_fresh(answer: WhatIfAnswer | None, output: OutputFormat) -> None:
    """Print what came with the refusal of a plan, if something came."""
    if answer is None:
        return
    if output is OutputFormat.JSON:
        print_json(answer.document())
    else:
        show(answer)
        _tell(answer, None)


def _write(path: Path, token: str) -> None:
    """Write a plan, whole or not at all, for its owner alone."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    part.replace(path)


def _tell(answer: WhatIfAnswer, out: Path | None) -> None:
    if answer.plan is None:
        return
    if out is None:
        console().print(f"plan {answer.plan.token}", soft_wrap=True, markup=False)
    what = str(out) if out is not None else "the plan"
    note(f"submit with --plan before {answer.plan.expires_at}, with the same files and options: {what}")
