"""NUMA placement on one small machine by brute force: every set of CPUs, of GPUs, and every pair of hints.

It implements the rules with sets and loops, and shares no code with the engine except the contracts. Machines have at
most 2 zones, with at most 8 CPUs and 2 GPUs each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

Cores = list[list[int]]


@dataclass
class Zone:
    """A NUMA zone. `cpus` is None if only amounts are known; amounts are in millicores; `cores` lists the threads of
    each core.
    """

    name: str
    cpus: list[int] | None
    cores: Cores
    capacity: int
    allocatable: int
    offline: int | None
    cards: list[int] = field(default_factory=list)


@dataclass
class Machine:
    zones: list[Zone]
    reserved: set[int]
    kubelet_pins: bool
    policy: str
    pod_scope: bool
    label: bool | None

    @property
    def cards(self) -> list[int]:
        return sorted(card for zone in self.zones for card in zone.cards)


@dataclass
class Wish:
    """A request; `containers` has (whole CPUs, GPUs) per container, and `millis` is the pod's total CPU request."""

    containers: list[tuple[int, int]]
    millis: int
    aware: bool | None = None
    policy: str | None = None
    guaranteed: bool = True
    profile: str = ""
    cards: int = 0

    @property
    def whole(self) -> int:
        return sum(cpus for cpus, _ in self.containers)


@dataclass
class Held:
    """The allocation of one pod: millicores by zone, exclusive or fixed CPUs, number of CPUs with unknown IDs, and
    GPUs.
    """

    millis: dict[str, int]
    ids: set[int]
    unnamed: dict[str, int]
    cards: set[int]
    profile: str


