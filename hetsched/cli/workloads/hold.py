"""`hetsched hold`: reserve capacity for future pods.

Capacity is reserved immediately for all pods of the files or for none, and is released when the hold expires. `submit
--hold` uses a hold, and `get holds` lists all holds.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from hetsched.client import Hold, Refused

from ..client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from ..name_completion import complete_hold
from ..options import PlacementPolicy, PodFiles, TargetCluster, check_key_option, parse_duration, read_manifest
from ..output import Output, OutputFormat, console, note, print_json, table
from .plans import show_fresh, with_command_hints
from .workloads import Reason

app = typer.Typer(no_args_is_help=True, help="Reserve capacity for future pods.")

Identity = Annotated[str, typer.Argument(metavar="ID", help="Id of the hold.", autocompletion=complete_hold)]
Lasting = Annotated[str, typer.Option("--for", metavar="TIME", help="Duration from now: 90s, 10m, 2h, 1d.")]


@app.command()
def create(
    filename: PodFiles,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    lasting: Lasting = "10m",
    cluster: TargetCluster = "",
    policy: PlacementPolicy = "",
    about: Annotated[str, typer.Option("--note", help="Note shown to other users.")] = "",
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="K",
            show_default=False,
            help="Idempotency key; a repeated request with the same key and files returns the same hold.",
        ),
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a hold that reserves capacity for the pods of the files.

    Exit codes: 0 reserved, 2 not enough capacity, or invalid files or options, 3 server unreachable.
    """
    seconds = parse_duration(lasting)
    with connect(server, token) as client:
        try:
            created = client.hold(
                read_manifest(filename), seconds=seconds, cluster=cluster, policy=policy, note=about,
                key=check_key_option(idempotency_key),
            )  # fmt: skip
        except Refused as refused:
            show_fresh(client.stale_plan(refused), output)
            raise with_command_hints(refused) from None
    _show(created, output)
    if output is OutputFormat.TEXT and created.state == "held":
        note(f"to use it: hetsched submit -f … --hold {created.id}")


@app.command()
def extend(
    hold: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    lasting: Lasting = "10m",
    reason: Reason = "extended by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Extend a hold."""
    seconds = parse_duration(lasting)
    with connect(server, token) as client:
        _show(client.extend_hold(hold, seconds, reason), output)


@app.command()
def cancel(
    hold: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "cancelled by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Cancel a hold; a hold that has ended is unchanged."""
    with connect(server, token) as client:
        _show(client.cancel_hold(hold, reason), output)


def _show(hold: Hold, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(hold.document)
        return
    out = console()
    until = f"until {hold.expires_at:%Y-%m-%d %H:%M:%S} UTC" if hold.state == "held" else hold.end_reason
    title = Text.assemble((hold.id, "bold"), "  ", hold.state)
    out.print(title.append(f"  on {hold.cluster}  {until}", style="dim"), soft_wrap=True)
    shown = table("pod", "node", "held", "cpus", "cards")
    for pod in hold.pods:
        cards = " ".join(str(card.index) for card in pod.gpus) or "-"
        shown.add_row(Text(pod.pod), Text(pod.node), "yes" if pod.held else "no", " ".join(pod.cpus) or "-", cards)
    out.print(shown)
