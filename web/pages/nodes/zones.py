"""The NUMA tab of a node: a map of CPUs with their owners, reserved and shared CPUs.

Hyper-threads of one core are adjacent. A list names every owner with its CPUs, so that no information depends on colour
alone. For pods that the kubelet pins, the tab shows the predicted and the actual zones. The query string may contain a
preview: the CPUs of a candidate.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import CPU, MEMORY, MIB, parse_amount
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation
from hetsched.placement.queries.zones import zones_at_risk
from hetsched.placement.scheduling_queue.node_backoffs import node_rejections
from web.api.nodes import facts

from ..amounts import use
from .candidate import CandidateUse
from .cards import owner_colours
from .holders import Holder, holders

LATEST_REFUSALS = 20
Context = dict[str, Any]
Held = list[Reservation]


def core_map(node: Node, reservations: Held, candidate: CandidateUse) -> Context:
    """Return the context of the NUMA tab."""
    now = timezone.now()
    shown = facts.numa_facts(node, reservations, now, at_risk=zones_at_risk(node, reservations))
    zones = shown.zones or []
    colours = owner_colours(grant["pod"] for zone in zones for grant in zone.held)
    reserved = _cpus(shown.reserved_cpus)
    cards = facts.gpu_facts(node, reservations, now).cards
    known = frozenset[int]().union(*(_cpus(zone.cpus) for zone in zones))
    owners = holders(reservations)
    elsewhere = _cpus(shown.kubelet_cpus)
    spread = any(
        not reservation.allocation.zones and dict(reservation.pod.spec.shape.requests).get(MEMORY)
        for reservation in reservations
    )
    boxes = [_box(zone, colours, owners, reserved, cards, candidate.cpus, elsewhere, spread=spread) for zone in zones]
    return {
        "numa": shown,
        "zones": boxes,
        "uncounted": any(box["memory"] and box["memory"]["uncounted"] for box in boxes),
        "kept": any(owner.is_reserved for owner in owners.values()),
        "unplaced_cards": [card.card for card in cards if card.card.numa_zone is None] if zones else [],
        "distances": _distances(zones),
        "predictions": _predictions(shown, reservations),
        "refusals": [row for row in node_rejections(node, now) if row.reason != MOVED_AWAY][-LATEST_REFUSALS:],
        "ghost": candidate,
        "ghost_cpus": format_cpuset(candidate.cpus & known),
        "ghost_lost": format_cpuset(candidate.cpus - known),
        "ghost_taken": format_cpuset(candidate.cpus & _held_cpus(zones)),
    }


def _box(
    zone: facts.ZoneFacts,
    colours: dict[str, int],
    owners: dict[str, Holder],
    reserved: frozenset[int],
    cards: list[facts.CardFacts],
    candidate: frozenset[int],
    elsewhere: frozenset[int],
    *,
    spread: bool,
) -> Context:
    own, taken = _cpus(zone.cpus), _held_cpus([zone])
    return {
        "zone": zone,
        "cores": _cores(zone, colours, owners, reserved, candidate, elsewhere),
        "held": [{**grant, "colour": colours[grant["pod"]], "holder": owners.get(grant["pod"])} for grant in zone.held],
        "shared": format_cpuset(own - taken - reserved - elsewhere),
        "elsewhere": format_cpuset(own & elsewhere),
        "reserved": format_cpuset(own & reserved),
        "ghost": format_cpuset(own & candidate),
        "memory": _memory(zone, spread=spread),
        "cpu": _cpu(zone),
        "static_memory": _static_memory(zone),
        "cards": [card.card for card in cards if card.card.numa_zone == zone.name],
    }


def _cpus(text: str | None) -> frozenset[int]:
    try:
        return parse_cpuset(text or "")
    except InputError:
        return frozenset()


def _held_cpus(zones: list[facts.ZoneFacts]) -> frozenset[int]:
    return frozenset[int]().union(*(_cpus(grant.get("cpus")) for zone in zones for grant in zone.held))


def _cores(
    zone: facts.ZoneFacts,
    colours: dict[str, int],
    known: dict[str, Holder],
    reserved: frozenset[int],
    candidate: frozenset[int],
    elsewhere: frozenset[int],
) -> list[list[Context]] | None:
    """Return the zone's CPUs grouped by core, or None if the ids of its CPUs are unknown."""
    if zone.cpus is None:
        return None
    owners = {cpu: grant["pod"] for grant in zone.held for cpu in _cpus(grant.get("cpus"))}
    cpus = sorted(_cpus(zone.cpus))
    pairs = [sorted(_cpus(part) & set(cpus)) for part in (zone.siblings or "").split(";")]
    paired = {cpu for pair in pairs for cpu in pair}
    cores = [pair for pair in pairs if pair] + [[cpu] for cpu in cpus if cpu not in paired]
    return [
        [
            {
                "cpu": cpu,
                "owner": owners.get(cpu),
                "colour": colours.get(owners.get(cpu, "")),
                "holder": known.get(owners.get(cpu, "")),
                "reserved": cpu in reserved,
                "elsewhere": cpu in elsewhere,
                "ghost": cpu in candidate,
            }
            for cpu in core
        ]
        for core in sorted(cores)
    ]


