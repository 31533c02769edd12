"""Choose the GPUs of a node with the best links between them for one pod.

Two GPUs joined by NVLink exchange gradients ten times as fast as two GPUs on different sockets; choosing the lowest
indices ignores this. The worth of a pair of GPUs is its bandwidth in MB/s: the greater of the two reported values, else
the nominal value of the kind of link (nvlink 25 GB/s, switch 24, zone 20, system 10). Without a stated link, the zones
of the GPUs decide between the kinds zone and system. Of all sets of the requested size, the best is selected by
    1 the greatest worth of its slowest pair, because a collective is as slow as its slowest link
    2 the greatest sum of the worth of its pairs    3 the lowest indices
If zones were selected before, as many GPUs as possible are taken from these zones. The search is exact for up to
`MOST_SETS` sets, which covers every request on up to 16 free GPUs. Beyond that, the search starts with the best pair
and repeatedly adds the GPU that adds the most worth. Nodes without stated links use the lowest indices.
Source: reconstruction; kinds and their order as in `nvidia-smi topo -m`.
Invariant: pure; returns as many GPUs as requested, each of them a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from hetsched.contracts.objects.node_report import GpuCard

Table = tuple[tuple[int, ...], ...]
Worth = tuple[int, int]

NOMINAL_GBS = {"nvlink": 25.0, "switch": 24.0, "zone": 20.0, "system": 10.0}
MOST_SETS = 12_870  # ways to choose 8 of 16 GPUs
_MBS_PER_GBS = 1000


def link_table(cards: Sequence[GpuCard]) -> Table | None:
    """Return the worth of every pair by GPU index, or None if no GPU states a link."""
    if not any(card.links for card in cards):
        return None
    size = max(card.index for card in cards) + 1
    stated: dict[tuple[int, int], int] = {}
    for card in cards:
        for link in card.links:
            gbs = NOMINAL_GBS.get(link.kind, 0.0) if link.bandwidth_gbs is None else link.bandwidth_gbs
            pair = (min(card.index, link.to), max(card.index, link.to))
            stated[pair] = max(stated.get(pair, 0), round(gbs * _MBS_PER_GBS))
    zones = {card.index: card.numa_zone for card in cards}

    def worth(one: int, other: int) -> int:
        pair = (min(one, other), max(one, other))
        if one == other or pair in stated:
            return stated.get(pair, 0)
        same = zones.get(one) is not None and zones.get(one) == zones.get(other)
        return round(NOMINAL_GBS["zone" if same else "system"] * _MBS_PER_GBS)

    return tuple(tuple(worth(number, other) for other in range(size)) for number in range(size))


@lru_cache(maxsize=16384)
def best_linked(table: Table, candidates: tuple[int, ...], near: frozenset[int], count: int) -> tuple[int, ...]:
    """Return the `count` best linked of at least `count` candidates, GPU indexes in ascending order.

    Candidates in `near` are chosen before all other candidates.
    """
    inside = tuple(card for card in candidates if card in near)
    if len(inside) >= count:
        return _best(table, (), inside, count)
    return _best(table, inside, tuple(card for card in candidates if card not in near), count - len(inside))


def _best(table: Table, fixed: tuple[int, ...], others: tuple[int, ...], count: int) -> tuple[int, ...]:
    if comb(len(others), count) > MOST_SETS:
        return _grown(table, fixed, others, count)
    sets = (tuple(sorted(fixed + chosen)) for chosen in combinations(others, count))
    # Sets are generated in the order of their indices, so the first of equally good sets has the lowest indices.
    return max(sets, key=lambda cards: worth_of(table, cards))


def _grown(table: Table, fixed: tuple[int, ...], others: tuple[int, ...], count: int) -> tuple[int, ...]:
    chosen, remaining = list(fixed), list(others)
    if not chosen:
        chosen = list(max(combinations(remaining, min(2, count)), key=lambda cards: worth_of(table, cards)))
        remaining = [card for card in remaining if card not in chosen]
    while len(chosen) < len(fixed) + count:
        chosen.append(max(remaining, key=lambda card: worth_of(table, [*chosen, card])))
        remaining.remove(chosen[-1])
    return tuple(sorted(chosen))


def worth_of(table: Table, cards: Iterable[int]) -> Worth:
    """Return the worth of the slowest pair in a set of GPUs, and the sum of the worth of all its pairs."""
    pairs = [table[one][other] for one, other in combinations(cards, 2)]
    return min(pairs, default=0), sum(pairs)
