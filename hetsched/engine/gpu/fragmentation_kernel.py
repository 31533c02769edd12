"""Compiled arithmetic of `fragmentation`.

Plain loops over rows, GPUs and shapes of the mix; of equal GPUs of a node, only one is evaluated. `_lost`, which
computes F of one row, is inlined into its callers, because passing arrays costs more than its loop.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI
from hetsched.engine.jit import njit


@njit(inline="always")
def _lost(
    cards: Any, row: int, models: Any, room: Any, needs: Any, count: Any, milli: Any, accepted: Any, share: Any
) -> float:
    total = 0
    for card in range(len(cards)):
        total += cards[card]
    lost = 0.0
    if total > 0:
        for shape in range(len(share)):
            fits = count[shape] > 0
            if fits:
                for k in range(len(room)):
                    if needs[shape, k] > 0 and room[k] < needs[shape, k]:
                        fits = False
                        break
            stranded, usable = 0, 0
            if fits:
                for card in range(len(cards)):
                    if cards[card] >= milli[shape] and accepted[shape, models[card, row]]:
                        usable += 1
                    else:
                        stranded += cards[card]
            lost += share[shape] * (stranded if fits and usable >= count[shape] else total)
    return lost


@njit(cache=True)
def fragments(
    free: Any, models: Any, left: Any, needs: Any, count: Any, milli: Any, accepted: Any, share: Any, out: Any
) -> None:
    """Write F of every row into `out` (n,); shapes as in `fragmentation.DemandMix`."""
    cards, room = np.empty(free.shape[0], np.int64), np.empty(left.shape[0], np.int64)
    for row in range(free.shape[1]):
        for card in range(len(cards)):
            cards[card] = free[card, row]
        for k in range(len(room)):
            room[k] = left[k, row]
        out[row] = _lost(cards, row, models, room, needs, count, milli, accepted, share)


@njit(cache=True)
def gains(
    free: Any, models: Any, left: Any, usable: Any, asked: Any, asked_count: int, asked_milli: int, needs: Any,
    count: Any, milli: Any, accepted: Any, share: Any, fill: Any, published: bool, gain: Any, chosen: Any,
) -> None:  # fmt: skip
    """Write each row's best gain to `gain`, 0 if the pod does not fit.

    For a shared pod, write the index of the first GPU with this gain to `chosen`.
    """
    cards, room = np.empty(free.shape[0], np.int64), np.empty(left.shape[0], np.int64)
    shared = asked_count == 1 and asked_milli < WHOLE_CARD_MILLI
    for row in range(free.shape[1]):
        for card in range(len(cards)):
            cards[card] = free[card, row]
        fits, takes = True, 0
        for card in range(len(cards)):
            takes += usable[card, row]
        for k in range(len(room)):
            room[k] = left[k, row]
            fits = fits and (asked[k] <= 0 or room[k] >= asked[k])
        if not fits or takes < asked_count:
            gain[row] = 0.0  # callers ignore infeasible rows
            continue
        before = _lost(cards, row, models, room, needs, count, milli, accepted, share)
        for k in range(len(room)):
            room[k] -= asked[k]
        best = -math.inf
        # For a shared pod, try every GPU that differs from those before it. For any other pod, there is only one
        # placement to try.
        for way in range(len(cards) if shared else 1):
            filled = 0.0
            if shared:
                if not usable[way, row]:
                    continue
                known = False
                for card in range(way):
                    if usable[card, row] and cards[card] == cards[way] and models[card, row] == models[way, row]:
                        known = True
                        break
                if known:
                    continue
                cards[way] -= asked_milli
                filled = fill[cards[way] + asked_milli] - fill[cards[way]]
            else:
                taken = 0
                for card in range(len(cards)):
                    if taken < asked_count and usable[card, row]:
                        cards[card] -= asked_milli
                        filled += fill[cards[card] + asked_milli] - fill[cards[card]]
                        taken += 1
            found = before - _lost(cards, row, models, room, needs, count, milli, accepted, share) + filled
            if published:
                found = math.floor(100.0 / (1.0 + math.exp(-found / 1000.0)))
            if found > best:
                best = found
                if shared:
                    chosen[row] = way
            if shared:
                cards[way] += asked_milli
        gain[row] = best