def _memory(zone: facts.ZoneFacts, *, spread: bool) -> Context | None:
    """Return the allocated memory of a zone.

    `spread` is true if pods on the node hold memory that is not assigned to a zone, and that may be in any zone.
    """
    if MEMORY not in zone.allocatable:
        return None
    held = [int(grant.get("memoryMiB") or 0) for grant in zone.held]
    shown = use(MEMORY, parse_amount(MEMORY, zone.allocatable[MEMORY]), sum(held) * MIB)
    # A reservation contains the memory of a zone only if the policy accounts for memory by zone; otherwise the amount
    # is unknown.
    return {**shown, "uncounted": held.count(0), "counted": any(held) or not (held or spread)}


def _static_memory(zone: facts.ZoneFacts) -> list[Context]:
    """Return the use of the static memory manager's memory by kind, empty if it is unknown."""
    free = zone.static_memory_free or {}
    amounts = ((kind, parse_amount(kind, whole)) for kind, whole in (zone.static_memory or {}).items() if kind in free)
    return [use(kind, whole, whole - parse_amount(kind, free[kind])) for kind, whole in amounts]


def _cpu(zone: facts.ZoneFacts) -> Context | None:
    if CPU not in zone.allocatable:
        return None
    used = 0 if zone.used is None else parse_amount(CPU, zone.used)
    return {**use(CPU, parse_amount(CPU, zone.allocatable[CPU]), used), "unknown": zone.used is None}


def _distances(zones: list[facts.ZoneFacts]) -> Context | None:
    if not any(zone.costs for zone in zones):
        return None
    names = [zone.name for zone in zones]
    rows = [{"name": zone.name, "cells": [zone.costs.get(other) for other in names]} for zone in zones]
    return {"names": names, "rows": rows}


def _predictions(shown: facts.NumaFacts, reservations: Held) -> list[Context]:
    """Return the predicted and the actual zones of pods that the kubelet pins."""
    actual: dict[str, frozenset[int]] = {}
    for pin in shown.pins or []:
        if pin.actual is not None:
            actual[pin.pod] = actual.get(pin.pod, frozenset()) | _cpus(pin.actual)
    homes = {zone.name: _cpus(zone.cpus) for zone in shown.zones or []}
    found = []
    for reservation in reservations:
        predicted = reservation.allocation.predicted
        if not predicted:
            continue
        expected = sorted(grant.name for grant in predicted)
        cpus = actual.get(reservation.pod.key)
        taken = None if cpus is None else sorted(name for name, own in homes.items() if own & cpus)
        found.append(
            {
                "pod": reservation.pod,
                "expected": ", ".join(expected),
                "taken": None if taken is None else ", ".join(taken),
                "agrees": None if taken is None else taken == expected,
            }
        )
    return found
