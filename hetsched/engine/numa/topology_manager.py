"""What a node's kubelet will say to a pod: the verdict of its topology manager, predicted.

Problem: a pod that the kubelet rejects after binding stays Failed, and its controller makes the next one: a loop of
schedule, reject, recreate. So the verdict is predicted before a node is chosen.
Rule: CPU manager and device manager each give hints, sets of zones that hold the request in what is free; a hint is
preferred when its set is as small as any that could hold the request if everything were free. Merging takes one hint
per resource and cuts the sets; the result is preferred when all its hints are, and are equal. Best: preferred first,
then fewest zones, then lowest ids; if none is preferred, the size nearest to the largest smallest hint.
    none, best-effort   admits whatever exists on the node
    restricted          admits if the best hint is preferred
    single-numa-node    admits if a preferred hint of one zone exists for every resource
Scope `container` asks for each container in turn, `pod` once for their sum (or an init container that needs more).
CPUs are then taken inside the hint: whole free zones while they fit, then the zones with the fewest left.
Source: kubernetes pkg/kubelet/cm/{topologymanager,cpumanager,devicemanager} (1.36).
Invariant: pure; equal arguments give equal verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations, product
from typing import NamedTuple

MOST_ZONES = 8
TOPOLOGY_AFFINITY_ERROR, UNEXPECTED_ADMISSION_ERROR = "TopologyAffinityError", "UnexpectedAdmissionError"

Counts = tuple[int, ...]
Hints = list[tuple[int, bool]]  # sets of zones as bits, and whether each is preferred


class Container(NamedTuple):
    """What one container asks of the kubelet: CPUs of its own (0: it shares) and cards."""

    cpus: int
    cards: int
    init: bool = False


class Machine(NamedTuple):
    """By zone: all CPUs and those free for exclusive use, all cards and the free ones."""

    cpus: Counts
    cpus_free: Counts
    cards: Counts
    cards_free: Counts


class Verdict(NamedTuple):
    """What the kubelet says: `reason` is its error, empty when it admits the pod.

    `cpus` and `cards` are taken by zone while the pod runs; `aligned` are the zones it is held to, none where nothing
    holds it.
    """

    reason: str
    cpus: Counts = ()
    aligned: Counts = ()
    cards: Counts = ()


@lru_cache(maxsize=65536)
def verdict(policy: str, pod_scope: bool, machine: Machine, containers: tuple[Container, ...]) -> Verdict:
    """Predict what the kubelet says to a pod with these containers, in start order.

    A kubelet on more than 8 zones runs with policy `none` only.
    """
    zones = len(machine.cpus)
    if zones > MOST_ZONES:
        policy = "none"
    cpus, cards = _Pool(machine.cpus, machine.cpus_free), _Pool(machine.cards, machine.cards_free)
    running, running_cards = [0] * zones, [0] * zones
    aligned = 0
    whole_pod = Container(_peak((c.cpus, c.init) for c in containers), _peak((c.cards, c.init) for c in containers))
    for number, container in enumerate(containers):
        if not pod_scope or not number:
            asked = whole_pod if pod_scope else container
            hint = _best_hint(policy, [cards.hints(asked.cards), cpus.hints(asked.cpus)], zones)
        if hint is None:
            return Verdict(TOPOLOGY_AFFINITY_ERROR)
        taken = cpus.take(container.cpus, hint, container.init)
        taken_cards = cards.take(container.cards, hint, container.init)
        if taken is None or taken_cards is None:
            return Verdict(UNEXPECTED_ADMISSION_ERROR)
        if not container.init:
            running = [a + b for a, b in zip(running, taken, strict=True)]
            running_cards = [a + b for a, b in zip(running_cards, taken_cards, strict=True)]
            aligned |= hint
    held_to = () if aligned == (1 << zones) - 1 else tuple(zone for zone in range(zones) if aligned >> zone & 1)
    return Verdict("", tuple(running), held_to, tuple(running_cards))


def _peak(amounts: Iterable[tuple[int, bool]]) -> int:
    """Return the most that is held at once: init containers run one by one beside what was started before them."""
    running = peak = 0
    for amount, init in amounts:
        peak = max(peak, running + amount)
        running += 0 if init else amount
    return peak


class _Pool:
    """One resource of a machine during the admission of one pod; `reusable` was left by its init containers."""

    def __init__(self, total: Counts, free: Counts) -> None:
        self.total = total
        self.free = list(free)
        self.reusable = [0] * len(total)
        self.known = any(total)

    def hints(self, asked: int) -> Hints | None:
        """Return all sets of zones that could serve the request; None is no opinion, an empty list means no way."""
        if not asked or not self.known:
            return None
        zones = len(self.total)
        least = zones
        found: list[tuple[int, int]] = []
        for mask, members in _masks(zones):
            if len(members) < least and sum(self.total[zone] for zone in members) >= asked:
                least = len(members)
            if any(self.reusable[zone] and not mask >> zone & 1 for zone in range(zones)):
                continue
            if sum(self.free[zone] + self.reusable[zone] for zone in members) >= asked:
                found.append((mask, len(members)))
        return [(mask, size == least) for mask, size in found]

    def take(self, asked: int, hint: int, init: bool) -> list[int] | None:
        """Take from the zones of the hint, the rest from the others; None if there is not enough at all."""
        zones = range(len(self.total))
        taken = [0 for _ in zones]
        if not self.known:
            return taken
        left = asked
        for inside in (True, False):
            free = {z: self.free[z] + self.reusable[z] for z in zones if (hint >> z & 1) == inside}
            for zone in sorted(free, key=lambda z: (free[z], z)):
                if self.free[zone] == self.total[zone] and 0 < free[zone] <= left:
                    taken[zone] = free.pop(zone)
                    left -= taken[zone]
            for zone in sorted(free, key=lambda z: (free[z], z)):
                taken[zone] = min(free[zone], left)
                left -= taken[zone]
        if left:
            return None
        for zone in zones:
            reused = min(self.reusable[zone], taken[zone])
            self.free[zone] -= taken[zone] - reused
            self.reusable[zone] = max(self.reusable[zone], taken[zone]) if init else self.reusable[zone] - reused
        return taken


@cache
def _masks(zones: int) -> tuple[tuple[int, Counts], ...]:
    """Return all sets of zones, smaller ones first, in the kubelet's order."""
    sets = (members for size in range(1, zones + 1) for members in combinations(range(zones), size))
    return tuple((sum(1 << zone for zone in members), members) for members in sets)


