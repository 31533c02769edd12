"""CPUs that a static CPU manager takes, worked out by hand for small machines."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from hetsched.contracts.cpu_manager import Strategy, take
from hetsched.contracts.cpu_topology import Cpu, Topology

PACKED = Strategy()
ONE_SOCKET = Strategy(group=1, limited=True, one_socket=True)


def machine(sockets: int, zones: int, cores: int, threads: int = 1, caches: int = 1) -> Topology:
    """Return `zones` per socket with `cores` each; sibling threads are `all cores` apart, as Intel numbers them."""
    total = sockets * zones * cores
    cpus = []
    for core in range(total):
        zone, within = divmod(core, cores)
        cache = zone * caches + within * caches // cores
        cpus += [Cpu(core + thread * total, zone, zone // zones, core, cache) for thread in range(threads)]
    return Topology(cpus)


def taken(topology: Topology, count: int, busy: tuple[int, ...] = (), strategy: Strategy = PACKED) -> list[int] | None:
    found = take(topology, topology.all & ~topology.bits(busy), count, strategy)
    return None if found is None else topology.ids(found)


def test_sockets_come_first_with_more_zones_than_sockets() -> None:
    # 2 sockets of 2 zones of 2 CPUs: 0-1, 2-3 | 4-5, 6-7. CPU 0 is busy: socket 0 has 3 free, socket 1 has 4.
    # 4 CPUs: socket 1 is whole and fits. By zones alone the first whole zones would be 1 and 2: 2-3,4-5.
    assert taken(machine(2, 2, 2), 4, (0,)) == [4, 5, 6, 7]
    # 3 CPUs: no socket fits; of the whole zones the fuller socket comes first: zone 1 (2-3), then the rest of socket 0.
    assert taken(machine(2, 2, 2), 3, (0,)) == [1, 2, 3]
    # 1 CPU: socket 0 has fewer free than socket 1, and in it zone 0 fewer than zone 1.
    assert taken(machine(2, 2, 2), 1, (0, 4, 6)) == [5]


def test_zones_come_first_with_one_zone_per_socket() -> None:
    # 2 zones of 2 cores of 2 threads: cores (0,4) (1,5) | (2,6) (3,7). 4 CPUs: zone 0 whole.
    assert taken(machine(2, 1, 2, 2), 4) == [0, 1, 4, 5]
    # 0 and 4 are busy: zone 0 has 2 left, zone 1 has 4: a whole zone fits first.
    assert taken(machine(2, 1, 2, 2), 4, (0, 4)) == [2, 3, 6, 7]
    # 3 CPUs: no zone fits. Cores of the fuller zone first: (1,5), then one thread of the core with the fewest free.
    assert taken(machine(2, 1, 2, 2), 3, (0, 4)) == [1, 2, 5]


def test_whole_cores_precede_partial_cores() -> None:
    # One zone, cores (0,4) (1,5) (2,6) (3,7); 4 is busy, so core 0 is broken. 2 CPUs: core 1. 1 CPU: the broken core.
    assert taken(machine(1, 1, 4, 2), 2, (4,)) == [1, 5]
    assert taken(machine(1, 1, 4, 2), 1, (4,)) == [0]


def test_preferred_cache_group_is_filled_first() -> None:
    # One zone of 8 single-threaded cores in 2 cache groups: 0-3, 4-7. CPU 0 is busy.
    topology, by_cache = machine(1, 1, 8, 1, 2), Strategy(by_cache=True)
    # 4 CPUs: group 1 is whole. Without the option the lowest cores are taken: 1-4.
    assert taken(topology, 4, (0,), by_cache) == [4, 5, 6, 7]
    assert taken(topology, 4, (0,)) == [1, 2, 3, 4]
    # 3 CPUs fit into the rest of group 0, which has fewer free. 5 CPUs: group 1 whole, and 1 of group 0.
    assert taken(topology, 3, (0,), by_cache) == [1, 2, 3]
    assert taken(topology, 5, (0,), by_cache) == [1, 4, 5, 6, 7]


def test_cpus_are_distributed_over_the_fewest_zones_that_are_needed() -> None:
    # 2 zones of 4: 6 CPUs are more than one holds, so 3 of each; packed they are 4 + 2.
    topology, spread = machine(2, 1, 4), Strategy(group=1)
    assert taken(topology, 6, (), spread) == [0, 1, 2, 4, 5, 6]
    assert taken(topology, 6) == [0, 1, 2, 3, 4, 5]
    # 4 CPUs fit one zone: they stay in it.
    assert taken(topology, 4, (), spread) == [0, 1, 2, 3]
    # 5 CPUs are 2 + 2 and one over. With zone 1 down to 3 free, after 2 + 2 zone 0 has 2 left and zone 1 has 1; taking
    # the last one from zone 0 leaves 1 and 1 (deviation 0), from zone 1 it leaves 2 and 0.
    assert taken(topology, 5, (7,), spread) == [0, 1, 2, 4, 5]


def test_one_socket_precedes_the_most_even_distribution() -> None:
    # 2 sockets of 2 zones of 4: 0-3, 4-7 | 8-11, 12-15. CPUs 7 and 15 are busy: 4, 3 | 4, 3 are free. 6 CPUs are 3 + 3.
    # Zones 0 and 2 leave 1, 3, 1, 3 (deviation 1). Zones 0 and 1 of one socket leave 1, 0, 4, 3 (deviation 1.6).
    topology = machine(2, 2, 4)
    assert taken(topology, 6, (7, 15), Strategy(group=1)) == [0, 1, 2, 8, 9, 10]
    assert taken(topology, 6, (7, 15), ONE_SOCKET) == [0, 1, 2, 4, 5, 6]
    # CPUs 5 and 6 are also busy: 4, 1 | 4, 3 are free. Socket 0 has 5, so that zones 2 and 3 are the only ones.
    assert taken(topology, 6, (5, 6, 7, 15), ONE_SOCKET) == [8, 9, 10, 12, 13, 14]
    # CPUs 12 and 13 are busy instead: 4, 3 | 4, 1 are free. 7 CPUs are 3 + 3, and 1 more of zone 0.
    assert taken(topology, 7, (7, 12, 13, 15), ONE_SOCKET) == [0, 1, 2, 3, 4, 5, 6]


def test_later_combination_of_four_zones_overwrites_the_best() -> None:
    # 5 zones of 2 CPUs, 8 CPUs: every four zones leave 0, 0, 0, 0 and 2 free, so {0,1,2,3} is the best. {0,1,2,4} has
    # the same memory in the kubelet, and its last element replaces zone 3.
    assert taken(machine(5, 1, 2), 8, (), Strategy(group=1)) == [0, 1, 2, 3, 4, 5, 8, 9]
    # 6 CPUs of three zones: the slice of each combination has its own memory.
    assert taken(machine(5, 1, 2), 6, (), Strategy(group=1)) == [0, 1, 2, 3, 4, 5]


def test_overwritten_combination_is_limited_to_available_cpus() -> None:
    # 3 sockets of 3 zones of 6 CPUs. Zones 0 and 3 are busy, and zones 6, 7 and 8 have 4 free CPUs each. 21 CPUs are
    # 5 of zones 1, 2, 4 and 5, and 1 more. In the kubelet's memory, zone 8 replaces zone 5.
    topology = machine(3, 3, 6)
    busy = (*range(6), *range(18, 24), 36, 37, 42, 43, 48, 49)
    assert taken(topology, 21, busy, Strategy(group=1)) is None
    # 1.37 takes 4 CPUs of each, and the other 5 in turn of zones 1, 2, 4 and 5.
    expected = [*range(6, 17), *range(24, 29), 30, *range(50, 54)]
    assert taken(topology, 21, busy, Strategy(group=1, limited=True)) == expected
    # 20 CPUs have no remainder when the zones are chosen, so that the other 4 CPUs are taken of no zone.
    assert taken(topology, 20, busy, Strategy(group=1, limited=True)) is None


def test_full_pcpus_only_distributes_whole_cores() -> None:
    # 2 zones of 2 cores of 2 threads: (0,4) (1,5) | (2,6) (3,7). 6 CPUs are 3 cores: 1 + 1, and one more.
    topology = machine(2, 1, 2, 2)
    assert taken(topology, 6, (), Strategy(group=2)) == [0, 1, 2, 4, 5, 6]
    # 3 CPUs cannot be taken in groups of 2, so they are packed.
    assert taken(topology, 3, (), Strategy(group=2)) == [0, 1, 4]


def test_threads_are_spread_over_cores_by_id() -> None:
    # Cores (0,4) (1,5) (2,6) (3,7): 3 CPUs in the order of ids are three cores.
    assert taken(machine(1, 1, 4, 2), 3, (), Strategy(spread=True)) == [0, 1, 2]


def test_request_above_the_capacity_is_rejected() -> None:
    assert taken(machine(1, 1, 4), 4, (0,)) is None


# -- against an oracle of the rule as a sort order ---------------------------------------------------------------------


def oracle(topology: Topology, busy: set[int], count: int) -> set[int]:
    """Take packed CPUs, one after the other, with sets of IDs and no shared state."""
    cpus = topology.cpus
    free = {cpu.id for cpu in cpus} - busy
    outer, inner = ("socket", "zone") if len(topology.zones) > len(topology.sockets) else ("zone", "socket")
    got: set[int] = set()

    def key(cpu: Cpu, levels: tuple[str, ...]) -> list[tuple[int, int]]:
        remaining = free - got
        return [
            (sum(o.id in remaining and getattr(o, name) == getattr(cpu, name) for o in cpus), getattr(cpu, name))
            for name in levels
        ]

    for depth in range(1, 4):
        levels = (outer, inner, "core")[:depth]
        remaining = [cpu for cpu in cpus if cpu.id in free - got]
        for number in dict.fromkeys(getattr(c, levels[-1]) for c in sorted(remaining, key=lambda c: key(c, levels))):
            part = {cpu.id for cpu in cpus if getattr(cpu, levels[-1]) == number}
            if part <= free - got and len(part) <= count - len(got):
                got |= part
    order = [
        cpu.id for cpu in sorted((c for c in cpus if c.id in free - got), key=lambda c: key(c, (outer, inner, "core")))
    ]
    return got | set(order[: count - len(got)])


@pytest.mark.parametrize("seed", range(60))
def test_packed_order_agrees_with_the_oracle(seed: int) -> None:
    rng = Random(seed)
    topology = machine(rng.choice([1, 2, 4]), rng.choice([1, 1, 2]), rng.randint(1, 4), rng.choice([1, 2, 4]))
    ids = [cpu.id for cpu in topology.cpus]
    busy = set(rng.sample(ids, rng.randrange(len(ids))))
    for count in range(1, len(ids) - len(busy) + 1):
        assert set(taken(topology, count, tuple(busy)) or ()) == oracle(topology, busy, count)


@pytest.mark.parametrize("seed", range(30))
def test_distribution_is_even_over_the_fewest_zones(seed: int) -> None:
    rng = Random(seed)
    zones, cores = rng.choice([2, 3, 4]), rng.randint(2, 5)
    topology = machine(zones, 1, cores)
    busy = set(rng.sample(range(zones * cores), rng.randrange(zones * cores - 1)))
    free = [cores - sum(cpu // cores == zone for cpu in busy) for zone in range(zones)]
    for count in range(1, sum(free) + 1):
        got = taken(topology, count, tuple(busy), Strategy(group=1))
        assert got is not None
        assert len(got) == len(set(got)) == count
        assert not busy & set(got)
        parts = [sum(cpu // cores == zone for cpu in got) for zone in range(zones)]
        even = [
            size
            for size in range(1, zones + 1)
            if count >= size
            and any(
                min(free[z] for z in chosen) >= count // size and sum(free[z] for z in chosen) >= count
                for chosen in combinations(range(zones), size)
            )
            and size * cores >= count
        ]
        if even:
            assert sum(part > 0 for part in parts) == even[0]
            assert min(part for part in parts if part) >= count // even[0]
