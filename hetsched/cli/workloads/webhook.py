"""`hetsched webhook` and `redeliver`: manage webhooks and redeliver events.

A secret is printed once, by the command that creates it. `get webhooks` and `get deliveries` list the objects.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from hetsched.client import DeliveryRow
from hetsched.client.client import JSON
from hetsched.contracts.errors import InputError

from ..client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from ..name_completion import complete_cluster, complete_delivery, complete_webhook
from ..options import parse_duration
from ..output import Output, OutputFormat, console, note, print_json, table
from .workloads import Reason

app = typer.Typer(
    no_args_is_help=True, help="Manage webhooks for workload events: add, test, rotate the secret, remove."
)

Identity = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.", autocompletion=complete_webhook)]
_MOST = 1000


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the webhook.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="URL that receives the events by POST.")],
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[str, typer.Option(help="Only workloads on this cluster.", autocompletion=complete_cluster)] = "",
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="Only workloads in this namespace; can be repeated.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help=("Only events of workloads that enter this state; can be repeated.")),
    ] = None,
    reason: Reason = "added by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Add a webhook and print its secret once."""
    body: dict[str, Any] = {"name": name, "url": url, "reason": reason, "cluster": cluster}
    body |= {"namespaces": namespace or [], "states": state or []}
    with connect(server, token) as client:
        created = client.post("webhooks/", body).json()
    _print_secret(created, f"{created['id']}: webhook {name} added", output)


@app.command("test")
def try_out(
    webhook: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Send a test event to a webhook."""
    with connect(server, token) as client:
        created = client.send("POST", f"{_path(webhook)}test/").json()
    if output is OutputFormat.JSON:
        print_json(created)
    else:
        console().print(
            Text(f"{created['id']}: test event queued; see hetsched get delivery {created['id']}"), soft_wrap=True
        )


@app.command()
def rotate(
    webhook: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    overlap: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help=("Period in which the old secret also signs deliveries: 90s, 10m, 2h, 1d.")
        ),
    ] = "1d",
    reason: Reason = "rotated by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Replace the secret of a webhook, and print the new secret once."""
    body = {"reason": reason, "overlapSeconds": parse_duration(overlap)}
    with connect(server, token) as client:
        created = client.post(f"{_path(webhook)}secret/", body).json()
    _print_secret(created, f"{webhook}: secret rotated", output)


@app.command()
def remove(
    webhook: Identity,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    reason: Reason = "removed by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove a webhook and its pending deliveries."""
    with connect(server, token) as client:
        tag, _ = client.changed(_path(webhook))
        client.send("DELETE", _path(webhook), query={"reason": reason}, headers={**JSON, "If-Match": tag})
    if output is OutputFormat.JSON:
        print_json({"id": webhook, "removed": True})
    else:
        note(f"{webhook}: removed")


def redeliver(
    delivery: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="Id of one delivery.", show_default=False, autocompletion=complete_delivery
        ),
    ] = "",
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    dead: Annotated[
        bool, typer.Option("--dead", help="Redeliver all failed deliveries, filtered by --webhook and --workload.")
    ] = False,
    webhook: Annotated[
        str, typer.Option(help="Only deliveries of this webhook.", autocompletion=complete_webhook)
    ] = "",
    workload: Annotated[str, typer.Option(help="Only deliveries about this workload.")] = "",
    reason: Reason = "redelivered by command",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Redeliver one delivery or all failed deliveries."""
    if bool(delivery) == dead:
        raise InputError("OptionInvalid", "give one delivery or use --dead", place="hetsched redeliver")
    query = {"webhook": webhook, "workload": workload}
    with connect(server, token) as client:
        ids = (
            [delivery]
            if delivery
            else _dead_deliveries(client, {name: value for name, value in query.items() if value})
        )
        created = [client.redeliver(one, reason) for one in ids]
    if output is OutputFormat.JSON:
        print_json({"items": [row.document for row in created]})
        return
    if not created:
        note("no failed deliveries found")
        return
    shown = table("id", "event", "workload", "state", "url")
    for row in created:
        shown.add_row(row.id, row.event, row.workload or "-", row.state, Text(row.url))
    console().print(shown)


def _dead_deliveries(client: Client, query: dict[str, str]) -> list[str]:
    found: list[DeliveryRow] = list(client.deliveries(most=_MOST, state="dead", **query))
    if len(found) == _MOST:
        note(f"redelivered the latest {_MOST} failed deliveries; run the command again for more")
    return [row.id for row in found]


def _path(webhook: str) -> str:
    return f"webhooks/{quote(webhook, safe='')}/"


def _print_secret(created: dict[str, Any], sentence: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(created)
        return
    console().print(Text(created["secret"]), soft_wrap=True)
    note(f"{sentence}; the secret is not shown again")
