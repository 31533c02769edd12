"""`hetsched get`: what a server has, as a table or as its own JSON."""

from __future__ import annotations

import enum
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.markup import escape

from .client import DEFAULT_SERVER, ServerOption, TokenOption, connect
from .output import Output, OutputFormat, console, note, print_json, table


class Kind(enum.StrEnum):
    CLUSTERS = "clusters"
    NODES = "nodes"
    WORKLOADS = "workloads"
    DECISIONS = "decisions"
    POLICIES = "policies"
    PLUGINS = "plugins"
    QUEUE = "queue"


_COLUMNS = {
    Kind.CLUSTERS: ("name", "kind", "policy", "nodeCount", "readyCount", "cardCount", "cpu", "memory", "gpu"),
    Kind.NODES: ("name", "family", "isa", "pool", "ready", "cordoned", "cpu", "memory", "gpu", "cards", "pods"),
    Kind.WORKLOADS: ("id", "cluster", "namespace", "name", "state", "podCount", "priority", "createdAt"),
    Kind.DECISIONS: ("id", "pod", "verdict", "node", "policy", "score", "createdAt", "summary"),
    Kind.POLICIES: ("name", "activeVersion", "description"),
    Kind.PLUGINS: ("name", "points", "summary"),
    Kind.QUEUE: ("position", "standing", "pod", "priority", "gang", "policy", "state", "attempts", "workload"),
}


def get(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str, typer.Argument(help="Name or id of one of them.", show_default=False)] = "",
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[str, typer.Option(help="Only what belongs to this cluster.")] = "",
    limit: Annotated[int, typer.Option(help="Rows at most.", min=1, max=100_000)] = 100,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List what a server has, or show one of it; `queue` lists who is decided next."""
    query = {"cluster": cluster} if cluster else {}
    with connect(server, token) as client:
        if name:
            _show_one(client.get(f"{kind.value}/{quote(name, safe='')}/", **query), output)
            return
        if kind is Kind.PLUGINS:  # all of them at once
            items = client.get("plugins/", **query)["items"][:limit]
        else:
            items = list(client.items(f"{kind.value}/", most=limit, **query))
    if output is OutputFormat.JSON:
        print_json({"items": items})
        return
    columns = _COLUMNS[kind]
    shown = table(*columns)
    for item in items:
        shown.add_row(*(escape(_cell(item.get(column))) for column in columns))
    console().print(shown)
    if len(items) == limit:
        note(f"the first {limit}; see more with --limit")


def _show_one(document: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
        return
    shown = table("", "")
    shown.show_header = False
    for name, value in document.items():
        shown.add_row(escape(name), escape(_cell(value)))
    console().print(shown)


def _cell(value: Any) -> str:
    """Write one value: scalars as they are, lists of words side by side, the rest as JSON."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, dict) and set(value) == {"name", "version"}:
        return f"{value['name']} v{value['version']}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value) or "-"
    return msgspec.json.encode(value).decode()
