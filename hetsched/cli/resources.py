"""`hetsched get`: list or show objects of a server as a table or as JSON, once or with --watch.

Kinds have the same names as in REST; singular and short names are also accepted. Filters are sent unchanged to the
server, which validates them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from hetsched.client.documents import Decision, Workload, read
from hetsched.client.waiting import poll_until
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError

from .client import DEFAULT_SERVER, Client, ServerOption, TokenOption, connect
from .kinds import ResourceList, kind_list, kind_of
from .name_completion import complete_cluster, complete_kind, complete_name
from .output import Output, OutputFormat, age, console, duration, note, print_json, table
from .workloads.decision_view import show_decision
from .workloads.live import Watch, follow
from .workloads.workload_view import COLOURS, coloured, show

_EVERY_SECONDS = 2.0
_NARROWEST = 8
Row = dict[str, Any]


def get(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"Kind of object: {kind_list()}.", autocompletion=complete_kind)
    ],
    name: Annotated[
        str, typer.Argument(help="Name or id of one object.", show_default=False, autocompletion=complete_name)
    ] = "",
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    cluster: Annotated[str, typer.Option(help="Only objects of this cluster.", autocompletion=complete_cluster)] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only objects in this namespace.")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="FIELD=VALUE", help="Filter by a field of the list; can be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of rows.", min=1, max=100_000)] = 100,
    watch: Watch = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List objects of a server or show one object; `queue` lists pending pods in scheduling order.

    With --watch and -o json, each change is one document on a separate line.
    """
    found = kind_of(kind)
    query = {**({"cluster": cluster} if cluster else {}), **({"namespace": namespace} if namespace else {})}
    query |= _filters(where or ())
    with connect(server, token) as client:
        if name:
            path = f"{found.path}{quote(name, safe='')}/"
            if watch:
                _watch_one(client, found, path, query, output)
            else:
                _show_one(found, client.get(path, **query), output)
        elif watch:
            _watch_all(client, found, limit, query, output)
        else:
            _show_all(found, _rows(client, found, limit, query), limit, output)


def _filters(where: Iterable[str]) -> dict[str, str]:
    """Parse FIELD=VALUE options. Raises: InputError."""
    query = {}
    for text in where:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise InputError("OptionInvalid", f"{text!r} is not FIELD=VALUE", place="--where")
        query[field] = value
    return query


def _rows(client: Client, kind: ResourceList, limit: int, query: dict[str, str]) -> list[Row]:
    if kind.name == "headroom":
        return list(_headroom_rows(client.get(kind.path, **query)))[:limit]
    if kind.whole:
        items: list[Row] = client.get(kind.path, **query)["items"]
        return items[:limit]
    return list(client.items(kind.path, most=limit, **query))


def _headroom_rows(table: Row) -> Iterator[Row]:
    """Yield a row per shape and pool: the number of copies of the shape that fit, and how many would be emulated."""
    for shape in table["shapes"]:
        texts = (shape["cpu"] and f"cpu {shape['cpu']}", shape["memory"], shape["isa"], shape["model"])
        cards = f"{shape['milli']}/1000 card" if shape["milli"] else shape["cards"] and f"{shape['cards']} cards"
        asks = ", ".join(text for text in (*texts, cards) if text)
        for at, pool in enumerate(table["pools"]):
            least = "" if shape["exact"][at] else ">="
            yield {
                "asks": asks or "anything", "pool": f"{pool['family']} {pool['name']}",
                "fits": f"{least}{shape['counts'][at]}", "emulated": shape["emulatedCounts"][at],
                "reason": shape["reasons"][at],
            }  # fmt: skip


def _show_all(kind: ResourceList, items: Sequence[Row], limit: int, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"items": items})
        return
    if not items:
        note(f"no {kind.name} found")
        return
    shown = table(*map(_header, kind.columns))
    for item in items:
        shown.add_row(*(_coloured(column, item.get(column)) for column in kind.columns))
    console().print(shown)
    if len(items) == limit:
        note(f"first {limit} rows; use --limit for more")


