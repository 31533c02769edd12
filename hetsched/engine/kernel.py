"""The inner loop of placing pods, compiled.

Problem: the NumPy path pays a call of about a microsecond per operation, some forty per decision; the work itself is a
few nanoseconds a node.
Rule: the formulas of the built-in LOAD plugins once more, as plain loops over the same two blocks of columns. Totals
are kept per shape in a tournament tree (leaves: totals by row; each parent the greater of its children, the left one
when equal), so the best row is read at the root and a changed row costs its path. A shape that is seen only once is
swept without a tree.
Invariants: every pick, total and grant equals the NumPy path's, bit for bit: same integers, same floating-point
operations in the same order. The NumPy path is the oracle, in tests and in `hetsched bench engine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .columns import UNKNOWN, WHOLE_CARD_MILLI, Ints

LEAST_ALLOCATED, BALANCED_ALLOCATION, TIGHTEST_FIT = 0, 1, 2
_NOWHERE = -np.inf


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


class Terms(NamedTuple):
    """The score plugins in policy order: which formula, its weight, and least-allocated's shares."""

    code: Ints
    weight: NDArray[np.float64]
    cpu_share: int
    memory_share: int


class Shapes(NamedTuple):
    """What the kernel knows of every shape. Shapes: C shapes, K needs, M models, T terms, B distinct masks."""

    needs_start: Ints  # (C + 1,)
    needs_row: Ints  # (K,)
    needs: Ints  # (K,)
    delta: Ints  # (C, L)
    extra: Ints  # (C, 4)
    nonzero: Ints  # (C, 2)
    asked: Ints  # (C, 2) CPU and memory as requested
    card_count: Ints  # (C,)
    card_milli: Ints
    card_memory: Ints  # MiB asked of a card, 0 for none
    card_cores: Ints
    card_vendor: Ints  # id, -1 for any
    models: NDArray[np.bool_]  # (C, M)
    uses: NDArray[np.bool_]  # (C, T)
    tight_asked: NDArray[np.float64]  # (C, 3)
    tight_scale: NDArray[np.float64]  # (C, 3)
    mask: Ints  # (C,) row of `masks`
    masks: NDArray[np.bool_]  # (B, N)
    static_total: Ints  # (C,) row of `static_totals`
    static_totals: NDArray[np.float64]  # (B, N)


# Helpers that take the tuples of arrays are called once per list of rows, never per row: handing an array over costs
# more than a row does.


