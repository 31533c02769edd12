"""Compiled inner loop that places pods: score all or only the changed rows, select a row, add the pod to its load.

For a recurring shape the loop caches the totals of all nodes, with the maximum of every block of 64 rows. For the next
pod of the shape, only the rows changed since then are computed again. These rows are first gathered into contiguous
memory, so that the update runs the same formulas (`terms`) as the full evaluation. The best row is the first row with
the maximum total in the first block that has it. The totals of a shape that occurs only once are not cached. The
formulas of the plugins are linked into the loop by `loop_of`.
Invariants: as in `terms`; -inf marks infeasible rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI
from hetsched.engine.framework.compiled_terms import Formula, loop_function

from .loop_arrays import BLOCK, CHUNK, SPARSE
from .machine_code import Linker, borrowed, compile_cached
from .terms import NOWHERE, Stretch, keep_out_full, keep_out_without_cards, take_cards

# Approximate cost of updating a single row, relative to its cost within a sweep.
_SWEEP_SHARE = 6


@loop_function
def _set_greatest(greatest: Any, block: int, totals: Any) -> None:
    """Set `greatest[block]` to the maximum total of the block, by comparing floats as integers.

    Except for NaN and -0.0, floats are ordered like their bits after the bits of negative floats are inverted.
    """
    bits = totals[block * BLOCK : (block + 1) * BLOCK].view(np.int64)
    most = np.int64(-0x8000000000000000)
    for i in range(len(bits)):
        most = max(most, bits[i] ^ ((bits[i] >> 63) & np.int64(0x7FFFFFFFFFFFFFFF)))
    greatest.view(np.int64)[block] = most ^ ((most >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))


@loop_function
def _refresh(row: int, values: Any, static: Any, load: Any, at: Any, terms: Any) -> None:
    """Update the cached values of one node."""
    least = values.least_free
    chunk, all_nodes = row // CHUNK, least.shape[1] - 1
    for resource in range(len(least)):
        free = static[at.allocatable + resource, row] - load[at.requested + resource, row]
        least[resource, chunk] = min(least[resource, chunk], free)
        least[resource, all_nodes] = min(least[resource, all_nodes], free)
    if terms.cards and static[at.cards_healthy, row] > 0:
        free = 0
        for card in range(at.cards):
            free += max(load[at.card_milli_free + card, row], 0)
        values.free_milli[row] = free


@loop_function
def _add_score(
    code: int, total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    """Run the formula with number `code`. `loop_of` replaces this placeholder by the formulas of all plugins."""


@loop_function
def _add_up(
    shape: int,
    total: Any,
    usable: Any,
    least: Any,
    nodes: Any,
    static: Any,
    load: Any,
    at: Any,
    terms: Any,
    kinds: Any,
    shapes: Any,
) -> None:
    """Complete the static totals of a stretch of nodes: exclude nodes without free capacity, and add the scores.

    `least` (R,) is at most the free amount of each resource on every node of the stretch.
    """
    kind, delta = shapes.kind[shape], shapes.delta[shape]
    for k in range(kinds.needs_start[kind], kinds.needs_start[kind + 1]):
        resource = kinds.needs[k]
        if delta[at.requested + resource] > least[resource]:
            keep_out_full(total, nodes, at, resource, delta[at.requested + resource])
    if shapes.cards.number[shapes.card[shape]] > 0:
        keep_out_without_cards(total, usable, shapes.card[shape], nodes, at, shapes.cards)
    _add_scores(shape, 0, len(terms.weight), terms.weight, total, usable, nodes, static, load, at, terms, shapes)


@loop_function
def _add_scores(
    shape: int, first: int, last: int, weights: Any, total: Any, usable: Any, nodes: Any,
    static: Any, load: Any, at: Any, terms: Any, shapes: Any,
) -> None:  # fmt: skip
    """Run the formulas of the terms `first` to `last` (exclusive) of a shape, with these weights of all terms."""
    delta, extra, variant = shapes.delta[shape], shapes.extra[shape], shapes.variant[shape]
    cards = (usable, terms.card_worth, static, load)
    for term in range(first, last):
        code = shapes.code[variant, term]
        if code >= 0:
            _add_score(code, total, weights[term], nodes, at, delta, extra, shapes.given[variant, term], cards)


@loop_function
def _sweep(
    shape: int, out: Any, every: Any, usable: Any, values: Any,
    static: Any, load: Any, at: Any, terms: Any, kinds: Any, shapes: Any,
) -> None:  # fmt: skip
    """Write the totals of all nodes into `out`."""
    base = shapes.bases[shapes.base[shape]]
    for first in range(0, len(base), CHUNK):
        last = min(first + CHUNK, len(base))
        for i in range(first, last):  # a loop, because numba needs seconds to compile the assignment of a slice
            out[i] = base[i]
        nodes = Stretch(static, load, values.free_milli[first:last], first, last, every[first:last])
        least = values.least_free[:, first // CHUNK]
        _add_up(shape, out[first:last], usable, least, nodes, static, load, at, terms, kinds, shapes)


@loop_function
def _gather_cards(
    card_id: int, rows: Any, near_static: Any, near_load: Any, static: Any, load: Any, at: Any, cards: Any
) -> None:
    """Copy the facts of GPUs that `keep_out_without_cards` reads for a demand."""
    for card in range(at.cards):
        for i in range(len(rows)):
            near_load[at.card_milli_free + card, i] = load[at.card_milli_free + card, rows[i]]
        if cards.milli[card_id] < WHOLE_CARD_MILLI:
            for i in range(len(rows)):
                near_load[at.card_memory_free + card, i] = load[at.card_memory_free + card, rows[i]]
        if cards.milli[card_id] < WHOLE_CARD_MILLI or cards.memory[card_id] > 0:
            for i in range(len(rows)):
                near_static[at.card_memory + card, i] = static[at.card_memory + card, rows[i]]
        if cards.cores[card_id] > 0:
            for i in range(len(rows)):
                near_static[at.card_cores + card, i] = static[at.card_cores + card, rows[i]]
        if cards.vendor[card_id] != UNKNOWN:
            for i in range(len(rows)):
                near_static[at.card_vendor + card, i] = static[at.card_vendor + card, rows[i]]
        if cards.choosy[card_id]:
            for i in range(len(rows)):
                near_static[at.card_model + card, i] = static[at.card_model + card, rows[i]]


@loop_function
def _update_totals(
    shape: int, changed: Any, totals: Any, greatest: Any, scratch: Any, values: Any,
    static: Any, load: Any, at: Any, terms: Any, kinds: Any, shapes: Any,
) -> None:  # fmt: skip
    """Update the cached totals of a shape on the `changed` rows, and the maximum of each block."""
    rows, total, usable = scratch.rows, scratch.total, scratch.usable
    near_free_milli, near_static, near_load = scratch.free_milli, scratch.static, scratch.load
    base, kind, delta = shapes.bases[shapes.base[shape]], shapes.kind[shape], shapes.delta[shape]
    least = values.least_free[:, values.least_free.shape[1] - 1]
    done = 0
    while done < len(changed):
        count = 0
        while done < len(changed) and count < CHUNK:
            row = changed[done]
            rows[count], total[count] = row, base[row]
            count += int(base[row] > NOWHERE)
            done += 1
        for k in range(len(terms.static)):
            for i in range(count):
                near_static[terms.static[k], i] = static[terms.static[k], rows[i]]
        for k in range(len(terms.load)):
            for i in range(count):
                near_load[terms.load[k], i] = load[terms.load[k], rows[i]]
        if shapes.extra[shape].any():
            for k in range(at.measured, at.measured + 4):
                for i in range(count):
                    near_static[k, i] = static[k, rows[i]]
        if terms.cards:
            for i in range(count):
                near_free_milli[i] = values.free_milli[rows[i]]
        if terms.each_card:
            for i in range(count):
                with_cards = static[at.cards_healthy, rows[i]] > 0
                for k in range(at.card_milli_free, at.card_milli_free + at.cards):
                    near_load[k, i] = load[k, rows[i]] if with_cards else 0
        for k in range(kinds.needs_start[kind], kinds.needs_start[kind + 1]):
            resource = kinds.needs[k]
            if resource > 1 and delta[at.requested + resource] > least[resource]:
                for i in range(count):
                    near_static[at.allocatable + resource, i] = static[at.allocatable + resource, rows[i]]
                    near_load[at.requested + resource, i] = load[at.requested + resource, rows[i]]
        if shapes.cards.number[shapes.card[shape]] > 0:
            _gather_cards(shapes.card[shape], rows[:count], near_static, near_load, static, load, at, shapes.cards)
        nodes = Stretch(near_static, near_load, near_free_milli, 0, count, rows)
        _add_up(shape, total[:count], usable, least, nodes, static, load, at, terms, kinds, shapes)
        for i in range(count):
            block = rows[i] // BLOCK
            before = totals[rows[i]]
            totals[rows[i]] = total[i]
            if total[i] >= greatest[block]:
                greatest[block] = total[i]
            elif before == greatest[block]:
                _set_greatest(greatest, block, totals)


@loop_function
def _first_best(totals: Any, greatest: Any) -> int:
    """Return the first row with the greatest total; `greatest` holds the maximum of each block of rows."""
    block = 0
    for i in range(1, len(greatest)):
        if greatest[i] > greatest[block]:
            block = i
    best, row = greatest[block], block * BLOCK
    while totals[row] != best:
        row += 1
    return row


@loop_function
def _drawn(totals: Any, best: float, draw: Any) -> int:
    """Return the row that the random number `draw` selects among all rows with the greatest total."""
    equal = 0
    for row in range(len(totals)):
        if totals[row] == best:
            equal += 1
    skip = draw % np.uint64(equal)
    for row in range(len(totals)):
        if totals[row] == best:
            if skip == 0:
                return row
            skip -= np.uint64(1)
    return -1


@loop_function
def _note_best(
    p: int, shape: int, totals: Any, greatest: Any, scratch: Any, values: Any,
    static: Any, load: Any, at: Any, terms: Any, shapes: Any, decided: Any,
) -> None:  # fmt: skip
    """Write the rows with the highest totals of pod `p`, with the unweighted score of each term, into `decided`."""
    rows, best_totals = decided.best_rows[p], decided.best_totals[p]
    found = 0
    while found < len(rows):
        row = _first_best(totals, greatest)
        if totals[row] == NOWHERE:
            break
        rows[found], best_totals[found] = row, totals[row]
        found += 1
        totals[row] = NOWHERE
        _set_greatest(greatest, row // BLOCK, totals)
    for k in range(found):
        totals[rows[k]] = best_totals[k]
    one = scratch.total[:1]
    for k in range(found):
        row = rows[k]
        _set_greatest(greatest, row // BLOCK, totals)
        nodes = Stretch(static, load, values.free_milli[row : row + 1], row, row + 1, scratch.every[row : row + 1])
        if shapes.cards.number[shapes.card[shape]] > 0:
            keep_out_without_cards(one, scratch.usable, shapes.card[shape], nodes, at, shapes.cards)
        for term in range(len(terms.weight)):
            if terms.weight[term] > 0:
                one[0] = -0.0  # the sum of -0.0 and a score is the score, even if it is -0.0
                _add_scores(
                    shape, term, term + 1, scratch.ones, one, scratch.usable, nodes, static, load, at, terms, shapes
                )
                decided.best_scores[p, k, term] = one[0]


@loop_function
def _place(
    pods: Any, stops: Any, draws: Any, static: Any, load: Any, at: Any, terms: Any, kinds: Any, shapes: Any, kept: Any,
    values: Any, scratch: Any, log: Any, logged: int, decided: Any,
) -> tuple[int, int]:  # fmt: skip
    """Place pods one after the other; return how many were decided and the new length of the log.

    Array shapes: `pods` (P,) ids of pod shapes; `stops` (P,) True if a pod that fits nowhere ends the run undecided;
    `draws` (P,) uint64, empty if ties are broken by name; `log` int64 with space for P more rows.
    """
    pods, stops, draws, static, load = borrowed((pods, stops, draws, static, load))
    terms, kinds, shapes, kept, values = borrowed((terms, kinds, shapes, kept, values))
    scratch, log, decided = borrowed((scratch, log, decided))
    nodes = load.shape[1]
    every, usable = scratch.every, scratch.usable
    if values.seen[0] < 0:
        for row in range(nodes):
            _refresh(row, values, static, load, at, terms)
    else:
        for i in range(values.seen[0], logged):
            _refresh(log[i], values, static, load, at, terms)
    for p in range(len(pods)):
        shape = pods[p]
        slot = shapes.slot[shape]
        totals, greatest, since = scratch.totals, scratch.greatest, -1
        if slot >= 0:
            totals, greatest, since = kept.totals[slot], kept.greatest[slot], kept.seen[slot]
            kept.seen[slot] = logged
        if since < 0:
            totals[nodes:] = NOWHERE
        if since < 0 or (logged - since) * _SWEEP_SHARE > nodes:
            candidates = shapes.candidates[shapes.base[shape]]
            if candidates * SPARSE < nodes:
                totals[:] = NOWHERE
                greatest[:] = NOWHERE
                rows = shapes.candidate_rows[shapes.base[shape], :candidates]
                _update_totals(shape, rows, totals, greatest, scratch, values, static, load, at, terms, kinds, shapes)
            else:
                _sweep(shape, totals, every, usable, values, static, load, at, terms, kinds, shapes)
                for block in range(len(greatest)):
                    _set_greatest(greatest, block, totals)
        elif since < logged:
            changed = log[since:logged]
            _update_totals(shape, changed, totals, greatest, scratch, values, static, load, at, terms, kinds, shapes)
        row = _first_best(totals, greatest)
        best = totals[row]
        if best == NOWHERE:
            if stops[p]:
                values.seen[0] = logged
                return p, logged
            decided.row[p] = -1
            continue
        if len(draws):
            row = _drawn(totals[:nodes], best, draws[p])
        decided.row[p], decided.total[p] = row, best
        _note_best(p, shape, totals, greatest, scratch, values, static, load, at, terms, shapes, decided)
        if shapes.cards.number[shapes.card[shape]] > 0:
            only = np.zeros(1)
            node = Stretch(static, load, values.free_milli, row, row + 1, every[row : row + 1])
            keep_out_without_cards(only, usable, shapes.card[shape], node, at, shapes.cards)
            decided.cards[p] = take_cards(shapes.card[shape], row, usable[0], static, load, at, shapes.cards)
        kind = shapes.kind[shape]
        for k in range(kinds.adds_start[kind], kinds.adds_start[kind + 1]):
            load[kinds.adds[k], row] += shapes.delta[shape, kinds.adds[k]]
        for i in range(4):
            load[at.used + i, row] += static[at.measured + i, row] * shapes.extra[shape, i]
        _refresh(row, values, static, load, at, terms)
        log[logged] = row
        logged += 1
    values.seen[0] = logged
    return len(pods), logged


class Loop(NamedTuple):
    """The compiled loop with the formulas of a registry; `kept` is true if its machine code is cached on disk."""

    place: Any
    kept: bool
    codes: dict[Formula, int]


def loop_of(formulas: tuple[Formula, ...]) -> Loop:
    """Return the loop with these formulas; it is compiled, or read from the cache, at its first call."""
    found = _LOOPS.get(formulas)
    if found is None:
        linker = Linker()
        dispatcher = _dispatcher([linker.link(formula, inline=True) for formula in formulas])
        linker.replace(_add_score, dispatcher, formulas)
        place, kept = compile_cached(linker.linked(_place))
        found = _LOOPS[formulas] = Loop(place, kept, {formula: code for code, formula in enumerate(formulas)})
    return found


_LOOPS: dict[tuple[Formula, ...], Loop] = {}


def _dispatcher(formulas: Sequence[Any]) -> Any:
    """Return an `_add_score` that calls the formula with the given number.

    Its source is generated. The alternative, a chain of functions that each compare one number, passes all arrays in
    every call; with it, the loop took 4.0 us per pod of a recurring shape instead of 3.2 us.
    """
    parameters = "total, weight, nodes, at, delta, extra, given, cards"
    lines = [f"def add_score(code, {parameters}):", "    pass"]
    for code in range(len(formulas)):
        lines += [f"    if code == {code}:", f"        formula_{code}({parameters})"]
    names = {f"formula_{code}": formula for code, formula in enumerate(formulas)}
    exec("\n".join(lines), names)  # noqa: S102 - the text contains only numbers and the names above
    return names["add_score"]


KEPT = loop_of(()).kept
