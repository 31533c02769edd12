"""Acceptance of reported node facts by comparison with the facts accepted before.

A faulty or malicious node must neither attract pods nor lose them. `accept` compares the merged report of all sources
with the known facts, that is, those accepted before:
    missing GPUs and CPUs  are kept but get no new pods: GPUs become unhealthy, CPUs are listed in `lost_cpus`; for
                           memory the lower amount is used
    increased amounts      are accepted up to `growth` times the amount that was reported first or approved last; beyond
                           that, the known amount is used
    new GPUs               that the node itself reports in addition to the known ones are not accepted
    changed GPU            (a known uuid with another model or increased amounts) the known facts are used
    recreated node         (another uid) is accepted as reported, except that missing parts of the old node are kept
A GPU is identified by its uuid and keeps the index under which it was accepted, because the reported indexes of other
GPUs shift when a GPU falls off the bus. If an operator approves a change, the reported facts become the known facts. If
an operator rejects a loss, the known facts stay in use.
Source: reliability rules F23, F24, T13, I5.
Invariant: the result contains every GPU and CPU that was accepted before, marked as usable or missing, unless an
operator approved its removal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.objects.cards import MAX_CARDS, facts_of, model_tokens
from hetsched.contracts.objects.facts import FactInQuarantine, fact_id
from hetsched.contracts.objects.node_report import CardLink, GpuCard, NodeReport, NumaReport, NumaZone
from hetsched.contracts.units import CPU, MEMORY, format_amount

from .fact_text import card_amounts, card_name, card_words

# Relative difference up to which a memory size counts as unchanged, because a kernel update slightly changes the
# reported size.
MEMORY_TOLERANCE = 0.02
# Amounts that a GPU offers, and fields that depend on its model.
_AMOUNTS = ("memory_mib", "cores", "fp32_tflops", "bandwidth_gbs", "clock_mhz")
_OF_THE_MODEL = ("model", "vendor", *_AMOUNTS)
_replace = msgspec.structs.replace


class AcceptedFacts(msgspec.Struct, frozen=True):
    """Result of a comparison: facts for scheduling, known facts (including missing parts), and facts in quarantine."""

    report: NodeReport
    known: NodeReport
    quarantined: tuple[FactInQuarantine, ...]


class _Comparison:
    """State of one comparison; it collects the quarantine entries."""

    def __init__(self, rejected: Collection[str], approved: Collection[str], growth: float, source: str, now: str):
        self.rejected = rejected
        self.approved = approved
        self.growth = growth
        self.source = source
        self.now = now
        self.found: dict[str, FactInQuarantine] = {}

    @property
    def is_first(self) -> bool:
        return self.growth == float("inf")

    def review(self, fact: str, item: str, change: str, known: str, reported: str) -> str:
        """Return `approved`, `rejected` or `open`; a change that is not approved is put in quarantine."""
        key = fact_id(fact, item, reported)
        if key in self.approved:
            return "approved"
        state = "rejected" if key in self.rejected else "open"
        self.found[key] = FactInQuarantine(key, fact, item, change, known, reported, self.source, self.now, state)
        return state


def accept(
    known: NodeReport,
    candidate: NodeReport,
    *,
    growth: float,
    now: str,
    source: str = "agent",
    quarantined: Iterable[FactInQuarantine] = (),
    approved: Collection[str] = (),
    first: bool = False,
    trusted_cards: bool = False,
    stated: Mapping[str, int] | None = None,
) -> AcceptedFacts:
    """Compare a report with the known facts. If `first` is true, there was no report before and any amount is accepted.

    `trusted_cards` means that the list of GPUs does not come from the node itself, so new GPUs are accepted. `stated`
    contains amounts that the node's agent reports. They are compared even if the API server's values are in use,
    because discovery may later publish them to the cluster.
    """
    previous = {fact.id: fact for fact in quarantined}
    rejected = [key for key, fact in previous.items() if fact.state == "rejected"]
    recreated = known.uid != candidate.uid and bool(known.uid)
    scales = _Comparison(rejected, approved, float("inf") if first or recreated else growth, source, now)
    counted_cards, known_cards = _accept_cards(scales, known, candidate, recreated=recreated, trusted=trusted_cards)
    counted_numa, known_numa = _accept_zones(scales, known.numa, candidate.numa)
    counted_amounts, known_amounts = _accept_amounts(scales, known, candidate, stated or {})
    found = tuple(
        _replace(fact, since=previous[key].since) if key in previous else fact for key, fact in scales.found.items()
    )
    return AcceptedFacts(
        _replace(candidate, gpus=counted_cards, numa=counted_numa, allocatable=counted_amounts),
        _replace(candidate, gpus=known_cards, numa=known_numa, allocatable=known_amounts),
        found,
    )


Cards = tuple[GpuCard, ...] | None


def _accept_cards(
    scales: _Comparison, known: NodeReport, candidate: NodeReport, *, recreated: bool, trusted: bool
) -> tuple[Cards, Cards]:
    before = {card.index: card for card in known.gpus or ()}
    reported = candidate.gpus or ()
    same = _same(reported, before, recreated=recreated)
    unlimited = trusted or scales.is_first or known.gpus is None
    counted, cards = [], []
    for card, place in zip(_in_place(reported, same, before), reported, strict=True):
        if card is None:
            continue
        if unlimited:
            counts = measure = card
        elif place.index in same:
            counts, measure = _accept_card(scales, before[card.index], card)
        elif scales.review("gpu", card_name(card), "grown", "not there", card_words(card)) == "approved":
            counts = measure = card
        else:
            continue
        counted.append(counts)
        cards.append(measure)
    taken = {card.index for card in counted}
    for index in sorted(before.keys() - set(same.values()) - taken):
        card = before[index]
        decision = scales.review("gpu", card_name(card), "shrunk", card_words(card), _removal_reason(card, candidate))
        if decision != "approved":
            counted.append(card if decision == "rejected" else _replace(card, healthy=False))
            cards.append(card)
    if candidate.gpus is None and not before:
        return None, None
    return tuple(sorted(counted, key=_index)), tuple(sorted(cards, key=_index))


def _accept_card(scales: _Comparison, known: GpuCard, card: GpuCard) -> tuple[GpuCard, GpuCard]:
    """Return the accepted facts of a known GPU, and the baseline for later reports: the first or approved facts."""
    first = {name: value for name in _OF_THE_MODEL if (value := getattr(known, name))}
    measure = _replace(card, **first)
    amounts = {name: first[name] for name in _AMOUNTS if name in first and getattr(card, name) is not None}
    other = bool(known.model and card.model) and not _is_same_model(known.model or "", card.model or "")
    if not other and all(getattr(card, name) <= scales.growth * amount for name, amount in amounts.items()):
        return card, measure
    if scales.review("gpu", card_name(card), "grown", card_amounts(known), card_amounts(card)) == "approved":
        return card, card
    return _replace(measure, **{name: min(getattr(card, name), amount) for name, amount in amounts.items()}), measure


def _is_same_model(one: str, other: str) -> bool:
    """Return whether two names certainly denote the same model.

    A less specific name, such as a prefix, is not sufficient because it may denote a different model.
    """
    facts = facts_of(one)
    return model_tokens(one) == model_tokens(other) or (facts is not None and facts is facts_of(other))


def _index(card: GpuCard) -> int:
    return card.index


def _removal_reason(card: GpuCard, candidate: NodeReport) -> str:
    if candidate.gpus is None:
        return "GPUs are no longer reported"
    split = f"CardSplit: card {card.index} "
    return next((text for text in candidate.problems if text.startswith(split)), "missing")


def _same(reported: tuple[GpuCard, ...], before: dict[int, GpuCard], *, recreated: bool) -> dict[int, int]:
    """Map the index of each reported GPU to the index of the known GPU that it is, by uuid or else by index.

    A match by index requires that one of the two GPUs has no uuid, or that the node was recreated.
    """
    by_uuid = {card.uuid: card.index for card in before.values() if card.uuid and not recreated}
    found = {card.index: by_uuid[card.uuid] for card in reported if card.uuid in by_uuid}
    for card in reported:
        known = before.get(card.index)
        if card.index in found or known is None or known.index in found.values():
            continue
        if recreated or not (card.uuid and known.uuid):
            found[card.index] = known.index
    return found


def _in_place(reported: tuple[GpuCard, ...], same: dict[int, int], before: dict[int, GpuCard]) -> list[GpuCard | None]:
    """Return the reported GPUs with known GPUs under their known index, and new GPUs under an unused index."""
    moved, used = dict(same), set(before)
    for card in reported:
        if card.index not in moved:
            free = (index for index in (card.index, *range(MAX_CARDS)) if index not in used)
            index = next(free, None)
            if index is not None:
                moved[card.index] = index
                used.add(index)
    return [
        _replace(
            card,
            index=moved[card.index],
            links=tuple(CardLink(moved[ln.to], ln.kind, ln.bandwidth_gbs) for ln in card.links if ln.to in moved),
        )
        if card.index in moved
        else None
        for card in reported
    ]


def _accept_zones(
    scales: _Comparison, known: NumaReport | None, reported: NumaReport | None
) -> tuple[NumaReport | None, NumaReport | None]:
    before = _named(known)
    if not before:
        return reported, reported
    now = _named(reported)
    counted = reported if reported is not None else NumaReport()
    kept_zones = {zone.name: zone for zone in counted.zones}
    assert known is not None
    if len(now) > scales.growth * len(before):
        text = f"{len(now)} CPUs: {format_cpuset(now)}"
        if scales.review("numa", "CPUs", "grown", f"{len(before)} CPUs", text) != "approved":
            old = tuple(_only(zone, now) for zone in known.zones)
            counted = _replace(counted, zones=old)
            kept_zones = {zone.name: zone for zone in known.zones}
    lost = before - now
    if lost:
        decision = scales.review("numa", "CPUs", "shrunk", format_cpuset(before), f"without {format_cpuset(lost)}")
        if decision == "rejected":
            counted = _replace(counted, zones=_with(counted.zones, known.zones, lost))
        elif decision == "open":
            counted = _replace(counted, lost_cpus=format_cpuset(lost))
        if decision != "approved":
            kept_zones = {zone.name: zone for zone in _with(tuple(kept_zones.values()), known.zones, lost)}
    memory_before, memory_now = _memory(known.zones), _memory(reported.zones if reported else ())
    if memory_now and memory_before > memory_now * (1 + MEMORY_TOLERANCE):
        words = format_amount(MEMORY, memory_before), format_amount(MEMORY, memory_now)
        decision = scales.review("numa", "memory", "shrunk", *words)
        if decision == "rejected":
            counted = _replace(counted, zones=_remembering(counted.zones, known.zones))
        if decision != "approved":
            kept_zones = {zone.name: zone for zone in _remembering(tuple(kept_zones.values()), known.zones)}
    elif memory_before and memory_now > scales.growth * memory_before:
        words = format_amount(MEMORY, memory_before), format_amount(MEMORY, memory_now)
        if scales.review("numa", "memory", "grown", *words) != "approved":
            counted = _replace(counted, zones=_remembering(counted.zones, known.zones))
            kept_zones = {zone.name: zone for zone in _remembering(tuple(kept_zones.values()), known.zones)}
    return counted, _replace(counted, zones=tuple(kept_zones.values()), lost_cpus=None)


def _named(numa: NumaReport | None) -> frozenset[int]:
    zones = numa.zones if numa is not None else ()
    return frozenset().union(*(parse_cpuset(zone.cpus or "") for zone in zones))


def _only(zone: NumaZone, cpus: frozenset[int]) -> NumaZone:
    if zone.cpus is None:
        return zone
    return _replace(zone, cpus=format_cpuset(parse_cpuset(zone.cpus) & cpus))


def _with(zones: tuple[NumaZone, ...], known: tuple[NumaZone, ...], lost: frozenset[int]) -> tuple[NumaZone, ...]:
    """Return the reported zones with their lost CPUs added back, and the zones with lost CPUs that are not reported."""
    found = {zone.name: zone for zone in zones}
    for zone in known:
        own = parse_cpuset(zone.cpus or "") & lost
        if own and zone.name in found:
            there = parse_cpuset(found[zone.name].cpus or "")
            found[zone.name] = _replace(
                found[zone.name],
                cpus=format_cpuset(there | own),
                siblings=zone.siblings,
                capacity={**found[zone.name].capacity, **_of(zone.capacity, CPU)},
                allocatable={**found[zone.name].allocatable, **_of(zone.allocatable, CPU)},
            )
        elif own:
            found[zone.name] = zone
    return tuple(found.values())


def _of(amounts: dict[str, int], *names: str) -> dict[str, int]:
    return {name: amounts[name] for name in names if name in amounts}


def _memory(zones: tuple[NumaZone, ...]) -> int:
    return sum(zone.capacity.get(MEMORY, zone.allocatable.get(MEMORY, 0)) for zone in zones)


def _remembering(zones: tuple[NumaZone, ...], known: tuple[NumaZone, ...]) -> tuple[NumaZone, ...]:
    """Return the reported zones, with their amounts of memory replaced by those of the known zones of the same name."""
    before = {zone.name: zone for zone in known}
    return tuple(
        _replace(
            zone,
            capacity={**zone.capacity, **_of(before[zone.name].capacity, MEMORY)},
            allocatable={**zone.allocatable, **_of(before[zone.name].allocatable, MEMORY)},
        )
        if zone.name in before
        else zone
        for zone in zones
    )


def _accept_amounts(
    scales: _Comparison, known: NodeReport, candidate: NodeReport, stated: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the amounts to use, and the baseline for later reports: at most the approved amounts.

    If each report were compared with the previous one, a node could increase an amount without limit: in small steps,
    or by omitting the amount in one report.
    """
    counted = dict(candidate.allocatable)
    measure = {} if scales.is_first else dict(known.allocatable)
    for resource, present in candidate.allocatable.items():
        before, amount = known.allocatable.get(resource, 0), max(present, stated.get(resource, 0))
        if before and amount > scales.growth * before:
            words = format_amount(resource, before), format_amount(resource, amount)
            if scales.review("allocatable", resource, "grown", *words) != "approved":
                counted[resource] = min(present, before)
                continue
        elif before and not scales.is_first:
            continue
        measure[resource] = amount
    return counted, measure
