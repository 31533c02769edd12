"""The formulas of LOAD plugins once more, for the compiled loop: one small function a plugin.

Problem: the NumPy path pays about a microsecond per operation and forty operations a decision; the work itself is a
few nanoseconds a node.
Rule: a term adds `weight * score` to the totals of a stretch of nodes. Loops run over whole columns without branches,
so that the compiler turns them into vector instructions; rows that are out hold -inf and stay so. A new term is a
function of the same signature, a branch in `add_score` and an entry in `plans.TERMS`.
Invariants: every total equals the NumPy path's, bit for bit: same integers, same floating-point operations in the same
order. That path is the oracle, in tests and in `hetsched bench engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from .columns import UNKNOWN, WHOLE_CARD_MILLI, Ints

LEAST_ALLOCATED, BALANCED_ALLOCATION, TIGHTEST_FIT = range(3)
NOWHERE = -np.inf
GIVEN = 8
"""How many numbers a term may be given per shape."""

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile at the first call and keep the machine code on disk, where there is a place that can be written."""
    made: Any
    try:
        made = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:
        made = njit(error_model="numpy")(function)
    return cast("F", made)


class At(NamedTuple):
    """First row of each field in its block, and how many cards a node has at most."""

    allocatable: int
    card_model: int
    card_vendor: int
    card_memory: int
    card_cores: int
    measured: int
    requested: int
    nonzero: int
    card_milli_free: int
    card_memory_free: int
    used: int
    cards: int


class Stretch(NamedTuple):
    """Nodes side by side: columns `first` to `last` of two blocks, and which rows of the cluster they are."""

    static: Ints
    load: Ints
    first: int
    last: int
    rows: Ints


class Cards(NamedTuple):
    """What shapes ask of cards. Shapes: C shapes, M models."""

    number: Ints  # (C,)
    milli: Ints
    memory: Ints  # MiB, 0 for none
    cores: Ints
    vendor: Ints  # id, -1 for any
    models: Any  # (C, M) bool


@compiled
def add_score(code: int, total: Any, weight: float, nodes: Any, at: Any, delta: Any, given: Any) -> None:
    """Add one plugin's weighted score to `total` (n,)."""
    if code == LEAST_ALLOCATED:
        _least_allocated(total, weight, nodes, at, delta, given)
    elif code == BALANCED_ALLOCATION:
        _balanced_allocation(total, weight, nodes, at, delta)
    else:
        _tightest_fit(total, weight, nodes, at, given)


@compiled
def hundredth(part: int, whole: int) -> int:
    """Return 100 * part // whole for whole > 0 without an integer division, which has no vector instruction.

    The quotient of the floats is off by one at most, which the remainder shows.
    """
    scaled = part * 100
    quotient = np.int64(np.float64(scaled) / np.float64(whole))
    rest = scaled - quotient * whole
    return quotient + np.int64(rest >= whole) - np.int64(rest < 0)  # type: ignore[return-value]


@compiled
def _least_allocated(total: Any, weight: float, nodes: Any, at: Any, delta: Any, given: Any) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.nonzero, nodes.first : nodes.last]
    memory_used = nodes.load[at.nonzero + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.nonzero], delta[at.nonzero + 1]
    cpu_share, memory_share, shares = given[0], given[1], max(given[0] + given[1], 1.0)
    for i in range(len(total)):
        cpu_left = hundredth(max(cpu_capacity[i] - cpu_used[i] - cpu, 0), max(cpu_capacity[i], 1))
        memory_left = hundredth(max(memory_capacity[i] - memory_used[i] - memory, 0), max(memory_capacity[i], 1))
        total[i] += weight * np.floor((cpu_left * cpu_share + memory_left * memory_share) / shares)


@compiled
def _balanced_allocation(total: Any, weight: float, nodes: Any, at: Any, delta: Any) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.requested], delta[at.requested + 1]
    for i in range(len(total)):
        cpu_use = min((cpu_used[i] + cpu) / cpu_capacity[i], 1.0)
        memory_use = min((memory_used[i] + memory) / memory_capacity[i], 1.0)
        score = np.floor((1.0 - abs(cpu_use - memory_use) * 0.5) * 100.0)
        total[i] += weight * (score if (cpu_capacity[i] > 0) & (memory_capacity[i] > 0) else 100.0)


