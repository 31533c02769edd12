"""CPU selection of the static CPU manager: the kubelet's `takeByTopology`, over sets of bits (see `cpu_topology`).

When packed (the default), the accumulator takes parts of the available CPUs in this order. It skips a part with more
CPUs than are still needed:
    whole free sockets, then whole free NUMA nodes (nodes first if there are not more nodes than sockets),
    with `prefer-align-cpus-by-uncorecache` whole last-level cache groups, then one group with the remaining CPUs,
    whole free cores, then single threads.
The parts of a level are sorted by number of available CPUs, then by id, within the order of the levels above.
When distributed (`distribute-cpus-across-numa`), the request is divided into equal parts, in multiples of a group (1
CPU, or the threads of a core under `full-pcpus-only`), over the smallest possible number of NUMA nodes. Among such
sets of nodes, the one that leaves the free CPUs most evenly distributed is used, measured by their standard deviation
over the nodes. If four or more NUMA nodes share a request, the kubelet may overwrite its best combination with a later
one, because its slices share memory (`_Slice`); its allocation fails if the later one has too few CPUs. Since 1.37 the
equal parts of the used set are limited to the available CPUs of each node; if the other CPUs then have no node, the
kubelet never answers. With `align-by-socket` they are limited in each compared set too, and a set of nodes in one
socket is preferred to any other set.
Not modelled: on machines of unequal cores or sockets, the kubelet may take CPUs that are not free.
Source: kubernetes pkg/kubelet/cm/cpumanager/cpu_assignment.go (1.36, 1.37).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, inf, sqrt
from typing import NamedTuple

from .cpu_topology import Topology, members
from .objects.kubelet_options import KubeletOptions


class Strategy(NamedTuple):
    """Selection strategy; `group` is the number of CPUs that distribution keeps together; 0 means packed.

    If `limited` is true, the equal parts of distribution are limited to the available CPUs of each NUMA node. If
    `one_socket` is true, distribution prefers NUMA nodes in one socket.
    """

    group: int = 0
    spread: bool = False
    by_cache: bool = False
    limited: bool = False
    one_socket: bool = False


def strategy_of(options: KubeletOptions, topology: Topology) -> Strategy:
    """Return the selection strategy under the kubelet's policy options."""
    group = topology.cpus_per_core if options.full_pcpus_only else 1
    distributed = options.distribute_cpus_across_numa
    return Strategy(
        group if distributed else 0, options.distribute_cpus_across_cores, options.prefer_align_cpus_by_uncorecache,
        options.limit_equal_parts, options.prefer_one_socket,
    )  # fmt: skip


def take(topology: Topology, available: int, count: int, strategy: Strategy, free: int | None = None) -> int | None:
    """Return the `count` available CPUs that the kubelet would take, or None if its allocation would fail.

    If cores or sockets are unequal, the kubelet may also take other CPUs of a part that it considers free; they are
    taken if they are in `free`, which is equal to `available` if it is not given.
    """
    if count > available.bit_count():
        return None
    if strategy.group and count and count % strategy.group == 0:
        taken = _distributed(topology, available, count, strategy)
        if taken is not None:
            return taken if taken.bit_count() == count else None
    return _Accumulator(topology, available, count, strategy, free).packed()


