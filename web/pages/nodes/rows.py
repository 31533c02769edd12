"""Rows of the node list: database columns, and a cache of facts that only node reports contain.

Reading 5,000 reports takes longer than the time limit of a page, and reports change far less often than allocations. A
row therefore contains only database columns. The facts from a node's report are cached in the process as a
`ReportSummary`, which is read again when the cluster's layout revision, the node's revision or the time of its report
has changed.
Units: ratios 0-1; free and total amounts in base units (millicores, bytes); GPUs as a number, with a fraction for
shared GPUs. `held_out` is the allocated share, in thousandths, of GPUs that accept no new pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.units import MIB
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Reservation
from hetsched.storage.batches import batched

MOST_KEPT = 50_000
CHUNK = 500
_COLUMNS = (
    "id", "name", "isa_family", "isa", "pool", "ready", "unschedulable", "gone", "card_count", "cards_installed",
    "maintenance", "allocatable",
    "requested", "pods", "gpu_milli_used", "updated_at", "changed_revision", "doubts",
)  # fmt: skip


class ReportSummary(msgspec.Struct, frozen=True):
    """Facts in a node's report that are not database columns."""

    labels: dict[str, str]
    taints: tuple[str, ...]
    models: tuple[str, ...]
    card_memory_bytes: int | None
    zones: int


class NodeListRow:
    """Row of the node list; `add_summaries` sets `summary`."""

    __slots__ = (
        "allocatable", "cards", "doubtful", "family", "gpu_milli_used", "held_out", "id", "installed", "isa",
        "maintenance", "name", "pods", "pool", "requested", "state", "summary", "updated_at", "version",
    )  # fmt: skip
    summary: ReportSummary

    def __init__(self, columns: tuple[Any, ...], layout_revision: int) -> None:
        (
            self.id, self.name, self.family, self.isa, self.pool, ready, cordoned, gone, self.cards, self.installed,
            maintained, self.allocatable,
            self.requested, self.pods, self.gpu_milli_used, self.updated_at, changed, doubts,
        ) = columns  # fmt: skip
        self.state = "gone" if gone else "not-ready" if not ready else "cordoned" if cordoned else "ready"
        self.doubtful = "yes" if doubts else "no"
        self.maintenance = "yes" if maintained else "no"
        self.held_out = 0
        self.version = (layout_revision, changed, self.updated_at)

    def ratio(self, resource: str) -> float | None:
        """Return the requested share of a resource, 0-1, rounded to 4 digits, or None if the node has none of it."""
        if resource == "gpu":
            return round(self.gpu_milli_used / (self.installed * 1000), 4) if self.installed else None
        whole = self.allocatable.get(resource, 0)
        return round(self.requested.get(resource, 0) / whole, 4) if whole else None

    def free(self, resource: str) -> float | None:
        if resource == "gpu":
            return self.cards - (self.gpu_milli_used - self.held_out) / 1000 if self.installed else None
        whole = self.allocatable.get(resource)
        return None if whole is None else whole - self.requested.get(resource, 0)

    @property
    def words(self) -> str:
        return f"{self.name} {self.pool} {self.isa} {self.family} {self.state}".lower()


_kept: dict[int, tuple[tuple[int, int, datetime], ReportSummary]] = {}


def node_rows(cluster: Cluster) -> list[NodeListRow]:
    """Return all nodes of a cluster, sorted by name."""
    rows = Node.objects.filter(cluster=cluster).order_by("name").values_list(*_COLUMNS)
    found = [NodeListRow(columns, cluster.layout_revision) for columns in rows]
    _add_held_out_shares([row for row in found if row.installed > row.cards and row.gpu_milli_used])
    return found


def _add_held_out_shares(rows: list[NodeListRow]) -> None:
    """Set `held_out` of each row: the allocated share of its GPUs that accept no new pods."""
    by_id = {row.id: row for row in rows}
    for some in batched(sorted(by_id)):
        healthy = {
            pk: {card.index for card in cards_of(report)}
            for pk, report in Node.objects.filter(pk__in=some).values_list("pk", "report")
        }
        reservations = Reservation.objects.filter(node__in=some, active=True).values_list("node_id", "allocation")
        for pk, allocation in reservations:
            grants = allocation.gpus if allocation is not None else ()
            by_id[pk].held_out += sum(grant.milli for grant in grants if grant.index not in healthy[pk])


def add_summaries(rows: Iterable[NodeListRow]) -> None:
    """Add the summaries of the node reports to these rows."""
    missing: dict[int, NodeListRow] = {}
    for row in rows:
        kept = _kept.get(row.id)
        if kept is not None and kept[0] == row.version:
            row.summary = kept[1]
        else:
            missing[row.id] = row
    if len(_kept) + len(missing) > MOST_KEPT:
        _kept.clear()
    ids = list(missing)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        for pk, report in Node.objects.filter(pk__in=chunk).values_list("pk", "report"):
            row = missing.pop(pk)
            row.summary = _summary(report)
            _kept[pk] = (row.version, row.summary)
    for row in missing.values():  # the node was deleted in the meantime
        row.summary = ReportSummary({}, (), (), None, 0)


def _summary(report: NodeReport) -> ReportSummary:
    cards = cards_of(report)
    memory = [card.memory_mib for card in cards if card.memory_mib is not None]
    return ReportSummary(
        labels=report.labels,
        taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in report.taints),
        models=tuple(dict.fromkeys(card.model for card in cards if card.model)),
        card_memory_bytes=max(memory) * MIB if memory else None,
        zones=len(report.numa.zones) if report.numa else 0,
    )