@njit(cache=True)
def _evaluate(
    shape: int, rows: Any, count: int, static: Any, load: Any, at: Any, terms: Any, shapes: Any, out: Any
) -> None:
    """Write the totals of `rows[:count]` for one shape into `out`, -inf where it does not fit."""
    first, last = shapes.needs_start[shape], shapes.needs_start[shape + 1]
    needs_row, needs = shapes.needs_row, shapes.needs
    mask, base = shapes.masks[shapes.mask[shape]], shapes.static_totals[shapes.static_total[shape]]
    cards, milli, memory = shapes.card_count[shape], shapes.card_milli[shape], shapes.card_memory[shape]
    cores, vendor, models = shapes.card_cores[shape], shapes.card_vendor[shape], shapes.models[shape]
    nonzero_cpu, nonzero_memory = shapes.nonzero[shape, 0], shapes.nonzero[shape, 1]
    asked_cpu, asked_memory = shapes.asked[shape, 0], shapes.asked[shape, 1]
    tight_cpu, tight_memory, tight_cards = shapes.tight_asked[shape]
    scale_cpu, scale_memory, scale_cards = shapes.tight_scale[shape]
    uses, codes, weights = shapes.uses[shape], terms.code, terms.weight
    cpu_share, memory_share = terms.cpu_share, terms.memory_share
    shares = max(cpu_share + memory_share, 1)
    for i in range(count):
        row = rows[i]
        out[i] = _NOWHERE
        fits = mask[row]
        if fits:
            for k in range(first, last):
                resource = needs_row[k]
                if load[at.requested + resource, row] + needs[k] > static[at.allocatable + resource, row]:
                    fits = False
                    break
        if fits and cards > 0:
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
                    if found == cards:
                        break
            fits = found >= cards
        if not fits:
            continue
        total = base[row]
        cpu_capacity, memory_capacity = static[at.allocatable, row], static[at.allocatable + 1, row]
        for term in range(len(codes)):
            if not uses[term]:
                continue
            if codes[term] == LEAST_ALLOCATED:
                cpu = max(cpu_capacity - load[at.nonzero, row] - nonzero_cpu, 0) * 100 // max(cpu_capacity, 1)
                left = max(memory_capacity - load[at.nonzero + 1, row] - nonzero_memory, 0)
                ram = left * 100 // max(memory_capacity, 1)
                score = float((cpu * cpu_share + ram * memory_share) // shares)
            elif codes[term] == BALANCED_ALLOCATION:
                score = 100.0
                if cpu_capacity > 0 and memory_capacity > 0:
                    cpu_use = min((load[at.requested, row] + asked_cpu) / cpu_capacity, 1.0)
                    ram_use = min((load[at.requested + 1, row] + asked_memory) / memory_capacity, 1.0)
                    score = np.floor((1.0 - abs(cpu_use - ram_use) * 0.5) * 100.0)
            else:
                score = 100.0 - scale_cpu * max(float(cpu_capacity - load[at.requested, row]) - tight_cpu, 0.0)
                ram_left = float(memory_capacity - load[at.requested + 1, row])
                score -= scale_memory * max(ram_left - tight_memory, 0.0)
                if cards > 0:
                    free = 0
                    for card in range(at.cards):
                        free += load[at.card_milli_free + card, row]
                    score -= scale_cards * max(float(free) - tight_cards, 0.0)
                score = max(score, 0.0)
            total = total + weights[term] * score
        out[i] = total


@njit(cache=True)
def _take_cards(shape: int, row: int, static: Any, load: Any, at: Any, shapes: Any) -> int:
    """Charge the cards that gpu-fit would grant and return them as a bit set."""
    milli, memory = shapes.card_milli[shape], shapes.card_memory[shape]
    cores, vendor, models = shapes.card_cores[shape], shapes.card_vendor[shape], shapes.models[shape]
    chosen = 0
    for _ in range(shapes.card_count[shape]):
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


@njit(cache=True)
def _climb(tree: Any, leaves: int, row: int) -> None:
    """Bring a leaf's ancestors up to date; stop where nothing changes."""
    node = (leaves + row) >> 1
    while node >= 1:
        left, right = tree[2 * node], tree[2 * node + 1]
        greater = left if left >= right else right
        if tree[node] == greater:
            return
        tree[node] = greater
        node >>= 1


@njit(cache=True)
def _leftmost_best(tree: Any, leaves: int) -> int:
    """Return the first row that has the greatest total."""
    best, node = tree[1], 1
    while node < leaves:
        node = 2 * node if tree[2 * node] == best else 2 * node + 1
    return node - leaves


@njit(cache=True)
def _drawn(totals: Any, count: int, best: float, draw: Any) -> int:
    """Return the row that the draw picks among all rows with the greatest total."""
    equal = 0
    for row in range(count):
        if totals[row] == best:
            equal += 1
    skip = draw % np.uint64(equal)
    for row in range(count):
        if totals[row] == best:
            if skip == 0:
                return row
            skip -= np.uint64(1)
    return -1


@njit(cache=True)
def place(
    pods: Any, draws: Any, static: Any, load: Any, at: Any, terms: Any, shapes: Any, trees: Any, tree_of: Any,
    seen: Any, log: Any, logged: int, picked: Any, totals: Any, cards: Any,
) -> int:  # fmt: skip
    """Place pods one after the other and return the new length of the log.

    Shapes: `pods` (P,) shape ids; `draws` (P,) uint64, empty for ties by name; `trees` (Q, 2 * leaves) float64 and
    `tree_of` (C,) their rows, -1 for shapes swept each time; `seen` (C,) log lengths, -1 for never; `log` int64 with
    room for P more rows; out: `picked` (P,) rows or -1, `totals` (P,), `cards` (P,) bit sets.
    """
    count = load.shape[1]
    leaves = trees.shape[1] // 2
    every = np.arange(count)
    fresh = np.empty(count)
    for p in range(len(pods)):
        shape = pods[p]
        tree_row = tree_of[shape]
        if tree_row < 0:
            _evaluate(shape, every, count, static, load, at, terms, shapes, fresh)
            row, best = 0, fresh[0]
            for i in range(1, count):
                if fresh[i] > best:
                    row, best = i, fresh[i]
            if len(draws) and best > _NOWHERE:
                row = _drawn(fresh, count, best, draws[p])
        else:
            tree = trees[tree_row]
            since = seen[shape]
            if since < 0 or (logged - since) * 3 > count:
                _evaluate(shape, every, count, static, load, at, terms, shapes, tree[leaves:])
                for node in range(leaves - 1, 0, -1):
                    left, right = tree[2 * node], tree[2 * node + 1]
                    tree[node] = left if left >= right else right
            else:
                dirty = logged - since
                _evaluate(shape, log[since:logged], dirty, static, load, at, terms, shapes, fresh)
                for i in range(dirty):
                    changed = log[since + i]
                    tree[leaves + changed] = fresh[i]
                    _climb(tree, leaves, changed)
            seen[shape] = logged
            best = tree[1]
            if best > _NOWHERE:
                row = _drawn(tree[leaves:], count, best, draws[p]) if len(draws) else _leftmost_best(tree, leaves)
            else:
                row = 0
        if best == _NOWHERE:
            picked[p] = -1
            continue
        picked[p] = row
        totals[p] = best
        if shapes.card_count[shape] > 0:
            cards[p] = _take_cards(shape, row, static, load, at, shapes)
        for i in range(load.shape[0]):
            load[i, row] += shapes.delta[shape, i]
        for i in range(4):
            load[at.used + i, row] += static[at.measured + i, row] * shapes.extra[shape, i]
        log[logged] = row
        logged += 1
    return logged
