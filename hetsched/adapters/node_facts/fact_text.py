"""Short texts that describe the facts of a node report, for pages and quarantine entries."""

from __future__ import annotations

from hetsched.contracts.objects.node_report import GpuCard, NodeReport, NumaZone


def fact_texts(report: NodeReport) -> dict[str, str]:
    """Return short texts that describe the facts of a report; absent facts are omitted."""
    words: dict[str, str] = {}
    if report.isa.native:
        words["isa"] = report.isa.native if report.isa.complete else f"at least {report.isa.native}"
    for name, offers in (("isa.emulated", report.isa.emulated), ("isa.cross", report.isa.cross)):
        if offers:
            words[name] = ", ".join(sorted(offers))
    if report.gpus is not None:
        words["gpu"] = "; ".join(card_words(card) for card in report.gpus) or "none"
    if report.numa is not None:
        if report.numa.zones:
            words["numa"] = "; ".join(_zone_words(zone) for zone in sorted(report.numa.zones, key=lambda z: z.name))
        numa = report.numa
        for name, text in (("cpu-manager", numa.cpu_manager_policy), ("topology-manager", numa.topology_manager_policy),
                           ("reserved-cpus", numa.reserved_cpus)):  # fmt: skip
            if text:
                words[f"kubelet.{name}"] = text
    return words


def card_words(card: GpuCard) -> str:
    """Return the identity, model and health of a GPU as text."""
    health = "" if card.healthy else " unhealthy"
    return f"{card.uuid or f'card {card.index}'} {card.model or 'unknown'}{health}"


def _zone_words(zone: NumaZone) -> str:
    return f"{zone.name} {zone.cpus if zone.cpus is not None else 'counted'}"


def card_amounts(card: GpuCard) -> str:
    """Return the model and amounts of a GPU as text."""
    stated = ((card.model, ""), (card.memory_mib, " MiB"), (card.cores, " cores"), (card.fp32_tflops, " TFLOPS"),
              (card.bandwidth_gbs, " GB/s"), (card.clock_mhz, " MHz"))  # fmt: skip
    return ", ".join(f"{value}{unit}" for value, unit in stated if value is not None) or "unknown"


def card_name(card: GpuCard) -> str:
    """Return the name that identifies a GPU in quarantine entries."""
    return card.uuid or f"card {card.index}"
