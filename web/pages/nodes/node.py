"""The pages of one node: its facts with their sources, its resources and their holders.

Each tab has its own URL. Facts are read from the same documents as in REST (`web.api.nodes.facts`), each group with its
source and age. A fact without a source is shown as unknown, never as 0 or no.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from django.http import Http404, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.access.subject import subject_of
from hetsched.contracts.spelling import LONGEST
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.inventory.actions import node_topic
from hetsched.inventory.models import Node
from hetsched.inventory.tiles import tile
from hetsched.placement.models import Decision, Reservation
from web.api.nodes import facts
from web.api.nodes.nodes import HEAVY, balance_of

from ..actions import on_node
from ..amounts import amount_words, percent, use
from ..errors import LinkedHttp404
from ..shell import Shell, page
from ..workloads.decisions import with_sentences
from .candidate import CandidateUse, parse_candidate
from .cards import board
from .headroom import headroom_of
from .holders import reservation_row
from .isa import instruction_set
from .trend import HEIGHT, WIDTH, table, trend
from .zones import core_map

LATEST_DECISIONS = 50
MOST_COMPARED = 1000  # names of nodes
MOST_SIMILAR = 3  # nodes whose names are suggested on the 404 page
Context = dict[str, Any]
Held = list[Reservation]


@page("nodes")
def node(shell: Shell, name: str, tab: str = "overview") -> HttpResponse:
    cluster = shell.require_cluster()
    if tab not in TABS:
        raise Http404(_("This tab does not exist."))
    shell.follow(node_topic(cluster, name))
    found = Node.objects.select_related("cluster", "facts").defer(*HEAVY).filter(cluster=cluster, name=name).first()
    if found is None:
        raise _node_missing(shell, name)
    rows = Reservation.objects.filter(node=found, active=True).select_related("pod").defer("pod__spec")
    reservations = list(rows.order_by("pod_id"))
    label, show = TABS[tab]
    tabs = [
        {"label": label, "url": _tab_url(name, key) + shell.keep(), "current": key == tab}
        for key, (label, _show) in TABS.items()
    ]
    shown = tile(found)
    agent = facts.agent_facts(facts.stated(found), timezone.now())
    context = {
        "node": found,
        "tile": shown,
        "measures": _measures(shown),
        "tabs": tabs,
        "tab_label": label,
        "agent": agent,
        "silent": agent is not None and agent.silent,
        "acts": on_node(found, reservations, subject_of(shell.request)),
    }
    return shell.render(f"node/{tab}", {**context, **show(found, reservations, parse_candidate(shell.text("ghost")))})


def _node_missing(shell: Shell, name: str) -> LinkedHttp404:
    """Return the 404 page of a node, with links to the nodes with similar names and to all nodes of the cluster."""
    cluster = shell.require_cluster()
    # The comparison of all names of a large cluster would take a second.
    same_start = cluster.nodes.filter(name__startswith=name[: len(name) // 2]).order_by("name")
    names = same_start.values_list("name", flat=True)[:MOST_COMPARED]
    similar = get_close_matches(name[:LONGEST], names, n=MOST_SIMILAR)
    links = [(found, reverse("node", args=[found]) + shell.keep()) for found in similar]
    links.append((_("Nodes of %(cluster)s") % {"cluster": cluster.name}, reverse("nodes") + shell.keep()))
    text = _("Node %(name)s does not exist in cluster %(cluster)s.") % {"name": name, "cluster": cluster.name}
    return LinkedHttp404(text, links)


def _tab_url(name: str, tab: str) -> str:
    return reverse("node", args=[name]) if tab == "overview" else reverse("node", args=[name, tab])


def _measures(shown: dict[str, Any]) -> list[dict[str, Any]]:
    labels = {"cpu": _("CPU"), "memory": _("memory"), "gpu": _("GPU")}
    return [
        {"kind": kind, "label": label, "ratio": shown[kind], "percent": percent(shown[kind])}
        for kind, label in labels.items()
        if shown[kind] is not None
    ]


# -- tabs --------------------------------------------------------------------------------------------------------------


def _overview(node: Node, reservations: Held, candidate: CandidateUse) -> Context:
    names = sorted(node.allocatable, key=lambda name: (name not in (CPU, MEMORY), name))
    resources = [use(name, node.allocatable[name], node.requested.get(name, 0)) for name in names]
    return {
        "room": (room := headroom_of(node) if node.ready and not node.unschedulable else None),
        "lead": "" if room is None else room.sentence,
        "sentence": _sentence(node, resources),
        "resources": resources,
        "measured_cpu": _measured(node, CPU),
        "origin": facts.origin(node, timezone.now()),
        "taints": node.report.taints,
        "labels": sorted(node.report.labels.items()),
        "annotations": sorted(node.report.annotations.items()),
        "power": node.report.power,
        "problems": node.report.problems,
        "doubts": node.doubts,
        "back_offs": facts.back_offs(node, timezone.now(), lambda namespace: True),
        "pod_problems": [row for row in map(reservation_row, reservations) if row["problem"]],
        **_reported_facts(node, reservations),
    }


def _measured(node: Node, name: str) -> str:
    """Return the measured share of a resource as text, or "" if there is no sample."""
    sample = node.report.usage.amounts.get(name) if node.report.usage else None
    whole = node.allocatable.get(name, 0)
    return percent(sample / whole) if sample is not None and whole else ""


def _reported_facts(node: Node, reservations: Held) -> Context:
    """Return the reports of each source, and the facts that are not accepted as reported."""
    row = facts.stated(node)
    if row is None:
        return {}
    return {
        "quarantined": facts.quarantined(node, row, reservations),
        "overrides": row.overrides,
        "said": [(fact, facts.stated_fact(said)) for fact, said in sorted(row.claims.items())],
    }


def _sentence(node: Node, resources: list[Context]) -> str:
    """Describe whether the node accepts pods, and its fullest resource."""
    if not node.ready:
        return _("Not ready. The scheduler does not place pods here until the node is ready.")
    if node.cordoned_by_operator:
        return _("Cordoned by an operator. Running pods stay, but the scheduler does not place new pods here.")
    if node.unschedulable:
        return _("Marked unschedulable. Running pods stay, but the scheduler does not place new pods here.")
    fullest = max((row for row in resources if row["ratio"] is not None), key=lambda row: row["ratio"], default=None)
    if fullest is None:
        return _("The node reports no capacity, so no pod fits.")
    if not fullest["ratio"]:
        return _("Ready and empty.")
    return _("Ready. The fullest resource is %(name)s: %(percent)s requested, %(free)s free.") % fullest


def _balance(node: Node, reservations: Held, candidate: CandidateUse) -> Context:
    shown = balance_of(node)
    measured = node.report.usage.amounts if node.report.usage else {}
    rows = []
    for name in USAGE_RESOURCES:
        whole = node.allocatable.get(name, 0)
        sample = measured.get(name)
        counted = shown.resources.get(name)
        since = 0
        if sample is not None and counted is not None and not shown.stale and whole:
            # Computed from the rounded values, so that the displayed numbers add up.
            since = round(100 * counted.ratio) - round(100 * sample / whole)
        rows.append(
            {
                "name": name,
                "counted": counted,
                "since": percent(since / 100) if since > 0 else "",
                "whole": amount_words(name, whole),
                "requested": use(name, whole, node.requested.get(name, 0)),
                "measured": None if sample is None else use(name, whole, sample),
            }
        )
    usage = node.report.usage
    ratios = [resource.ratio for resource in shown.resources.values()]
    mean = sum(ratios) / len(ratios) if ratios else None
    variance = sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios) if mean is not None else None
    found = trend(node, timezone.now())
    return {
        "mean": mean,
        "variance": variance,
        "deviation": None if variance is None else math.sqrt(variance),
        "utility": shown.balance,
        "trend": found,
        "trend_lines": [] if found is None else list(zip(USAGE_RESOURCES, found.lines, strict=True)),
        "trend_rows": [] if found is None else table(found),
        "trend_box": (WIDTH, HEIGHT),
        "resources": USAGE_RESOURCES,
        "balance": shown,
        "rows": rows,
        "measured": bool(measured) and not shown.stale,
        "sampled_by": (usage.source if usage else "") or node.report.source or "file",
        "sampled_at": usage.observed_at if usage else "",
    }


def _pods(node: Node, reservations: Held, candidate: CandidateUse) -> Context:
    return {"pods": [reservation_row(reservation) for reservation in reservations]}


def _decisions(node: Node, reservations: Held, candidate: CandidateUse) -> Context:
    placed = Decision.objects.filter(cluster=node.cluster, node_name=node.name).defer("reasons", "top", "allocation")
    return {"rows": with_sentences(placed.order_by("-id")[:LATEST_DECISIONS]), "latest": LATEST_DECISIONS}


TABS: dict[str, tuple[Any, Callable[[Node, Held, CandidateUse], Context]]] = {
    "overview": (gettext_lazy("Overview"), _overview),
    "isa": (gettext_lazy("ISA"), lambda node, reservations, candidate: instruction_set(node, reservations)),
    "gpu": (gettext_lazy("GPU"), board),
    "numa": (gettext_lazy("NUMA"), core_map),
    "balance": (gettext_lazy("Balance"), _balance),
    "pods": (gettext_lazy("Pods"), _pods),
    "decisions": (gettext_lazy("Decisions"), _decisions),
}