class _Accumulator:
    """Take CPUs level by level until the request is complete."""

    def __init__(
        self, topology: Topology, available: int, count: int, strategy: Strategy, free: int | None = None
    ) -> None:
        self.topology = topology
        self.free = available if free is None else free
        self.available = available
        self.needed = count
        self.strategy = strategy
        self.result = 0

    def packed(self) -> int:
        topology = self.topology
        sockets = (self._sockets, topology.sockets, lambda socket: topology.cpus_per_socket)
        zones = (self._zones, topology.zones, lambda zone: topology.zones[zone].bit_count())
        steps = (sockets, zones) if topology.sockets_first else (zones, sockets)
        for step in steps:
            self._take_whole(*step)
        if self.strategy.by_cache and self.strategy.group == 0:
            self._take_caches()
        if not self.strategy.spread:
            self._take_whole(self._cores, topology.cores, lambda core: topology.cpus_per_core)
        self._take_rest()
        return self.result

    def _take(self, cpus: int) -> None:
        self.result |= cpus
        self.available &= ~cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def _take_whole(self, ordered: Callable[[], list[int]], parts: dict[int, int], size: Callable[[int], int]) -> None:
        """Take each completely free part of a level, in order, that is not larger than the CPUs still needed."""
        free = [part for part in ordered() if (parts[part] & self.available).bit_count() == size(part)]
        for part in free:
            # Check the actual size too: the kubelet compares with the mean size of the parts, so if cores are unequal,
            # it may consider a part of another size free.
            if 0 < parts[part].bit_count() <= self.needed:
                self._take(parts[part] & self.free)

    def _take_caches(self) -> None:
        topology = self.topology
        for cache in self._caches():
            if self.needed >= topology.cpus_per_cache:
                self._take_whole(self._caches, topology.caches, lambda one: topology.caches[one].bit_count())
            if self.needed:
                self._take_part_of(topology.caches[cache])

    def _take_part_of(self, cache: int) -> None:
        """Take all needed CPUs from the lowest cores of one cache group, or none."""
        topology = self.topology
        in_cache = self.available & cache
        cores = sorted(core for core, own in topology.cores.items() if own & in_cache)
        most = -(-self.needed // max(topology.cpus_per_core, 1))
        free = 0
        for core in cores[:most]:
            free |= topology.cores[core] & self.available
        if self.needed % 2 and topology.cpus_per_core > 1 and free.bit_count() > self.needed:
            free ^= 1 << (free.bit_length() - 1)
        if free.bit_count() == self.needed:
            self._take(free)

    def _take_rest(self) -> None:
        """Take single threads: from the cores with the fewest available first, or with `spread` socket by socket."""
        if not self.needed:
            return
        parts, levels = (
            (self._sockets(), self.topology.sockets) if self.strategy.spread else (self._cores(), self.topology.cores)
        )
        for part in parts:
            for bit in list(members(levels[part] & self.available)):
                if not self.needed:
                    return
                self._take(1 << bit)

    # -- the kubelet's order of each level: by available CPUs, then id, inside the order of the level above ------------

    def _sorted(self, parts: dict[int, int], within: int = -1) -> list[int]:
        free = {part: cpus & self.available for part, cpus in parts.items()}
        counts = {part: cpus.bit_count() for part, cpus in free.items() if cpus & within}
        return sorted(counts, key=lambda part: (counts[part], part))

    def _inside(self, outer: Sequence[int], levels: dict[int, int], parts: dict[int, int]) -> list[int]:
        return list(dict.fromkeys(part for one in outer for part in self._sorted(parts, levels[one])))

    def _sockets(self) -> list[int]:
        if self.topology.sockets_first:
            return self._sorted(self.topology.sockets)
        return self._inside(self._zones(), self.topology.zones, self.topology.sockets)

    def _zones(self) -> list[int]:
        if self.topology.sockets_first:
            return self._inside(self._sockets(), self.topology.sockets, self.topology.zones)
        return self._sorted(self.topology.zones)

    def _cores(self) -> list[int]:
        if self.topology.sockets_first:
            return self._inside(self._zones(), self.topology.zones, self.topology.cores)
        return self._inside(self._sockets(), self.topology.sockets, self.topology.cores)

    def _caches(self) -> list[int]:
        return self._inside(self._zones(), self.topology.zones, self.topology.caches)

    zones_in_order = _zones


def _distributed(topology: Topology, available: int, count: int, strategy: Strategy) -> int | None:
    """Return an even distribution over the smallest possible number of NUMA nodes, or None if there is none.

    The result has fewer than `count` CPUs if a chosen NUMA node has too few.
    """
    group, packed = strategy.group, strategy._replace(group=0, by_cache=False)
    free = {zone: (cpus & available).bit_count() for zone, cpus in topology.zones.items() if cpus & available}
    zones = _Accumulator(topology, available, count, packed).zones_in_order()
    groups = -(-len(topology.cpus) // group)
    groups_per_zone = -(-groups // len(topology.zones))
    fewest = -(-(count // group) // groups_per_zone)
    for size in range(fewest, min(count // group, len(zones)) + 1):
        best = _best_combination(topology, zones, free, size, count, strategy)
        if best is None:
            continue
        chosen, remainder_zones = best
        part = _equal_part(chosen, free, count, group, limited=strategy.limited)
        taken = 0
        for zone in chosen:
            free_here = topology.zones[zone] & available & ~taken
            if free_here.bit_count() >= part:
                taken |= _packed_in(topology, free_here, part, packed)
        remaining = count - part * size
        while remaining > 0:
            before = remaining
            for zone in remainder_zones:
                rest = topology.zones[zone] & available & ~taken
                if remaining and rest.bit_count() >= group:
                    taken |= _packed_in(topology, rest, group, packed)
                    remaining -= group
            if remaining == before:
                break
        return taken
    return None


def _packed_in(topology: Topology, available: int, count: int, strategy: Strategy) -> int:
    return _Accumulator(topology, available, count, strategy).packed()


class _Slice(NamedTuple):
    """A slice of Go: slices that are appended to one slice within its capacity share their memory."""

    memory: list[int]
    length: int = 0

    def appended(self, value: int) -> _Slice:
        memory = self.memory
        if self.length == len(memory):
            memory = [*memory, *[0] * max(self.length, 1)]
        memory[self.length] = value
        return _Slice(memory, self.length + 1)

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(self.memory[: self.length])


def _combinations(zones: Sequence[int], size: int, start: int = 0, chosen: _Slice | None = None) -> Iterator[_Slice]:
    """Yield all combinations of `size` zones, in the kubelet's order; a later one may overwrite an earlier one."""
    chosen = chosen or _Slice([])
    if not size:
        yield chosen
        return
    for position in range(start, len(zones) - size + 1):
        yield from _combinations(zones, size - 1, position + 1, chosen.appended(zones[position]))


def _equal_part(chosen: Sequence[int], free: dict[int, int], count: int, group: int, *, limited: bool) -> int:
    """Return the number of CPUs that each of the chosen NUMA nodes gives before the remainder is distributed."""
    part = count // len(chosen) // group * group
    return min(part, *(free[zone] // group * group for zone in chosen)) if limited else part


def _best_combination(
    topology: Topology, zones: Sequence[int], free: dict[int, int], size: int, count: int, strategy: Strategy
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the NUMA nodes that share the CPUs most evenly, and those of them that take the remainder.

    If the strategy prefers one socket, nodes in one socket come before all others. In a tie, the first combination is
    returned; None if no combination has enough CPUs.
    """
    best: tuple[_Slice, _Slice] | None = None
    balance, is_best_in_one = inf, False
    group = strategy.group
    for combination in _combinations(zones, size):
        if balance == 0 and (is_best_in_one or not strategy.one_socket):
            break
        chosen = combination.values
        part = _equal_part(chosen, free, count, group, limited=strategy.one_socket)
        if sum(free[zone] for zone in chosen) < count or min(free[zone] for zone in chosen) < part:
            continue
        if sum(free[zone] // group for zone in chosen) * group < count:
            continue
        after = {zone: free[zone] - part * (zone in chosen) for zone in zones}
        found, remainder = _best_remainder(chosen, after, count - part * size, group)
        is_in_one = strategy.one_socket and _is_in_one_socket(topology, chosen)
        if is_in_one if is_in_one != is_best_in_one else found < balance:
            balance, is_best_in_one, best = found, is_in_one, (combination, remainder)
    return None if best is None else (best[0].values, best[1].values)


def _is_in_one_socket(topology: Topology, zones: Iterable[int]) -> bool:
    return len(frozenset[int]().union(*(topology.sockets_of_zone[zone] for zone in zones))) <= 1


def _best_remainder(chosen: Sequence[int], after: dict[int, int], left: int, group: int) -> tuple[float, _Slice]:
    """Return the smallest standard deviation of the free CPUs, and the chosen NUMA nodes with which it is reached.

    These nodes take the `left` CPUs, which remain after equal parts were taken from all chosen nodes.
    """
    if not left:
        return _deviation(after.values()), _Slice([])
    able = [zone for zone in chosen if after[zone] >= group]
    balance = inf
    best = _Slice([])
    for size in range(len(able), 0, -1):
        for combination in _combinations(able, size):
            some = combination.values
            if sum(after[zone] for zone in some) < left:
                continue
            rest, remaining = dict(after), left
            while remaining > 0:
                before = remaining
                for zone in some:
                    if remaining and rest[zone] >= group:
                        rest[zone] -= group
                        remaining -= group
                if remaining == before:
                    break
            found = _deviation(rest.values())
            if remaining <= 0 and found < balance:
                balance, best = found, combination
    return balance, best


def _deviation(amounts: Iterable[int]) -> float:
    """Return the standard deviation, rounded to thousandths as in the kubelet."""
    values = list(amounts)
    mean = _rounded(sum(values) / len(values))
    return _rounded(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _rounded(number: float) -> float:
    return floor(number * 1000 + 0.5) / 1000
