"""The node list: every node with its load, with filter, order and selected columns."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase

from hetsched.inventory.actions import cluster_topic

from ..lists.view import Listing, ListView
from ..shell import Shell, page
from .columns import COLUMNS
from .fields import FIELDS
from .rows import NodeListRow, add_summaries, node_rows

LISTING = Listing(
    "nodes", FIELDS, COLUMNS, lambda row: row.words, example="isa>=rv64gcv  free.cpu>8  state=cordoned  label:pool=ci"
)


@page("nodes")
def nodes(shell: Shell) -> HttpResponseBase:
    if shell.cluster is None:
        return shell.render("nodes", {})
    view = ListView(shell, LISTING)
    shell.follow(cluster_topic(shell.cluster))
    rows = node_rows(shell.cluster)
    if view.wanted_values:
        return view.answer_values(_values(rows, view.wanted_values))
    if view.heavy:
        add_summaries(rows)
    return view.show(view.kept(rows), "nodes", {"total": len(rows)})


def _values(rows: list[NodeListRow], name: str) -> list[Any]:
    """Return the values of a field: for `label`, the label keys; for `label:KEY`, the values of this label."""
    field, _colon, key = name.partition(":")
    if field == "pool":
        return [row.pool for row in rows]
    if field == "isa":
        return [row.isa for row in rows]
    if field not in ("label", "taint", "gpu.model"):
        return []
    add_summaries(rows)
    if field == "taint":
        return [taint for row in rows for taint in row.summary.taints]
    if field == "gpu.model":
        return [model for row in rows for model in row.summary.models]
    return (
        [row.summary.labels.get(key) for row in rows]
        if key
        else [label for row in rows for label in row.summary.labels]
    )
