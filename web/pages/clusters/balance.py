"""The balance page: requested and measured use of a cluster, and the metric sources.

The effective use of a node is its latest sample plus the pods placed since, or the requests if it has no current
sample. The page marks nodes that should be measured and are not. The values are those of the engine's present state.
Measured use is that of the current samples, without pods placed since.
A sample is stale if it is older than the limit, by the server's clock or relative to the newest sample of its cluster;
a collector may have a longer limit. The page shows the age of the newest sample, stale or not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

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
from hetsched.placement.scheduler_cache import cache_of
from web.api.monitoring.metrics import load_sources

from ..amounts import amount_words, percent, use
from ..shell import Shell, page
from .balance_plane import MOST_DOTS, dots, trend

PAGE_SIZE = 100


@page("balance")
def balance(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("balance", {})
    shell.follow(cluster_topic(shell.cluster))
    with cache_of(shell.cluster.pk).held() as loaded:
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
    """Return the time of the newest sample, stale or not; None if no sample has a timestamp."""
    taken = [seconds(report.usage.observed_at) for report in state.reports if report.usage is not None]
    newest = max((moment for moment in taken if moment is not None), default=None)
    return None if newest is None else datetime.fromtimestamp(newest, UTC)


def _label(resource: str) -> str:
    labels = {"cpu": _("CPU"), "memory": _("memory")}
    return (
        labels.get(resource) or {"hetsched.io/network-mbps": _("network"), "hetsched.io/disk-mbps": _("disk")}[resource]
    )


def _resources(state: ClusterState) -> list[dict[str, Any]]:
    """Return the four resources over all nodes; measured use is the sum over the nodes with a sample."""
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
    """Return the sum of the samples of these rows; each known row has one."""
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
