"""Nodes as the list reads them: light rows out of the columns, and what only reports say, kept between requests.

Problem: 5,000 reports take longer to read than a page may, and change far less often than what is booked.
Rule: a row is made of columns alone. What reports say (`Told`) is kept in this process by node, and read again where
the cluster's layout, the node's revision or the time of its report is another than it was.
Units: ratios 0-1; free and whole amounts in base units (millicores, bytes); cards, a shared one in part.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from hetsched.contracts.cards import cards_of
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.units import MIB
from hetsched.inventory.models import Cluster, Node

MOST_KEPT = 50_000
CHUNK = 500
_COLUMNS = (
    "id", "name", "isa_family", "isa", "pool", "ready", "unschedulable", "gone", "card_count", "allocatable",
    "requested", "pods", "gpu_milli_used", "updated_at", "changed_revision", "doubts",
)  # fmt: skip


class Told(msgspec.Struct, frozen=True):
    """What a node's report says beyond its columns."""

    labels: dict[str, str]
    taints: tuple[str, ...]
    models: tuple[str, ...]
    card_memory_bytes: int | None
    zones: int


class NodeRow:
    """One node of the list; `told` is there once `tell` was called for it."""

    __slots__ = (
        "allocatable", "cards", "doubtful", "family", "gpu_milli_used", "id", "isa", "name", "pods", "pool",
        "requested", "state", "told", "updated_at", "version",
    )  # fmt: skip
    told: Told

    def __init__(self, columns: tuple[Any, ...], layout_revision: int) -> None:
        (
            self.id, self.name, self.family, self.isa, self.pool, ready, cordoned, gone, self.cards, self.allocatable,
            self.requested, self.pods, self.gpu_milli_used, self.updated_at, changed, doubts,
        ) = columns  # fmt: skip
        self.state = "gone" if gone else "not-ready" if not ready else "cordoned" if cordoned else "ready"
        self.doubtful = "yes" if doubts else "no"
        self.version = (layout_revision, changed, self.updated_at)

    def ratio(self, resource: str) -> float | None:
        """Return what is requested of what is allocatable, rounded as everywhere."""
        if resource == "gpu":
            return round(self.gpu_milli_used / (self.cards * 1000), 4) if self.cards else None
        whole = self.allocatable.get(resource, 0)
        return round(self.requested.get(resource, 0) / whole, 4) if whole else None

    def free(self, resource: str) -> float | None:
        if resource == "gpu":
            return self.cards - self.gpu_milli_used / 1000 if self.cards else None
        whole = self.allocatable.get(resource)
        return None if whole is None else whole - self.requested.get(resource, 0)

    @property
    def words(self) -> str:
        return f"{self.name} {self.pool} {self.isa} {self.family} {self.state}".lower()


_kept: dict[int, tuple[tuple[int, int, datetime], Told]] = {}


def node_rows(cluster: Cluster) -> list[NodeRow]:
    """Return every node of a cluster by name."""
    rows = Node.objects.filter(cluster=cluster).order_by("name").values_list(*_COLUMNS)
    return [NodeRow(columns, cluster.layout_revision) for columns in rows]


def tell(rows: Iterable[NodeRow]) -> None:
    """Give these rows what their reports say."""
    missing: dict[int, NodeRow] = {}
    for row in rows:
        kept = _kept.get(row.id)
        if kept is not None and kept[0] == row.version:
            row.told = kept[1]
        else:
            missing[row.id] = row
    if len(_kept) + len(missing) > MOST_KEPT:
        _kept.clear()
    ids = list(missing)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        for pk, report in Node.objects.filter(pk__in=chunk).values_list("pk", "report"):
            row = missing.pop(pk)
            row.told = _told(report)
            _kept[pk] = (row.version, row.told)
    for row in missing.values():  # gone since
        row.told = Told({}, (), (), None, 0)


def _told(report: NodeReport) -> Told:
    cards = cards_of(report)
    memory = [card.memory_mib for card in cards if card.memory_mib is not None]
    return Told(
        labels=report.labels,
        taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in report.taints),
        models=tuple(dict.fromkeys(card.model for card in cards if card.model)),
        card_memory_bytes=max(memory) * MIB if memory else None,
        zones=len(report.numa.zones) if report.numa else 0,
    )
