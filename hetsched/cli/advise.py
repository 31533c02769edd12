"""`hetsched advise`: propose moves of running pods to balance a cluster, make room for pods, or free rare nodes.

With `--cluster` the command only reads files. Without it, a server computes a plan for one of its clusters. An operator
confirms that plan by its token; the server then computes the plan again and executes it only if the result is the same.
Exit codes: 0 a plan, or nothing to do; 1 a plan that reaches only a part of the goal; 10 no plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from hetsched.adapters.files import parse_workload
from hetsched.contracts.api.advice import Advice, AdviceVerdict, Goal, Move, Question
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.warnings import in_order

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .options import choose_policies, compile_choice, read_cluster, read_manifest, read_sources
from .output import Output, OutputFormat, console, duration, print_json, print_warnings, table

_COLOURS = {
    AdviceVerdict.PLAN: "green",
    AdviceVerdict.NOTHING: "green",
    AdviceVerdict.PARTLY: "yellow",
    AdviceVerdict.NONE: "red",
}


def advise(
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="File with nodes and running pods; if omitted, a server computes the plan.",
        ),
    ] = None,
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="Pods to make room for, or pending pods that need nodes with a scarce instruction set.",
        ),
    ] = None,
    goal: Annotated[
        Goal | None,
        typer.Option(
            "--goal", help="Goal of the moves; default: room if -f is given, otherwise balance.", show_default=False
        ),
    ] = None,
    target: Annotated[float, typer.Option("--target", min=0, max=1, help="Target balance of the cluster.")] = 0.95,
    most_moves: Annotated[int, typer.Option("--most-moves", min=1, max=100, help="Maximum number of moves.")] = 10,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="Policy that places the pods; only with --cluster.",
            show_default=False,
        ),
    ] = None,
    of: Annotated[
        str,
        typer.Option(
            "--of", metavar="NAME", help="Name of the cluster on the server.", show_default="the default cluster"
        ),
    ] = "",
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="TOKEN", help="Token of the plan to execute.", show_default=False)
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", help="Reason for the audit trail; only with --confirm.", show_default=False)
    ] = "",
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Propose moves of running pods with their gain and cost; they are executed only after confirmation.

    Exit codes: 0 a plan or nothing to do, 1 a plan that reaches only a part of the goal, 10 no plan, 2 invalid files or
    options.
    """
    chosen = goal or (Goal.ROOM if filename else Goal.BALANCE)
    if cluster:
        if confirm:
            raise InputError(
                "NothingToConfirm",
                "a cluster that is read from files cannot be changed; omit --cluster to use a server",
                place="--confirm",
            )
        found = _advise_on_files(cluster, filename or [], chosen, target, most_moves, policy)
    else:
        if policy:
            raise InputError(
                "OptionInvalid", "on a server each pod uses its own policy; omit --policy", place="--policy"
            )
        body: dict[str, Any] = {"goal": chosen.value, "target": target, "mostMoves": most_moves}
        if filename:
            body["manifest"] = read_manifest(filename)
        with connect(server, token) as client:
            name = of or _default_cluster(client)
            if confirm:
                _confirm(client, name, {**body, "reason": reason}, confirm, output)
                return
            answer = client.send("POST", f"clusters/{name}/advice/", body=encode(body), headers=_JSON)
            found = msgspec.json.decode(answer.content, type=Advice, dec_hook=from_parts)
    if output is OutputFormat.JSON:
        print_json(found.document())
    else:
        show(found)
    raise typer.Exit(found.exit_code)


_JSON = {"Content-Type": "application/json"}