@compiled
def _tightest_fit(total: Any, weight: float, nodes: Any, at: Any, given: Any) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    card_free = nodes.load[at.card_milli_free : at.card_milli_free + at.cards, nodes.first : nodes.last]
    cpu, memory, cards, cpu_scale, memory_scale, cards_scale, with_cards = given[:7]
    for i in range(len(total)):
        score = 100.0 - cpu_scale * max(float(cpu_capacity[i] - cpu_used[i]) - cpu, 0.0)
        score -= memory_scale * max(float(memory_capacity[i] - memory_used[i]) - memory, 0.0)
        if with_cards:
            free = 0
            for card in range(at.cards):
                free += card_free[card, i]
            score -= cards_scale * max(float(free) - cards, 0.0)
        total[i] += weight * max(score, 0.0)


# -- what keeps a node out: resource-fit and gpu-fit ------------------------------------------------------------------


@compiled
def keep_out_full(total: Any, nodes: Any, at: Any, resource: int, need: int) -> None:
    """Put the totals of nodes without room for `need` of a resource to -inf."""
    capacity = nodes.static[at.allocatable + resource, nodes.first : nodes.last]
    requested = nodes.load[at.requested + resource, nodes.first : nodes.last]
    for i in range(len(total)):
        total[i] = NOWHERE if requested[i] + need > capacity[i] else total[i]


@compiled
def keep_out_without_cards(total: Any, shape: int, rows: Any, static: Any, load: Any, at: Any, cards: Any) -> None:
    """Put the totals of rows without enough suitable free cards to -inf."""
    count, milli, memory = cards.number[shape], cards.milli[shape], cards.memory[shape]
    cores, vendor, models = cards.cores[shape], cards.vendor[shape], cards.models[shape]
    for i in range(len(total)):
        if total[i] == NOWHERE:
            continue
        row = rows[i]
        found = 0
        for card in range(at.cards):
            if load[at.card_milli_free + card, row] < milli:
                continue
            if milli < WHOLE_CARD_MILLI:
                charged = memory
                if charged == 0:
                    charged = -((-max(static[at.card_memory + card, row], 0) * milli) // WHOLE_CARD_MILLI)
                if load[at.card_memory_free + card, row] < charged:
                    continue
            if (
                (memory == 0 or static[at.card_memory + card, row] >= memory)
                and (cores == 0 or static[at.card_cores + card, row] >= cores)
                and (vendor == UNKNOWN or static[at.card_vendor + card, row] == vendor)
                and models[static[at.card_model + card, row]]
            ):
                found += 1
                if found == count:
                    break
        if found < count:
            total[i] = NOWHERE


@compiled
def take_cards(shape: int, row: int, static: Any, load: Any, at: Any, cards: Any) -> int:
    """Charge the cards that gpu-fit would grant and return them as a bit set."""
    milli, memory = cards.milli[shape], cards.memory[shape]
    cores, vendor, models = cards.cores[shape], cards.vendor[shape], cards.models[shape]
    chosen = 0
    for _ in range(cards.number[shape]):
        best, least, best_charge = -1, 0, 0
        for card in range(at.cards):
            free, total = load[at.card_milli_free + card, row], static[at.card_memory + card, row]
            charged = max(total, 0)
            if milli < WHOLE_CARD_MILLI:
                charged = memory if memory > 0 else -((-charged * milli) // WHOLE_CARD_MILLI)
            if (chosen >> card) & 1 or free < milli:
                continue
            if milli < WHOLE_CARD_MILLI and load[at.card_memory_free + card, row] < charged:
                continue
            if (
                (memory == 0 or total >= memory)
                and (cores == 0 or static[at.card_cores + card, row] >= cores)
                and (vendor == UNKNOWN or static[at.card_vendor + card, row] == vendor)
                and models[static[at.card_model + card, row]]
                and (best < 0 or (milli < WHOLE_CARD_MILLI and free < least))
            ):
                best, least, best_charge = card, free, charged
        chosen |= 1 << best
        load[at.card_milli_free + best, row] -= milli
        load[at.card_memory_free + best, row] -= best_charge
    return chosen
