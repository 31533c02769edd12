"""Merge of collected facts with those of a node's other sources.

Fresh facts of collectors take precedence over those of a node's agent and objects. If several collectors report a fact,
the first collector by name is used. An operator's override takes precedence over all sources. Samples of usage are not
merged: one sample is used. If the collector's sample is stale, a later sample from another source is used. If there is
no later sample, the collector's last sample is kept and marked as stale; the scheduler then uses requests instead, and
users see the mark. Stale facts of other kinds are not used and are listed as problems of the report.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched.adapters.collectors.facts import zone_of
from hetsched.contracts.objects.collected import CollectedFact, CollectedNode
from hetsched.contracts.objects.node_report import NodeReport, NumaReport, PowerReport, Usage
from hetsched.contracts.times import seconds
from hetsched.contracts.units import CPU, format_amount

STALE = "CollectedStale"
UNKNOWN_ZONE = "CollectedZoneUnknown"
_replace = msgspec.structs.replace


def with_collected(report: NodeReport, collected: Iterable[CollectedFact]) -> NodeReport:
    """Return a report merged with the collected facts of its node."""
    facts = sorted(collected, key=lambda fact: fact.collector, reverse=True)
    if not facts:
        return report
    problems: list[str] = []
    numa, power = report.numa, report.power
    for fact in facts:
        finding = fact.finding
        if fact.load or finding is None:
            continue
        if fact.stale:
            problems.append(f"{STALE}: the report of collector {fact.collector} from {finding.observed_at} has expired")
            continue
        numa = _zones(numa, fact.collector, finding.zones, problems)
        if finding.power is not None:
            before = power or PowerReport()
            watts = finding.power.headroom_watts
            power = PowerReport(finding.power.state or before.state, before.headroom_watts if watts is None else watts)
    return _replace(
        report,
        numa=numa,
        power=power,
        usage=usage_of(report.usage, facts),
        problems=(*report.problems, *problems),
    )


def measured_by(collected: Iterable[CollectedFact]) -> CollectedFact | None:
    """Return the collector fact whose fresh measurement is used, or None if there is none."""
    fresh = [fact for fact in collected if fact.load and fact.finding is not None and not fact.stale]
    return min(fresh, key=lambda fact: fact.collector, default=None)


def usage_of(other: Usage | None, collected: Iterable[CollectedFact]) -> Usage | None:
    """Return the usage sample to use: a collector's, or `other` from the node's other sources.

    A collector's stale sample is used only if `other` is absent, stale or older.
    """
    collected = list(collected)
    counting = measured_by(collected)
    if counting is not None and counting.finding is not None:
        return Usage(counting.finding.usage, counting.finding.observed_at, counting.collector)
    late = min((fact for fact in collected if fact.load), key=lambda fact: fact.collector, default=None)
    if late is None:
        return other
    finding = late.finding
    if other is not None and not other.stale and (finding is None or _at(other) > _at(finding)):
        return other
    if finding is None:
        return Usage({}, "", late.collector, stale=True)
    return Usage(finding.usage, finding.observed_at, late.collector, stale=True)


def _at(sample: Usage | CollectedNode) -> float:
    return seconds(sample.observed_at) or 0.0


def fact_texts(fact: CollectedFact) -> dict[str, str]:
    """Return short texts that describe a collector's facts about a node, except usage."""
    words: dict[str, str] = {}
    if fact.finding is None or fact.stale:
        return words
    for zone, millis in fact.finding.zones.items():
        words[f"offline-capacity.{zone}"] = format_amount(CPU, millis)
    power = fact.finding.power
    if power is not None and power.state is not None:
        words["power.state"] = power.state
    if power is not None and power.headroom_watts is not None:
        words["power.headroom"] = f"{power.headroom_watts} W"
    return words


def _zones(numa: NumaReport | None, collector: str, by_zone: dict[str, int], problems: list[str]) -> NumaReport | None:
    names = tuple(zone.name for zone in numa.zones) if numa is not None else ()
    found = {zone_of(text, names): millis for text, millis in by_zone.items()}
    unknown = sorted(text for text in by_zone if zone_of(text, names) is None)
    if unknown:
        problems.append(
            f"{UNKNOWN_ZONE}: collector {collector} reports zones that the node does not have: {', '.join(unknown[:4])}"
        )
    if numa is None or not found:
        return numa
    zones = tuple(
        _replace(zone, offline_capacity_millis=found[zone.name]) if zone.name in found else zone for zone in numa.zones
    )
    return _replace(numa, zones=zones)
