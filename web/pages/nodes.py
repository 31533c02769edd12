"""The table twin of the node grid: every node with its load, searched and sorted."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.tiles import tile

from .amounts import percent
from .shell import Shell, page

PAGE_SIZE = 100
TEXT_COLUMNS = ("name", "state", "pool", "isa")
FIGURE_COLUMNS = ("cpu", "memory", "gpu", "pods")
MEASURED = ("cpu", "memory", "gpu")


@page("nodes")
def nodes(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("nodes", {})
    shell.follow(cluster_topic(shell.cluster))
    query, sort = shell.text("q"), shell.text("sort")
    rows = [_row(tile(node)) for node in shell.cluster.nodes.defer("report").order_by("name")]
    total = len(rows)
    words = query.lower().split()
    rows = [row for row in rows if all(word in row["text"] for word in words)]
    column = sort.removeprefix("-")
    if column in (*TEXT_COLUMNS, *FIGURE_COLUMNS):
        rows.sort(key=lambda row: _order(row[column]), reverse=sort.startswith("-"))
    found = shell.page_of(rows, PAGE_SIZE)
    for row in found.object_list:
        row["measures"] = [(kind, row[kind], percent(row[kind])) for kind in MEASURED]
    return shell.render(
        "nodes",
        {
            "query": query,
            "page": found,
            "total": total,
            "columns": _columns(shell, query, sort),
            "filter_query": shell.keep(q=query, sort=sort).replace("?", "&", 1),
        },
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    row["state"] = "not-ready" if not row["ready"] else "cordoned" if row["cordoned"] else "ready"
    row["text"] = f"{row['name']} {row['pool']} {row['isa'] or ''} {row['family']} {row['state']}".lower()
    return row


def _order(value: Any) -> tuple[bool, Any]:
    """Sort what is not there below everything that is."""
    return (value is not None, value if value is not None else 0)


def _columns(shell: Shell, query: str, sort: str) -> list[dict[str, Any]]:
    labels = {
        "name": _("Node"),
        "state": _("State"),
        "pool": _("Pool"),
        "isa": _("ISA"),
        "cpu": _("CPU"),
        "memory": _("Memory"),
        "gpu": _("GPU"),
        "pods": _("Pods"),
    }
    columns = []
    for name, label in labels.items():
        # Figures are most often wanted from the top.
        first, second = (name, f"-{name}") if name in TEXT_COLUMNS else (f"-{name}", name)
        columns.append(
            {
                "label": label,
                "number": name == "pods",
                "url": shell.keep(q=query, sort=second if sort == first else first),
                "sorted": {name: "ascending", f"-{name}": "descending"}.get(sort, ""),
            }
        )
    return columns
