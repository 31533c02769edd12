"""The extension points, and the data that a plugin's result depends on.

A plugin implements exactly the extension points whose methods it has; `plugin_interfaces` describes them. Names and
order are those of the Kubernetes Scheduling Framework: QueueSort | PreFilter, Filter, PostFilter, PreScore, Score,
NormalizeScore, Reserve, Permit | PreBind, Bind, PostBind; Unreserve undoes Reserve.
Source: Kubernetes documentation, "Scheduling Framework" (stable since 1.19).
"""

from __future__ import annotations

import enum


class Reads(enum.StrEnum):
    """Dependence of a plugin's result on placements; STATIC results are cached until the inventory changes."""

    STATIC = "static"
    LOAD = "load"


class Scope(enum.StrEnum):
    """Dependence of a plugin's result for a row: on that row only, or on the whole cluster (then never cached)."""

    ROW = "row"
    CLUSTER = "cluster"


POINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "queue-sort": ("sort_key", ("pod",)),
    "pre-filter": ("pre_filter", ("request", "state")),
    "filter": ("filter", ("request", "nodes")),
    "post-filter": ("post_filter", ("request", "diagnosis", "state")),
    "pre-score": ("pre_score", ("request", "state")),
    "score": ("score", ("request", "nodes")),
    "normalize-score": ("normalize", ("request", "scores", "feasible")),
    "reserve": ("reserve", ("request", "row", "state")),
    "unreserve": ("unreserve", ("request", "row", "state")),
    "permit": ("permit", ("request", "row", "room")),
    "pre-bind": ("pre_bind", ("pod", "node", "allocation")),
    "bind": ("bind", ("pod", "node", "allocation")),
    "post-bind": ("post_bind", ("pod", "node", "allocation")),
}
COMPANIONS = {
    "refusals": ("request", "nodes"),
    "static_key": ("request",),
    "waits": ("request",),
    "waits_to_evict": ("request", "state"),
    "arrange": ("pods", "state", "placed"),
    "concerns": ("pod",),
    "handles": ("shape",),
    "relaxations": ("shape", "state"),
    "handled_pods": ("state",),
    "emulated_on": ("request", "state"),
    "card_demand": ("demand", "state"),
    "prepare": ("request", "scheduler"),
    "missed": ("request", "room", "diagnose"),
    "withdrawn": ("request", "room"),
}
