"""The balance page: requested and measured use of a cluster, and the metric sources.

The effective use of a node is its latest sample plus the pods placed since, or the requests if it has no current
sample. The page marks nodes for which a current sample is missing. The values are read from the engine's current state.
Measured use is the use in the current samples, without pods placed since then.
A sample is stale if it is older than the limit, by the server's clock or relative to the newest sample of its cluster;
a collector may have a longer limit. The page shows the age of the newest sample, stale or not.

The charts show each node as a dot over CPU and memory use, and the balance over time. A node on the diagonal uses the
same share of CPU and memory. The trend has one sample per minute, for at most the last day. The tables below the charts
list the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from django.http import HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from hetsched.contracts.times import seconds
from hetsched.engine.cluster.balance import node_balance
from hetsched.engine.cluster.columns import USAGE_RESOURCES, Bools
from hetsched.engine.cluster.samples import STALE_SECONDS
from hetsched.engine.cluster.state import ClusterState
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.models import Measure
from web.api.monitoring.metrics import load_sources

from ..amounts import amount_words, percent, use
from ..shell import Shell, page

MOST_DOTS = 1000
MOST_NAMED = 3
SPAN = timedelta(hours=24)
MOST_POINTS = 96
WIDTH, HEIGHT = 480, 96
# Size of a label in chart units; the chart is 100 x 100 units.
NAME_WIDTH, NAME_HEIGHT = 40, 4


class Dot(msgspec.Struct, frozen=True):
    """Dot of one node; `x` and `y` are CPU and memory use in percent, with `y` measured from the top.

    `name_y` is the vertical position of its label, or None if it has no label.
    """

    name: str
    x: float
    y: float
    said: str
    name_y: float | None


class BalanceTrend(msgspec.Struct, frozen=True):
    """Trend of a cluster's balance, the oldest sample first; `line` is a polyline between `low` and 1."""

    points: list[tuple[datetime, float]]
    line: str
    low: float

    @property
    def first_at(self) -> datetime:
        return self.points[0][0]

    @property
    def last_at(self) -> datetime:
        return self.points[-1][0]


def dots(nodes: Sequence[dict[str, Any]]) -> list[Dot]:
    """Return dots for the least balanced nodes that report CPU and memory; the first few have labels."""
    found: list[Dot] = []
    for node in nodes[:MOST_DOTS]:
        (cpu, cpu_said), (memory, memory_said), *_rest = node["cells"]
        if cpu is None or memory is None:
            continue
        text = f"{node['name']}: CPU {cpu_said}, {memory_said}, {node['degree']:.4f}"
        x, y = round(100 * cpu, 2), round(100 - 100 * memory, 2)
        found.append(Dot(node["name"], x, y, text, _free(x, y, found) if len(found) < MOST_NAMED else None))
    return found


def _free(x: float, y: float, named: Sequence[Dot]) -> float:
    """Return the vertical position for the label of the dot at (x, y): the nearest that overlaps no other label."""
    near = [dot.name_y for dot in named if dot.name_y is not None and abs(dot.x - x) < NAME_WIDTH]
    heights = (y + lines * NAME_HEIGHT for lines in (0, -1, 1, -2, 2))
    return next(height for height in heights if all(abs(height - other) >= NAME_HEIGHT for other in near))


