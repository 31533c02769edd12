"""Arrays that the compiled loop reads and writes, apart from the columns of the cluster.

`plans` fills the arrays of a policy, `kernel` runs on them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, Floats, Ints

from .terms import NOWHERE, GpuDemands

BLOCK = 64
# Number of nodes for which the columns that are used together fit the L1 cache. It is not a power of two, so that these
# columns do not evict each other.
CHUNK = 504
# If fewer than one node in SPARSE is a candidate, the loop gathers the candidates instead of sweeping over all nodes.
SPARSE = 3


class Terms(NamedTuple):
    """The plugins with formulas, in policy order: their weights, the field rows they read, the value of each GPU."""

    weight: Floats  # 0 for a filter
    static: Ints
    load: Ints
    cards: bool  # whether a formula reads the sum of a node's free milli-GPUs
    each_card: bool  # whether a formula reads the free milli-GPUs of single GPUs
    card_worth: Floats  # (G, N)


class RequestKinds(NamedTuple):
    """Kinds of shapes: shapes of one kind request the same resources and change the same load rows.

    K kinds. Kind k has the resources `needs[needs_start[k] : needs_start[k + 1]]`; `adds` lists load rows in the same
    way.
    """

    needs_start: Ints  # (K + 1,)
    needs: Ints  # resources that must fit
    adds_start: Ints  # (K + 1,)
    adds: Ints  # load rows


class Shapes(NamedTuple):
    """The loop's data of every shape, by position and by the ids that shapes share.

    Array shapes: C pod shapes, L load rows, B bases, N nodes, V variants, T terms.
    """

    kind: Ints  # (C,) -1 where the loop cannot place the shape
    base: Ints  # (C,)
    variant: Ints  # (C,)
    card: Ints  # (C,)
    slot: Ints  # (C,) row of the cached totals, -1 for none
    delta: Ints  # (C, L)
    extra: Ints  # (C, 4)
    bases: Floats  # (B, N) static totals, -inf where a STATIC filter refuses
    candidates: Ints  # (B,) number of nodes that pass the STATIC filters
    candidate_rows: Ints  # (B, N) rows of these nodes, if they are few (`SPARSE`)
    code: Ints  # (V, T) formula, -1 if the plugin skips the shape
    given: Floats  # (V, T, MOST_NUMBERS)
    cards: GpuDemands


class ShapeTotals(NamedTuple):
    """Cached totals of recurring shapes. Array shapes: Q cached pod shapes, N nodes rounded up to whole blocks."""

    totals: Floats  # (Q, N)
    greatest: Floats  # (Q, N / BLOCK)
    seen: Ints  # (Q,) length of the log at the last update, -1 for never


class NodeValues(NamedTuple):
    """Values of the nodes that do not depend on a shape, cached for all shapes. Array shapes: N nodes, R resources.

    `least_free[r, c]` is at most the free amount of resource r on every node of chunk c; the last column applies to all
    nodes. It does not rise when a node gets more free capacity.
    """

    free_milli: Ints  # (N,) sum of the free milli-GPUs of the node's healthy GPUs, 0 if no formula reads it
    least_free: Ints  # (R, chunks + 1)
    seen: Ints  # (1,) length of the log at the last update, -1 for never


class Scratch(NamedTuple):
    """Memory for intermediate results. Array shapes: N nodes, M rows of the static block, L of the load block,
    T terms.
    """

    every: Ints  # (N,) the rows of all nodes
    totals: Floats  # (N rounded up to whole blocks,) of a shape whose totals are not cached
    greatest: Floats  # maximum of each block of `totals`
    ones: Floats  # (T,) weights of 1 for all terms
    rows: Ints  # this field and all that follow hold one chunk of nodes
    total: Floats
    usable: Ints  # GPUs as bit sets
    free_milli: Ints
    static: Ints  # (M, chunk)
    load: Ints  # (L, chunk)


def new_scratch(static_rows: int, load_rows: int, nodes: int, terms: int) -> Scratch:
    """Return the memory that the loop needs for a cluster."""
    width = -(-nodes // BLOCK)
    return Scratch(
        np.arange(nodes),
        np.full(width * BLOCK, NOWHERE),
        np.empty(width),
        np.ones(terms),
        rows=np.zeros(CHUNK, np.int64),
        total=np.zeros(CHUNK),
        usable=np.zeros(CHUNK, np.int64),
        free_milli=np.zeros(CHUNK, np.int64),
        static=np.zeros((static_rows, CHUNK), np.int64),
        load=np.zeros((load_rows, CHUNK), np.int64),
    )


class BatchDecisions(NamedTuple):
    """Output of the loop for each pod: its node's row (-1 if not placed), that row's total, its GPUs as a bit set.

    `best_rows` are the rows with the highest totals before the pod was placed, with their totals and the score of each
    term. Array shapes: P pods, K best rows, T terms.
    """

    row: Ints  # (P,)
    total: Floats  # (P,)
    cards: Ints  # (P,)
    best_rows: Ints  # (P, K), best first, ties by row; -1 after the last feasible row
    best_totals: Floats  # (P, K)
    best_scores: Floats  # (P, K, T), without weights; 0 for filters and for terms that skip the pod


def no_decisions(pods: int, best: int, terms: int) -> BatchDecisions:
    """Return the memory for the decisions of `pods` pods, each with its `best` best rows."""
    return BatchDecisions(
        np.empty(pods, np.int64),
        np.zeros(pods),
        np.zeros(pods, np.int64),
        np.full((pods, best), UNKNOWN, np.int64),
        np.zeros((pods, best)),
        np.zeros((pods, best, terms)),
    )


def chunks(nodes: int) -> int:
    """Return the number of chunks in which a sweep passes over all nodes."""
    return -(-nodes // CHUNK)