def _show_one(kind: ResourceList, document: Row, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
    elif kind.name == "workloads":
        show(read(document, Workload))
    elif kind.name == "decisions":
        show_decision(console(), read(document, Decision))
    else:
        shown = table("", "")
        shown.show_header = False
        for name, value in document.items():
            text = cell(value)
            shown.add_row(Text(name), coloured(text) if name in ("state", "verdict") else Text(text))
        console().print(shown)


# -- watch ------------------------------------------------------------------------------------------------------------


def _watch_all(client: Client, kind: ResourceList, limit: int, query: dict[str, str], output: OutputFormat) -> None:
    def ask() -> list[Row]:
        return _rows(client, kind, limit, query)

    def changes() -> Iterator[list[Row]]:
        last: list[Row] | None = None
        while True:
            items = ask() if last is None else poll_until(ask)
            if items != last:
                yield items
            last = items
            time.sleep(_EVERY_SECONDS)

    if output is OutputFormat.JSON:
        for items in changes():
            _print_line({"items": items})

    def draw(items: list[Row], height: int) -> list[Text]:
        return list(_lines(kind.columns, items, height))

    def change_lines(before: list[Row] | None, now: list[Row]) -> Iterator[str]:
        return _change_lines(kind.columns, before, now)

    follow(changes(), draw, change_lines, over=lambda _: False, stream=sys.stdout, keep=True)


def _watch_one(client: Client, kind: ResourceList, path: str, query: dict[str, str], output: OutputFormat) -> None:
    def changes() -> Iterator[Row]:
        seen = ""

        def ask() -> tuple[str, Row | None]:
            return client.changed(path, seen, **query)

        while True:
            seen, document = poll_until(ask) if seen else ask()
            if document is not None:
                yield document
            time.sleep(_EVERY_SECONDS)

    if output is OutputFormat.JSON:
        for document in changes():
            _print_line(document)

    def draw(document: Row, height: int) -> list[Text]:
        return list(_lines(("field", "value"), _fields(document), height))

    def change_lines(before: Row | None, now: Row) -> Iterator[str]:
        return _change_lines(("field", "value"), None if before is None else _fields(before), _fields(now))

    follow(changes(), draw, change_lines, over=lambda _: False, stream=sys.stdout, keep=True)


def _fields(document: Row) -> list[Row]:
    return [{"field": name, "value": cell(value)} for name, value in document.items()]


def _lines(columns: Sequence[str], items: Sequence[Row], height: int) -> Iterator[Text]:
    """Yield a table as at most `height` lines; the widest columns shrink until the table fits the terminal."""
    cells = [[_table_text(column, item.get(column)) for column in columns] for item in items]
    heads = [_header(column) for column in columns]
    widths = [max([len(head), *(len(row[at]) for row in cells)]) for at, head in enumerate(heads)]
    most = console().size.width
    while sum(widths) + 2 * len(widths) > most and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    yield Text("  ".join(_cut(head, width) for head, width in zip(heads, widths, strict=True)), style="bold")
    room = height - 1 if len(cells) < height else height - 2
    for row in cells[:room]:
        line = Text()
        for text, width in zip(row, widths, strict=True):
            line.append(f"{_cut(text, width)}  ", style=COLOURS.get(text, ""))
        yield line
    if len(cells) > room:
        yield Text(f"and {len(cells) - room} more", style="dim")


def _cut(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}…"


def _change_lines(columns: Sequence[str], before: Sequence[Row] | None, now: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each added, changed or removed row."""

    def named(rows: Iterable[Row]) -> dict[str, str]:
        texts = ([_static_text(column, row.get(column)) for column in columns] for row in rows)
        return {words[0]: "  ".join(words) for words in texts}

    seen, shown = named(before or ()), named(now)
    yield from (text for name, text in shown.items() if seen.get(name) != text)
    yield from (f"{name}  gone" for name in seen if name not in shown)


def _print_line(document: Any) -> None:
    sys.stdout.write(encode(document).decode() + "\n")
    sys.stdout.flush()


# -- single values -----------------------------------------------------------------------------------------------------


_RATIOS = frozenset({"cpu", "memory", "gpu"})  # requested / allocatable, of nodes and clusters
_TIMES = {"createdAt": "created", "expiresAt": "expires", "lastUsedAt": "last used", "expires": "expires", "at": "at"}


def _header(column: str) -> str:
    return _TIMES.get(column, column)


def _table_text(column: str, value: Any) -> str:
    """Format one value of a column: a ratio in percent, a time relative to now."""
    if column not in _TIMES or not isinstance(value, str) or not value:
        return _static_text(column, value)
    seconds = (datetime.fromisoformat(value) - datetime.now(UTC)).total_seconds()
    return f"in {duration(seconds)}" if seconds > 0 else age(-seconds)


def _static_text(column: str, value: Any) -> str:
    """Format one value of a column independently of the current time: a ratio in percent, a time unchanged."""
    if column in _RATIOS and isinstance(value, int | float):
        return f"{value:.0%}"
    return cell(value)


def _coloured(column: str, value: Any) -> Text:
    text = _table_text(column, value)
    return coloured(text) if column in ("state", "verdict") else Text(text)


def cell(value: Any) -> str:
    """Format one value: scalars unchanged, lists of strings joined, other values as JSON."""
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
    return encode(value).decode()