class Truth:
    """A machine and its allocations; `local` requires the GPUs of a single-zone pod to be in that zone."""

    def __init__(self, machine: Machine, *, local: bool = False) -> None:
        self.machine = machine
        self.local = local
        self.held: dict[str, Held] = {}

    # -- free capacity ---------------------------------------------------------------------------------------------

    def free_millis(self, zone: Zone) -> int:
        most = zone.allocatable if zone.offline is None else min(zone.allocatable, zone.offline)
        return most - sum(held.millis.get(zone.name, 0) for held in self.held.values())

    def whole_millis(self, zone: Zone) -> int:
        """Return the free CPU, with the zone's allocatable CPU rounded down to whole CPUs."""
        most = zone.allocatable if zone.offline is None else min(zone.allocatable, zone.offline)
        return self.free_millis(zone) - most % 1000

    def taken_ids(self) -> set[int]:
        return {cpu for held in self.held.values() for cpu in held.ids}

    def free_ids(self, zone: Zone) -> set[int]:
        return set(zone.cpus or ()) - self.machine.reserved - self.taken_ids()

    def pins_left(self, zone: Zone) -> int:
        """Return how many CPUs of a zone can still be pinned."""
        unnamed = sum(held.unnamed.get(zone.name, 0) for held in self.held.values())
        if zone.cpus is None:
            return zone.allocatable // 1000 - unnamed
        return len(self.free_ids(zone)) - unnamed

    def free_cards(self) -> set[int]:
        return set(self.machine.cards) - {card for held in self.held.values() for card in held.cards}

    # -- placement modes ------------------------------------------------------------------------------------------

    def treatment(self, wish: Wish) -> str:
        """Return how the machine treats a pod: it is `left` without zones, placed in `one` zone, or `across` zones."""
        if self.machine.kubelet_pins:
            return "left"
        stated = wish.aware is not None or wish.policy is not None
        by_node = self.machine.label
        if by_node is None:
            by_node = self.machine.policy == "single-numa-node"
        aware = by_node if wish.aware is None else wish.aware
        if not wish.whole:
            return "one" if wish.aware and wish.millis else "left"
        if wish.policy in (None, "none"):
            if wish.aware is None and wish.policy == "none":
                return "left"
            if not stated:
                return "one" if aware else "left"
            return "one" if aware else "left"
        return "one" if aware else "across"

    def pinned(self, wish: Wish) -> bool:
        return wish.whole > 0 and wish.policy in ("exclusive", "immovable")

    # -- feasibility -------------------------------------------------------------------------------------------------

    def feasible(self, wish: Wish) -> bool:
        if len(self.free_cards()) < wish.cards or not self.admitted(wish):
            return False
        treatment = self.treatment(wish)
        if treatment == "left":
            return True
        if treatment == "one":
            return bool(self.roomy(wish))
        return next(self.splits(wish), None) is not None

    def roomy(self, wish: Wish) -> list[Zone]:
        """Return the zones that have capacity for the whole pod."""
        found = [zone for zone in self.machine.zones if self._holds(zone, wish)]
        near = self.zones_with_cards(wish)
        return [zone for zone in found if zone.name in near] if self.local and wish.cards else found

    def _holds(self, zone: Zone, wish: Wish) -> bool:
        asked = 1000 * wish.whole or wish.millis
        if self.free_millis(zone) < asked:
            return False
        if not self.pinned(wish):
            return True
        if self.pins_left(zone) < wish.whole:
            return False
        return zone.cpus is None or any(True for _ in combinations(sorted(self.free_ids(zone)), wish.whole))

    def splits(self, wish: Wish) -> Iterator[dict[str, int]]:
        """Yield every way to distribute the whole CPUs of a pod over the zones."""
        zones = self.machine.zones
        for counts in product(range(wish.whole + 1), repeat=len(zones)):
            if sum(counts) == wish.whole and all(self._gives(z, n, wish) for z, n in zip(zones, counts, strict=True)):
                yield {zone.name: count for zone, count in zip(zones, counts, strict=True) if count}

    def _gives(self, zone: Zone, count: int, wish: Wish) -> bool:
        if not count:
            return True
        return self.whole_millis(zone) >= 1000 * count and (not self.pinned(wish) or self.pins_left(zone) >= count)

    # -- the kubelet -------------------------------------------------------------------------------------------------

    def admitted(self, wish: Wish) -> bool:
        """Return the result of merging every pair of hints, as the kubelet's documentation describes."""
        policy, pins = self.machine.policy, self.machine.kubelet_pins and wish.guaranteed
        asks = [(cpus if pins else 0, cards) for cpus, cards in wish.containers]
        if not any(cpus or cards for cpus, cards in asks):
            return True
        zones = range(len(self.machine.zones))
        total = [len(z.cpus) if z.cpus is not None else z.capacity // 1000 for z in self.machine.zones]
        free = [max(self.pins_left(zone), 0) for zone in self.machine.zones]
        cards = [len(zone.cards) for zone in self.machine.zones]
        cards_free = [len(set(zone.cards) & self.free_cards()) for zone in self.machine.zones]
        together = [(sum(c for c, _ in asks), sum(g for _, g in asks))] if self.machine.pod_scope else asks
        for asked_cpus, asked_cards in together:
            resources = [(asked_cards, cards, cards_free), (asked_cpus, total, free)]
            spot = self._best(policy, resources, list(zones))
            if spot is None or not _take(free, asked_cpus, spot, total):
                return False
            if any(cards) and not _take(cards_free, asked_cards, spot, cards):
                return False
        return True

    @staticmethod
    def _best(policy: str, resources: list[tuple[int, list[int], list[int]]], zones: list[int]) -> set[int] | None:
        everything = set(zones)
        if policy not in ("restricted", "single-numa-node", "best-effort"):
            return everything
        sets = [set(some) for size in range(1, len(zones) + 1) for some in combinations(zones, size)]
        per_resource: list[list[tuple[set[int] | None, bool]]] = []
        for asked, total, free in resources:
            if not asked or not any(total):
                per_resource.append([(None, True)])
                continue
            least = min((len(s) for s in sets if sum(total[z] for z in s) >= asked), default=len(zones))
            hints: list[tuple[set[int] | None, bool]] = [
                (s, len(s) == least) for s in sets if sum(free[z] for z in s) >= asked
            ]
            per_resource.append(hints or [(None, False)])
        merged: list[tuple[bool, int, list[int]]] = []
        for pair in product(*per_resource):
            stated = [s for s, _ in pair if s is not None]
            both = everything.intersection(*stated)
            preferred = all(p for _, p in pair) and all(s == stated[0] for s in stated)
            if policy == "single-numa-node":
                preferred = preferred and all(len(s) == 1 for s in stated)
            if both:
                merged.append((not preferred, len(both), sorted(both)))
        merged.sort()
        if merged and not merged[0][0]:
            return set(merged[0][2])
        return everything if policy == "best-effort" else None

    # -- selection of zones and CPUs ------------------------------------------------------------------------------

    def preferred_zone(self, wish: Wish, near: Iterable[str]) -> str:
        """Return the zone with the most free CPU for the whole pod, only among zones near the GPUs if there are any."""
        roomy = self.roomy(wish)
        roomy = [zone for zone in roomy if zone.name in set(near)] or roomy
        return min(roomy, key=lambda zone: (-self.free_millis(zone), zone.name)).name

    def zones_with_cards(self, wish: Wish) -> list[str]:
        return [z.name for z in self.machine.zones if len(set(z.cards) & self.free_cards()) >= wish.cards]

    def cost(self, zone: Zone, chosen: Iterable[int], order: str, profile: str) -> tuple[Any, ...]:
        """Return the cost of a set of CPUs; the rule under test selects the set with the lowest cost."""
        picked, free = set(chosen), self.free_ids(zone)
        if order == "pack" and not hours(profile):
            whole = [core for core in zone.cores if set(core) <= free]
            taken = [core for core in whole if set(core) <= picked]
            rest = [core for core in zone.cores if core not in taken and set(core) & picked]
            cut = sorted((len(set(core) & free), core[0], -len(set(core) & picked)) for core in rest)
            return -len(taken), [core[0] for core in taken], cut, sorted(picked)
        rounds = []
        for turn in range(1, 9):
            giving = [core for core in zone.cores if len(set(core) & picked) >= turn]
            rounds.append((-len(giving), sorted((self.contention(core, free, profile), core[0]) for core in giving)))
        return tuple(rounds), sorted(picked)

    def contention(self, core: list[int], free: set[int], profile: str) -> tuple[int, int]:
        """Return the worst neighbour on a core for an application, and the number of such neighbours."""
        own = hours(profile)
        others: list[set[int] | None] = []
        for cpu in core:
            holders = [held.profile for held in self.held.values() if cpu in held.ids]
            if cpu not in free:
                others += [hours(text) for text in holders] or [None]
        worst = 0
        for other in others if own else ():
            if other is None:
                worst = max(worst, 2)
            else:
                meeting = len((own or set()) & other)
                worst = max(worst, 2 + meeting if meeting else 1)
        return worst, len(others)

    def best_cpus(self, zone: Zone, count: int, order: str, profile: str) -> list[int]:
        every = combinations(sorted(self.free_ids(zone)), count)
        return sorted(min(every, key=lambda chosen: self.cost(zone, chosen, order, profile)))


def hours(profile: str) -> set[int] | None:
    if profile in ("busy", "idle"):
        return set(range(24)) if profile == "busy" else set()
    if not profile:
        return None
    first, last = map(int, profile.removeprefix("peaks=").split("-"))
    found = {first}
    while (first + 1) % 24 != last:
        first = (first + 1) % 24
        found.add(first)
    return found


def _take(free: list[int], asked: int, spot: set[int], total: list[int]) -> bool:
    """Take CPUs from the zones in `spot` first, then from the others: completely free zones that fit, then the zones
    with the fewest free CPUs.
    """
    for inside in (True, False):
        zones = [zone for zone in range(len(free)) if (zone in spot) == inside]
        by_left = sorted(zones, key=lambda zone: (free[zone], zone))
        for zone in by_left:
            if 0 < free[zone] == total[zone] <= asked:
                asked -= free[zone]
                free[zone] = 0
        for zone in by_left:
            got = min(free[zone], asked)
            asked -= got
            free[zone] -= got
    return asked == 0