def _best_hint(policy: str, resources: Sequence[Hints | None], zones: int) -> int | None:
    """Return the zones that the pod is held to as bits, all of them for no bound; None: the policy rejects it."""
    stated = [hints for hints in resources if hints is not None]
    if policy not in ("best-effort", "restricted", "single-numa-node") or not stated:
        return (1 << zones) - 1
    # A merged hint is preferred only where all resources prefer the very same set.
    agreed = set.intersection(*({mask for mask, preferred in hints if preferred} for hints in stated))
    if policy == "single-numa-node":
        agreed = {mask for mask in agreed if mask.bit_count() == 1}
    if agreed:
        return min(agreed, key=_narrowness)
    return _least_bad(stated, zones) if policy == "best-effort" else None


def _narrowness(mask: int) -> tuple[int, int]:
    return mask.bit_count(), mask


def _least_bad(stated: Sequence[Hints], zones: int) -> int:
    """Return the merged set that best-effort falls back to when none is preferred."""
    target = max(min((mask.bit_count() for mask, _ in hints), default=0) for hints in stated)
    best = 0
    for merged in _merged(stated, zones):
        if merged and (not best or _better(merged, best, target)):
            best = merged
    return best or (1 << zones) - 1


def _merged(stated: Sequence[Hints], zones: int) -> Iterator[int]:
    for hints in product(*(hints or [((1 << zones) - 1, False)] for hints in stated)):
        merged = (1 << zones) - 1
        for mask, _ in hints:
            merged &= mask
        yield merged


def _better(candidate: int, best: int, target: int) -> bool:
    """Compare as `HintMerger.compare` does where both are not preferred."""
    narrower = candidate != best and _narrowness(candidate) < _narrowness(best)
    new, old = candidate.bit_count(), best.bit_count()
    if old > target:
        return narrower
    if old == target:
        return new == target and narrower
    if new > target:
        return False
    return new == target or new > old or (new == old and narrower)