def trend(cluster: Cluster, now: datetime) -> BalanceTrend | None:
    """Return the trend of the balance, or None if there are fewer than two samples."""
    rows = Measure.objects.filter(cluster=cluster, at__gt=now - SPAN, at__lte=now).order_by("at")
    taken = [(row.at, row.figures.balance) for row in rows if row.figures.balance is not None]
    if len(taken) < 2:
        return None
    step = max(1, -(-len(taken) // MOST_POINTS))
    points = taken[::step] if (len(taken) - 1) % step == 0 else [*taken[::step], taken[-1]]
    low = min(0.75, *(value for _, value in points))
    began, spread = points[0][0], (points[-1][0] - points[0][0]).total_seconds()
    line = " ".join(
        f"{WIDTH * (at - began).total_seconds() / spread:.1f},{HEIGHT * (1 - value) / (1 - low):.1f}"
        for at, value in points
    )
    return BalanceTrend(points, line, low)


PAGE_SIZE = 100


@page("balance")
def balance(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("balance", {})
    shell.follow(cluster_topic(shell.cluster))
    with cache_of(shell.cluster.pk).locked_snapshot() as loaded:
        state = loaded.state
        late = frozenset(state.stale())
        resources = _resources(state)
        nodes = _nodes(state, late)
        ready = state.all_rows.static("ready") != 0
        degree = float(node_balance(state)[ready].mean()) if ready.any() else 1.0
        newest = _newest_sample(state)
    now = timezone.now()
    found = shell.page_of(nodes, PAGE_SIZE)
    return shell.render(
        "balance",
        {
            "degree": degree,
            "resources": resources,
            "sources": load_sources(shell.cluster),
            "late": len(late),
            "newest": newest,
            "old": newest is not None and now - newest > timedelta(seconds=STALE_SECONDS),
            "fresh_minutes": round(STALE_SECONDS / 60),
            "total": len(nodes),
            "measured": sum(row["measured"] for row in nodes),
            "columns": [_label(name) for name in USAGE_RESOURCES],
            "dots": dots(nodes),
            "most_dots": MOST_DOTS,
            "trend": trend(shell.cluster, now),
            "page": found,
        },
    )


def _newest_sample(state: ClusterState) -> datetime | None:
    """Return the time of the newest sample, stale or not, or None if no sample has a timestamp."""
    taken = [seconds(report.usage.observed_at) for report in state.reports if report.usage is not None]
    newest = max((moment for moment in taken if moment is not None), default=None)
    return None if newest is None else datetime.fromtimestamp(newest, UTC)


def _label(resource: str) -> str:
    labels = {"cpu": _("CPU"), "memory": _("memory")}
    return (
        labels.get(resource) or {"hetsched.io/network-mbps": _("network"), "hetsched.io/disk-mbps": _("disk")}[resource]
    )


def _resources(state: ClusterState) -> list[dict[str, Any]]:
    """Return the four resources summed over all nodes; measured use is the sum over the nodes that have a sample."""
    rows = []
    allocatable, requested = state.all_rows.static("allocatable"), state.all_rows.load("requested")
    used, measured = state.all_rows.load("used"), state.all_rows.static("measured") != 0
    for position, name in enumerate(USAGE_RESOURCES):
        if name not in state.resources.index:
            continue
        row = state.resources.index[name]
        known = measured[position] & (allocatable[row] > 0)
        whole, counted = int(allocatable[row].sum()), int(np.maximum(used[position], 0).sum())
        rows.append(
            {
                "label": _label(name),
                "whole": amount_words(name, whole),
                "requested": use(name, whole, int(requested[row].sum())),
                "measured": use(name, int(allocatable[row][known].sum()), _sampled(state, name, known))
                if known.any()
                else None,
                "nodes": int(known.sum()),
                "counted": use(name, whole, counted),
            }
        )
    return rows


def _sampled(state: ClusterState, resource: str, known: Bools) -> int:
    """Return the measured use of a resource, summed over the nodes of the mask `known`, which all have a sample."""
    usages = (state.reports[row].usage for row in np.flatnonzero(known).tolist())
    return sum(usage.amounts[resource] for usage in usages if usage is not None)


def _nodes(state: ClusterState, late: frozenset[str]) -> list[dict[str, Any]]:
    """Return every node with its effective use, the least balanced first."""
    degrees = node_balance(state).tolist()
    measured = (state.all_rows.static("measured") != 0).any(axis=0).tolist()
    allocatable, used = state.all_rows.static("allocatable"), state.all_rows.load("used")
    at = [state.resources.index.get(name) for name in USAGE_RESOURCES]
    found = []
    for row, name in enumerate(state.columns.names):
        ratios = [
            min(max(int(used[position, row]), 0) / int(allocatable[where, row]), 1.0)
            if where is not None and allocatable[where, row]
            else None
            for position, where in enumerate(at)
        ]
        found.append(
            {
                "name": name,
                "degree": degrees[row],
                "measured": bool(measured[row]),
                "late": name in late,
                "cells": [(ratio, percent(ratio)) for ratio in ratios],
            }
        )
    return sorted(found, key=lambda node: (node["degree"], node["name"]))
