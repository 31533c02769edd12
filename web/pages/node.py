"""One node: what it is, what is known of it and by whom, and who holds what of it.

Rule: a tab is an address. Facts come from the same documents as REST (`web.api.facts`), each group with its source and
age; a fact that nobody stated is shown as unknown, never as 0 or no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.http import Http404, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.access.subject import subject_of
from hetsched.adapters.merging import card_name
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import CPU, MEMORY, MIB, parse_amount
from hetsched.engine.columns import USAGE_RESOURCES
from hetsched.inventory.actions import node_topic
from hetsched.inventory.models import Node
from hetsched.inventory.tiles import tile
from hetsched.placement.models import Decision, Reservation
from hetsched.placement.zones import zones_at_risk
from web.api import facts
from web.api.nodes import HEAVY, balance_of

from .acting import on_node
from .amounts import amount_words, mib_words, percent, use
from .decisions import with_sentences
from .isa_groups import grouped
from .shell import Shell, page

LATEST_DECISIONS = 50
OWNER_COLOURS = 6
Context = dict[str, Any]
Held = list[Reservation]


@page("nodes")
def node(shell: Shell, name: str, tab: str = "overview") -> HttpResponse:
    cluster = shell.need_cluster()
    if tab not in TABS:
        raise Http404(_("There is no such tab."))
    shell.follow(node_topic(cluster, name))
    found = Node.objects.select_related("cluster", "facts").defer(*HEAVY).filter(cluster=cluster, name=name).first()
    if found is None:
        raise Http404(_("There is no node %(name)s in cluster %(cluster)s.") % {"name": name, "cluster": cluster.name})
    rows = Reservation.objects.filter(node=found, active=True).select_related("pod").defer("pod__spec")
    held = list(rows.order_by("pod_id"))
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
        "acts": on_node(found, held, subject_of(shell.request)),
    }
    return shell.render(f"node/{tab}", {**context, **show(found, held)})


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


def _overview(node: Node, held: Held) -> Context:
    names = sorted(node.allocatable, key=lambda name: (name not in (CPU, MEMORY), name))
    resources = [use(name, node.allocatable[name], node.requested.get(name, 0)) for name in names]
    return {
        "sentence": _sentence(node, resources),
        "resources": resources,
        "origin": facts.origin(node, timezone.now()),
        "taints": node.report.taints,
        "labels": sorted(node.report.labels.items()),
        "annotations": sorted(node.report.annotations.items()),
        "power": node.report.power,
        "problems": node.report.problems,
        "doubts": node.doubts,
        "back_offs": facts.back_offs(node, timezone.now(), lambda namespace: True),
        **_believed(node, held),
    }


def _believed(node: Node, held: Held) -> Context:
    """Return who says what of a node, and what of it does not count as it is told."""
    row = facts.stated(node)
    if row is None:
        return {}
    return {
        "quarantined": facts.quarantined(node, row, held),
        "overrides": row.overrides,
        "said": [(fact, facts.stated_fact(said)) for fact, said in sorted(row.claims.items())],
    }


def _sentence(node: Node, resources: list[Context]) -> str:
    """Say in one line whether pods may come, and what would run out first."""
    if not node.ready:
        return _("Not ready: no pod is placed here until it is.")
    if node.cordoned_by_operator:
        return _("Cordoned by an operator: what runs stays, nothing new comes.")
    if node.unschedulable:
        return _("Marked unschedulable: what runs stays, nothing new comes.")
    fullest = max((row for row in resources if row["ratio"] is not None), key=lambda row: row["ratio"], default=None)
    if fullest is None:
        return _("It states no capacity, so nothing fits.")
    if not fullest["ratio"]:
        return _("Ready and empty.")
    return _("Ready. The fullest resource is %(name)s: %(percent)s requested, %(free)s free.") % fullest


def _isa(node: Node, held: Held) -> Context:
    shown = facts.isa_facts(node, held, timezone.now())
    return {"isa": shown, "groups": grouped(shown.family, shown.extensions)}


def _gpu(node: Node, held: Held) -> Context:
    shown = facts.gpu_facts(node, held, timezone.now())
    colours = _colours(holder.pod for card in shown.cards for holder in card.holders)
    workloads = {reservation.pod.key: reservation.pod.workload_id for reservation in held}
    row = facts.stated(node)
    missing = {one.item for one in row.quarantined if one.change == "shrunk"} if row is not None else set()
    cards = [
        {
            "card": card.card,
            "missing": card_name(card.card) in missing,
            "memory": mib_words(card.card.memory_mib),
            "free_milli": card.free_milli,
            "free_memory": mib_words(card.free_memory_mib),
            "slices": [
                {
                    "pod": holder.pod,
                    "workload": workloads.get(holder.pod),
                    "milli": holder.milli,
                    "memory": mib_words(holder.memory_mib),
                    "ratio": holder.milli / 1000,
                    "colour": colours[holder.pod],
                    "handed": holder.handed_out,
                }
                for holder in card.holders
            ],
        }
        for card in shown.cards
    ]
    handed = [holder.handed_out for card in shown.cards for holder in card.holders if holder.handed_out is not None]
    return {
        "gpu": shown,
        "cards": cards,
        "linked": any(card.card.links for card in shown.cards),
        "advisory": any(one.advisory for one in handed),
        "conflicts": any(one.problem for one in handed),
    }


def _numa(node: Node, held: Held) -> Context:
    shown = facts.numa_facts(node, held, timezone.now(), at_risk=zones_at_risk(node, held))
    zones = shown.zones or []
    colours = _colours(grant["pod"] for zone in zones for grant in zone.held)
    reserved = _cpus(shown.reserved_cpus)
    cards = facts.gpu_facts(node, held, timezone.now()).cards
    return {
        "numa": shown,
        "zones": [
            {
                "zone": zone,
                "cores": _cores(zone, colours, reserved),
                "held": [{**grant, "colour": colours[grant["pod"]]} for grant in zone.held],
                "memory": _zone_memory(zone),
                "cpu": _zone_cpu(zone),
                "cards": [card.card for card in cards if card.card.numa_zone == zone.name],
            }
            for zone in zones
        ],
        "unplaced_cards": [card.card for card in cards if card.card.numa_zone is None] if zones else [],
        "distances": _distances(zones),
    }


def _balance(node: Node, held: Held) -> Context:
    shown = balance_of(node)
    measured = node.report.usage.amounts if node.report.usage else {}
    rows = []
    for name in USAGE_RESOURCES:
        whole = node.allocatable.get(name, 0)
        sample = measured.get(name)
        rows.append(
            {
                "name": name,
                "counted": shown.resources.get(name),
                "whole": amount_words(name, whole),
                "requested": use(name, whole, node.requested.get(name, 0)),
                "measured": None if sample is None else use(name, whole, sample),
            }
        )
    usage = node.report.usage
    return {
        "balance": shown,
        "rows": rows,
        "measured": bool(measured) and not shown.stale,
        "sampled_by": (usage.source if usage else "") or node.report.source or "file",
        "sampled_at": usage.observed_at if usage else "",
    }


def _pods(node: Node, held: Held) -> Context:
    rows = []
    for reservation in held:
        rest = {k: v for k, v in reservation.requests.items() if k not in (CPU, MEMORY, "pods")}
        rows.append(
            {
                "pod": reservation.pod,
                "since": reservation.created_at,
                "cpu": amount_words(CPU, reservation.requests.get(CPU, 0)),
                "memory": amount_words(MEMORY, reservation.requests.get(MEMORY, 0)),
                "rest": [(name, amount_words(name, amount)) for name, amount in sorted(rest.items())],
                "gpus": reservation.allocation.gpus,
                "zones": reservation.allocation.zones,
            }
        )
    return {"pods": rows}


def _decisions(node: Node, held: Held) -> Context:
    placed = Decision.objects.filter(cluster=node.cluster, node_name=node.name).defer("reasons", "top", "allocation")
    return {"rows": with_sentences(placed.order_by("-id")[:LATEST_DECISIONS]), "latest": LATEST_DECISIONS}


TABS: dict[str, tuple[Any, Callable[[Node, Held], Context]]] = {
    "overview": (gettext_lazy("Overview"), _overview),
    "isa": (gettext_lazy("ISA"), _isa),
    "gpu": (gettext_lazy("GPU"), _gpu),
    "numa": (gettext_lazy("NUMA"), _numa),
    "balance": (gettext_lazy("Balance"), _balance),
    "pods": (gettext_lazy("Pods"), _pods),
    "decisions": (gettext_lazy("Decisions"), _decisions),
}


# -- owners and zones --------------------------------------------------------------------------------------------------


def _colours(owners: Iterable[str]) -> dict[str, int]:
    """Give each owner one of the colours, in name order, so a redraw keeps them."""
    return {owner: place % OWNER_COLOURS + 1 for place, owner in enumerate(sorted(set(owners)))}


def _cpus(text: str | None) -> frozenset[int]:
    try:
        return parse_cpuset(text or "")
    except InputError:
        return frozenset()


def _cores(zone: facts.ZoneFacts, colours: dict[str, int], reserved: frozenset[int]) -> list[list[Context]] | None:
    """Return the zone's CPUs, hyper-threads of one core together; None where the zone is only counted."""
    if zone.cpus is None:
        return None
    owners = {cpu: grant["pod"] for grant in zone.held for cpu in _cpus(grant.get("cpus"))}
    left = sorted(_cpus(zone.cpus))
    pairs = [sorted(_cpus(part) & set(left)) for part in (zone.siblings or "").split(";")]
    paired = {cpu for pair in pairs for cpu in pair}
    cores = [pair for pair in pairs if pair] + [[cpu] for cpu in left if cpu not in paired]
    return [
        [
            {
                "cpu": cpu,
                "owner": owners.get(cpu),
                "colour": colours.get(owners.get(cpu, "")),
                "reserved": cpu in reserved,
            }
            for cpu in core
        ]
        for core in sorted(cores)
    ]


def _zone_memory(zone: facts.ZoneFacts) -> Context | None:
    if MEMORY not in zone.allocatable:
        return None
    held = sum(int(grant.get("memoryMiB") or 0) for grant in zone.held) * MIB
    return use(MEMORY, parse_amount(MEMORY, zone.allocatable[MEMORY]), held)


def _zone_cpu(zone: facts.ZoneFacts) -> Context | None:
    if CPU not in zone.allocatable:
        return None
    held = sum(int(grant.get("cpuMillis") or 0) for grant in zone.held)
    return use(CPU, parse_amount(CPU, zone.allocatable[CPU]), held)


def _distances(zones: list[facts.ZoneFacts]) -> Context | None:
    if not any(zone.costs for zone in zones):
        return None
    names = [zone.name for zone in zones]
    rows = [{"name": zone.name, "cells": [zone.costs.get(other) for other in names]} for zone in zones]
    return {"names": names, "rows": rows}