def _advise_on_files(
    cluster: Sequence[str], files: Sequence[str], goal: Goal, target: float, most_moves: int, policy: str | None
) -> Advice:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.simulation.advice import advise as search

    nodes = read_cluster(cluster)
    asked = parse_workload(read_sources(files, "-f"), known=nodes) if files else ClusterContent(pending=nodes.pending)
    print_warnings(in_order(nodes.warnings + asked.warnings))
    if goal is Goal.ROOM and not asked.pending:
        raise InputError(
            "WorkloadEmpty", "goal `room` requires at least one pod", place="-f", hint="Add pods with -f FILE"
        )
    (spec,), pods = choose_policies([policy] if policy else [], nodes, asked)
    state = ClusterState.of(nodes)
    state.add_storage(asked.storage, asked.devices)
    taken = next((pod.key for pod in pods if pod.key in state.placed_pods), None)
    if taken is not None:
        raise InputError(
            "PodExists", f"a pod named {taken} already runs in the cluster", place="-f", hint="Rename the pod"
        )
    question = Question(goal, tuple(pods) if goal is not Goal.BALANCE else (), target, most_moves)
    compiled = compile_choice(spec, preemption=False, implied=True)
    return search(state, compiled, question, evaluated_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _default_cluster(client: Client) -> str:
    found = next(client.items("clusters/", most=1), None)
    if found is None:
        raise InputError(
            "ClusterUnknown", "the server has no cluster; add one with `hetsched cluster add`", place="--of"
        )
    return str(found["name"])


def _confirm(client: Client, name: str, body: dict[str, Any], token: str, output: OutputFormat) -> None:
    answer = client.send(
        "POST",
        f"clusters/{name}/rebalances/",
        body=encode(body),
        headers={**_JSON, "If-Match": f'"{token}"'},
    )
    if output is OutputFormat.JSON:
        print_json(answer.json())
        return
    found = answer.json()
    console().print(f"rebalance {found['id']}: {found['state']}, {len(found['moves'])} pods to move", soft_wrap=True)


def show(advice: Advice) -> None:
    """Print advice as text."""
    out = console()
    colour = _COLOURS[advice.verdict]
    out.print(f"[bold {colour}]{advice.verdict.value}[/]  {escape(advice.summary)}", soft_wrap=True)
    if advice.moves:
        _show_moves(out, advice.moves)
        cost = advice.cost
        lost = f", {duration(cost.lost_seconds)} of run time lost" if cost.lost_seconds else ""
        bare = f", {cost.not_coming_back} are not recreated by a controller" if cost.not_coming_back else ""
        pinned = f", {cost.exclusive} with exclusive CPUs" if cost.exclusive else ""
        out.print(f"cost: {cost.restarts} restarts{bare}{pinned}{lost}", soft_wrap=True)
    for place in advice.places:
        out.print(f"room: {escape(place.pod)} on {escape(place.node)}", soft_wrap=True)
    if advice.nearest is not None and advice.verdict is not AdviceVerdict.PLAN:
        pods = f" ({', '.join(advice.nearest.pods)})" if advice.nearest.pods else ""
        out.print(f"nearest: {escape(advice.nearest.message + pods)}", soft_wrap=True)
    for immovable in advice.stays:
        reason, example = escape(immovable.message), escape(immovable.example)
        out.print(f"[dim]{immovable.pods} pods cannot move: {reason}, for example {example}[/]", soft_wrap=True)
    search = advice.search
    proved = f"minimum number of moves: {search.at_least}; " if search.at_least else ""
    out.print(
        f"\n[dim]policy {escape(advice.policy.name)} v{advice.policy.version}, balance {advice.balance.before:.4f} -> "
        f"{advice.balance.after:.4f}, {proved}{search.tried} moves tried, plan {advice.token}; no pod was moved[/]",
        soft_wrap=True,
    )


def _show_moves(out: Console, moves: Sequence[Move]) -> None:
    shown = table("step", "pod", "from", "to", "balance", "frees", "cost", "why", right=("step", "balance"))
    for step, move in enumerate(moves, start=1):
        for position, pod in enumerate(move.pods):
            first = not position
            frees = " ".join(f"{name}={amount}" for name, amount in move.frees.items())
            shown.add_row(
                str(step) if first else "",
                escape(pod.pod),
                escape(pod.from_),
                escape(pod.to),
                f"{move.balance.after - move.balance.before:+.4f}" if first else "",
                escape(frees) if first else "",
                escape(_cost(move, position)),
                escape(move.why) if first else "",
            )
    out.print()
    out.print(shown)


def _cost(move: Move, position: int) -> str:
    pod = move.pods[position]
    costs = ["restart"]
    if pod.age_seconds is not None:
        costs.append(f"{duration(pod.age_seconds)} old")
    if not pod.comes_back:
        costs.append("is not recreated by a controller")
    if pod.exclusive_cpus:
        costs.append("exclusive CPUs")
    if not position:
        costs += [f"{budget.budget} allows {budget.left} more" for budget in move.budgets]
    return ", ".join(costs)
