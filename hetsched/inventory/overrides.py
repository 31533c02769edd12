"""Operator overrides of node facts, with priority over every other source.

The value of `isa` is an ISA string, `allocatable.<resource>` and `offline-capacity.<zone>` are quantities, and
`card.<index>` is `healthy`, `unhealthy` or `maintenance` (set by the module `maintenance`). An override is ignored if
the node no longer has the GPU or zone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched import isa
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.facts import Maintenance, Override
from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.units import CPU, parse_amount

SOURCE = "operator"
MAINTENANCE = "maintenance"
# Prefix of the fact name and value of the override that puts a GPU or a zone into maintenance.
MAINTAINED = {"card": ("card", MAINTENANCE), "zone": ("offline-capacity", "0")}
_HEALTH = {"healthy": True, "unhealthy": False}
_replace = msgspec.structs.replace


def parts_in_maintenance(overrides: Iterable[Override]) -> tuple[Maintenance, ...]:
    """Return the GPUs and zones that are in maintenance."""
    parts = {stated: part for part, stated in MAINTAINED.items()}
    found = []
    for override in overrides:
        kind, _, name = override.fact.partition(".")
        part = parts.get((kind, override.value))
        if part is not None:
            found.append(Maintenance(part, name, override.until, override.since, override.by, override.reason))
    return tuple(found)


def apply_overrides(report: NodeReport, overrides: Iterable[Override]) -> NodeReport:
    """Return a report with the overrides applied."""
    for override in overrides:
        try:
            report = read_override(report, override.fact, override.value)
        except InputError:
            continue  # the zone or GPU no longer exists
    return report


def read_override(report: NodeReport, fact: str, value: str) -> NodeReport:
    """Return a report with one fact overridden.

    Raises: InputError `FactUnknown`, `FactInvalid`.
    """
    kind, _, name = fact.partition(".")
    try:
        if fact == "isa":
            isa.parse(value, source="node-label")
            stated = _replace(report.isa, native=value, source=SOURCE, complete=True, arch="")
            return _replace(report, isa=stated)
        if kind == "allocatable" and name:
            return _replace(report, allocatable={**report.allocatable, name: parse_amount(name, value)})
        if kind == "offline-capacity":
            return _zone(report, name, parse_amount(CPU, value))
    except InputError as error:
        if error.code == "FactUnknown":
            raise
        raise InputError("FactInvalid", error.message, place="value") from None
    if kind == "card":
        return _card(report, name, value)
    raise InputError(
        "FactUnknown", Message("{text} cannot be overridden", text=repr(fact[:80])), place="fact",
        hint="Facts that can be overridden: isa, allocatable.<resource>, offline-capacity.<zone>, card.<index>",
    )  # fmt: skip


def _zone(report: NodeReport, name: str, millis: int) -> NodeReport:
    numa = report.numa
    if numa is None or all(zone.name != name for zone in numa.zones):
        raise InputError("FactUnknown", Message("the node has no zone {name}", name=repr(name[:80])), place="fact")
    zones = tuple(_replace(zone, offline_capacity_millis=millis) if zone.name == name else zone for zone in numa.zones)
    return _replace(report, numa=_replace(numa, zones=zones))


def _card(report: NodeReport, index: str, value: str) -> NodeReport:
    if all(str(card.index) != index for card in report.gpus or ()):
        raise InputError("FactUnknown", Message("the node has no GPU {card}", card=repr(index[:20])), place="fact")
    if value not in (*_HEALTH, MAINTENANCE):
        message = Message("the health of a GPU must be {text}", text=joined(" or ", _HEALTH))
        raise InputError("FactInvalid", message, place="value")
    cards = tuple(_with_health(card, value) if str(card.index) == index else card for card in report.gpus or ())
    return _replace(report, gpus=cards)


def _with_health(card: GpuCard, value: str) -> GpuCard:
    """Return a GPU with its health overridden. An unhealthy GPU stays unhealthy during and after maintenance."""
    if value == MAINTENANCE:
        return _replace(card, healthy=False, maintenance=card.healthy or card.maintenance)
    return _replace(card, healthy=_HEALTH[value], maintenance=False)
