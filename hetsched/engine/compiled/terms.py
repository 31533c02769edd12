"""The filters built into the compiled loop, and the arrays that formulas read.

The NumPy path costs about a microsecond per operation and forty operations per decision; the arithmetic itself takes a
few nanoseconds per node. Loops run over whole columns without branches, so that the compiler emits vector
instructions; the totals of excluded rows remain -inf. The formulas of scores are in the files of their plugins
(`framework.compiled_terms`).
Invariants: every total equals the NumPy path's, bit for bit: same integers, same floating-point operations in the same
order. Tests and `hetsched bench engine` compare both paths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI, Ints
from hetsched.engine.framework.compiled_terms import loop_function

NOWHERE = -np.inf


class FieldRows(NamedTuple):
    """First row of each field in its block, and the maximum number of GPUs per node."""

    allocatable: int
    cards_healthy: int
    cards_present: int
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
    """Adjacent nodes: columns `first` to `last` (exclusive) of both blocks; `rows` gives each node's cluster row.

    `cards_milli_free` contains the free milli of all GPUs of each node, from the first node of the stretch on.
    """

    static: Ints
    load: Ints
    cards_milli_free: Ints
    first: int
    last: int
    rows: Ints


class GpuDemands(NamedTuple):
    """GPU demands of the shapes, by demand id. Array shapes: C different demands, M models."""

    number: Ints  # (C,)
    milli: Ints
    memory: Ints  # MiB, 0 for none
    cores: Ints
    vendor: Ints  # id, -1 for any
    choosy: Any  # (C,) bool, whether only some models are accepted
    models: Any  # (C, M) bool


@loop_function
def keep_out_full(total: Any, nodes: Any, at: Any, resource: int, need: int) -> None:
    """Set the totals of nodes with less than `need` of a resource free to -inf."""
    capacity = nodes.static[at.allocatable + resource, nodes.first : nodes.last]
    requested = nodes.load[at.requested + resource, nodes.first : nodes.last]
    for i in range(len(total)):
        total[i] = NOWHERE if requested[i] + need > capacity[i] else total[i]


@loop_function
def keep_out_without_cards(total: Any, usable: Any, card_id: int, nodes: Any, at: Any, cards: Any) -> None:
    """Write the usable GPUs of each node as a bit set, and set the totals of nodes with too few usable GPUs to -inf."""
    number, milli, memory = cards.number[card_id], cards.milli[card_id], cards.memory[card_id]
    cores, vendor, models = cards.cores[card_id], cards.vendor[card_id], cards.models[card_id]
    first, last = nodes.first, nodes.last
    usable[: len(total)] = 0
    fitting = np.zeros(len(total), np.int64)
    for card in range(at.cards):
        bit = np.int64(1) << card
        milli_free = nodes.load[at.card_milli_free + card, first:last]
        memory_free = nodes.load[at.card_memory_free + card, first:last]
        card_memory = nodes.static[at.card_memory + card, first:last]
        card_cores = nodes.static[at.card_cores + card, first:last]
        card_vendor = nodes.static[at.card_vendor + card, first:last]
        card_model = nodes.static[at.card_model + card, first:last]
        for i in range(len(total)):
            fitting[i] = bit if milli_free[i] >= milli else 0
        if milli < WHOLE_CARD_MILLI:
            for i in range(len(total)):
                fitting[i] = fitting[i] if memory_free[i] >= share_of_memory(card_memory[i], milli, memory) else 0
        if memory > 0:
            for i in range(len(total)):
                fitting[i] = fitting[i] if card_memory[i] >= memory else 0
        if cores > 0:
            for i in range(len(total)):
                fitting[i] = fitting[i] if card_cores[i] >= cores else 0
        if vendor != UNKNOWN:
            for i in range(len(total)):
                fitting[i] = fitting[i] if card_vendor[i] == vendor else 0
        if cards.choosy[card_id]:
            for i in range(len(total)):
                fitting[i] = fitting[i] if models[card_model[i]] else 0
        for i in range(len(total)):
            usable[i] |= fitting[i]
    for i in range(len(total)):
        found = 0
        for card in range(at.cards):
            found += usable[i] >> card & 1
        total[i] = NOWHERE if found < number else total[i]


@loop_function
def share_of_memory(card_memory: int, milli: int, memory: int) -> int:
    """Return the memory allocated for a share of a GPU: the requested memory, else a proportional part, rounded up."""
    part = np.int64(np.float64(max(card_memory, 0) * milli + 999) / 1000.0)
    return memory if memory > 0 else part  # type: ignore[return-value]


@loop_function
def take_cards(card_id: int, row: int, usable: int, static: Any, load: Any, at: Any, cards: Any) -> int:
    """Allocate the usable GPUs that gpu-fit would select, and return them as a bit set."""
    milli, memory = cards.milli[card_id], cards.memory[card_id]
    chosen = 0
    for _ in range(cards.number[card_id]):
        best, least = -1, 0
        for card in range(at.cards):
            free = load[at.card_milli_free + card, row]
            if (usable & ~chosen) >> card & 1 and (best < 0 or (milli < WHOLE_CARD_MILLI and free < least)):
                best, least = card, free
        chosen |= 1 << best
        charged = max(static[at.card_memory + best, row], 0)
        if milli < WHOLE_CARD_MILLI:
            charged = share_of_memory(charged, milli, memory)
        load[at.card_milli_free + best, row] -= milli
        load[at.card_memory_free + best, row] -= charged
    return chosen
