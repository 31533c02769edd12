"""Text form of a machine's report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from hetsched.contracts.messages.agent_report import AgentReport, MachineCard, MachineIsa, MachineZone

_WIDTH = 12
Item = TypeVar("Item")


def lines_of(report: AgentReport) -> Iterator[str]:
    """Yield the lines; unknown facts are marked as such."""
    yield _row("node", report.node or "unknown")
    yield _row("memory", _mib(report.memory_mib))
    yield from _isa_lines(report.isa)
    yield _row("CPUs", "unknown" if report.cpus is None else f"{sum(cpu.online for cpu in report.cpus)} online")
    yield from _listed("zone", report.zones, _zone)
    yield from _listed("card", report.gpus, _card)
    if kubelet := report.kubelet:
        policy, topology = kubelet.cpu_manager_policy or "unknown", kubelet.topology_manager_policy or "unknown"
        yield _row("kubelet", f"CPU manager {policy}, topology manager {topology}")
    if usage := report.usage:
        yield _row("use", ", ".join(f"{name} {amount}" for name, amount in sorted(usage.amounts.items())))
    for problem in report.problems:
        yield _row("problem", f"[{problem.code}] {problem.message}")


def _isa_lines(isa: MachineIsa) -> Iterator[str]:
    yield _row("ISA", _brief(isa.canonical) if isa.canonical else f"unknown ({isa.family or 'unknown'} machine)")
    for source in isa.sources:
        bound = "" if source.bound == "exact" else ", at least"
        yield _row("  by", f"{source.source}{bound}" + (f": but {source.conflict}" if source.conflict else ""))
    for emulated in isa.emulated:
        cost = f"{emulated.slowdown} times slower in a small loop" if emulated.slowdown else "unknown slowdown"
        yield _row(
            "  emulated", f"{_brief(emulated.isa)} by {emulated.by} {emulated.version or '(unknown version)'}, {cost}"
        )
    for cross in isa.cross:
        yield _row("  compiles for", cross)


def _listed(name: str, items: tuple[Item, ...] | None, format_item: Callable[[Item], str]) -> Iterator[str]:
    if not items:
        yield _row(f"{name}s", "unknown" if items is None else "none")
    for item in items or ():
        yield _row(name, format_item(item))


def _zone(zone: MachineZone) -> str:
    return f"{zone.id}: CPUs {zone.cpus or 'none'}, {_mib(zone.memory_mib)}"


def _card(card: MachineCard) -> str:
    health = {True: "healthy", False: "not healthy", None: "health unknown"}[card.healthy]
    zone = "unknown" if card.zone is None else str(card.zone)
    return f"{card.index}: {card.model or 'unknown model'}, {_mib(card.memory_mib)}, zone {zone}, {health}"


def _brief(canonical: str) -> str:
    level, *features = canonical.split("+")
    return f"{level} with {len(features)} further features" if features else level


def _mib(amount: int | None) -> str:
    return "unknown" if amount is None else f"{amount} MiB"


def _row(name: str, value: str) -> str:
    return f"{name:<{_WIDTH}}  {value}"
