"""The formulas of LOAD plugins for the compiled loop: one small function per plugin.

The NumPy path costs about a microsecond per operation and forty operations per decision; the arithmetic itself takes a
few nanoseconds per node. A term adds `weight * score` to the totals of a stretch of nodes. Loops run over whole
columns without branches, so that the compiler emits vector instructions; excluded rows hold -inf and keep it. A new
term is a function of the same signature, a branch in `add_score` and an entry in `formulas.TERMS`.
Invariants: every total equals the NumPy path's, bit for bit: same integers, same floating-point operations in the same
order. That path is the oracle, in tests and in `hetsched bench engine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI, Ints

from .machine_code import compiled

LEAST_ALLOCATED, BALANCED_ALLOCATION, TIGHTEST_FIT, NASH_GAIN, GPU_HEADROOM, IHEP_CPU, IHEP_GPU = range(7)
NOWHERE = -np.inf
_ROUNDING = 1.5 * 2.0**52
GIVEN = 8
"""How many numbers a term may be given per shape."""


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
    """Nodes side by side: columns `first` to `last` of two blocks, and which rows of the cluster they are."""

    static: Ints
    load: Ints
    first: int
    last: int
    rows: Ints


class GpuDemands(NamedTuple):
    """GPU demands. Shapes: C different demands, M models."""

    number: Ints  # (C,)
    milli: Ints
    memory: Ints  # MiB, 0 for none
    cores: Ints
    vendor: Ints  # id, -1 for any
    choosy: Any  # (C,) bool, whether only some models are accepted
    models: Any  # (C, M) bool


@compiled
def add_score(
    code: int, total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    """Add one plugin's weighted score to `total` (n,); `cards` holds the usable GPUs and their value."""
    if code == LEAST_ALLOCATED:
        _least_allocated(total, weight, nodes, at, delta, given)
    elif code == BALANCED_ALLOCATION:
        _balanced_allocation(total, weight, nodes, at, delta)
    elif code == TIGHTEST_FIT:
        _tightest_fit(total, weight, nodes, at, given)
    elif code == NASH_GAIN:
        _nash_gain(total, weight, nodes, at, delta, extra, given)
    elif code == GPU_HEADROOM:
        _gpu_headroom(total, weight, nodes, at, delta, given)
    elif code == IHEP_CPU:
        _ihep_cpu(total, weight, nodes, at, delta, given)
    else:
        _ihep_gpu(total, weight, nodes, at, given, cards)


@compiled
def hundredth(part: int, whole: int) -> int:
    """Return 100 * part // whole for whole > 0 without an integer division, which has no vector instruction.

    The floating-point quotient is off by one at most, which the remainder shows.
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


@compiled
def _utility(use: Any, room: Any, has: Any, count: float) -> tuple[float, float]:
    """Return 1 - variance and mean of the used shares of four resources; `has` is 0 for one that a node lacks."""
    share_a, share_b = min(use[0] / room[0], 1.0) * has[0], min(use[1] / room[1], 1.0) * has[1]
    share_c, share_d = min(use[2] / room[2], 1.0) * has[2], min(use[3] / room[3], 1.0) * has[3]
    mean = (share_a + share_b + share_c + share_d) / count
    spread = (share_a - mean) * (share_a - mean) * has[0]
    spread += (share_b - mean) * (share_b - mean) * has[1]
    spread += (share_c - mean) * (share_c - mean) * has[2]
    spread += (share_d - mean) * (share_d - mean) * has[3]
    return 1.0 - spread / count, mean


@compiled
def _gain(use: Any, more: Any, room: Any, has: Any, count: float, scale: float) -> float:
    before, _ = _utility(use, room, has, count)
    loaded = use[0] + more[0], use[1] + more[1], use[2] + more[2], use[3] + more[3]
    after, mean = _utility(loaded, room, has, count)
    # Adding and subtracting 1.5 * 2^52 rounds to the nearest whole number, halves to even, as rint does.
    steps = ((after / before - 1.0) * 1e9 + _ROUNDING) - _ROUNDING
    return min(max(50.0 + (steps - 0.25 * mean) * 1e-9 * scale, 0.0), 100.0)


@compiled
def _nash_gain(total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any) -> None:
    """Add the score of nash-gain.

    Given: the rows of the four resources in `allocatable`, -1 for none; 50 / full gain; 1 if all nodes have all.
    """
    scale = given[4]
    known_a, known_b, known_c, known_d = given[0] >= 0, given[1] >= 0, given[2] >= 0, given[3] >= 0
    in_a = nodes.static[at.allocatable + max(int(given[0]), 0), nodes.first : nodes.last]
    in_b = nodes.static[at.allocatable + max(int(given[1]), 0), nodes.first : nodes.last]
    in_c = nodes.static[at.allocatable + max(int(given[2]), 0), nodes.first : nodes.last]
    in_d = nodes.static[at.allocatable + max(int(given[3]), 0), nodes.first : nodes.last]
    used_a = nodes.load[at.used, nodes.first : nodes.last]
    used_b = nodes.load[at.used + 1, nodes.first : nodes.last]
    used_c = nodes.load[at.used + 2, nodes.first : nodes.last]
    used_d = nodes.load[at.used + 3, nodes.first : nodes.last]
    measured_a = nodes.static[at.measured, nodes.first : nodes.last]
    measured_b = nodes.static[at.measured + 1, nodes.first : nodes.last]
    measured_c = nodes.static[at.measured + 2, nodes.first : nodes.last]
    measured_d = nodes.static[at.measured + 3, nodes.first : nodes.last]
    add_a, add_b, add_c, add_d = delta[at.used], delta[at.used + 1], delta[at.used + 2], delta[at.used + 3]
    extra_a, extra_b, extra_c, extra_d = extra[0], extra[1], extra[2], extra[3]
    if given[5] == 1.0:
        # Every node has all four: as constants, they let the compiler remove most of the work.
        for i in range(len(total)):
            use = max(used_a[i], 0), max(used_b[i], 0), max(used_c[i], 0), max(used_d[i], 0)
            more = (
                add_a + measured_a[i] * extra_a, add_b + measured_b[i] * extra_b,
                add_c + measured_c[i] * extra_c, add_d + measured_d[i] * extra_d,
            )  # fmt: skip
            room = in_a[i], in_b[i], in_c[i], in_d[i]
            total[i] += weight * _gain(use, more, room, (1.0, 1.0, 1.0, 1.0), 4.0, scale)
        return
    for i in range(len(total)):
        use = max(used_a[i], 0), max(used_b[i], 0), max(used_c[i], 0), max(used_d[i], 0)
        more = (
            add_a + measured_a[i] * extra_a, add_b + measured_b[i] * extra_b,
            add_c + measured_c[i] * extra_c, add_d + measured_d[i] * extra_d,
        )  # fmt: skip
        room = max(in_a[i], 1), max(in_b[i], 1), max(in_c[i], 1), max(in_d[i], 1)
        has_a, has_b = np.float64((in_a[i] > 0) & known_a), np.float64((in_b[i] > 0) & known_b)
        has_c, has_d = np.float64((in_c[i] > 0) & known_c), np.float64((in_d[i] > 0) & known_d)
        count = max(has_a + has_b + has_c + has_d, 1.0)
        total[i] += weight * _gain(use, more, room, (has_a, has_b, has_c, has_d), count, scale)


@compiled
def _stranded(left: float, gpus: float, mean: float) -> float:
    return min(max(gpus - left / mean, 0.0), gpus)


@compiled
def _gpu_headroom(total: Any, weight: float, nodes: Any, at: Any, delta: Any, given: Any) -> None:
    """Add the score of gpu-headroom.

    Given: CPU and memory per GPU, 0 for none; tightness by CPU; number of requested GPUs; points per GPU.
    """
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    cpu, memory = float(delta[at.requested]), float(delta[at.requested + 1])
    cpu_mean, memory_mean, tightness, taken, points = given[0], given[1], given[2], given[3], given[4]
    free_milli = np.zeros(len(total), np.int64)
    for card in range(at.cards):
        card_free = nodes.load[at.card_milli_free + card, nodes.first : nodes.last]
        for i in range(len(total)):
            free_milli[i] += max(card_free[i], 0)
    cost, free = np.zeros(len(total)), np.empty(len(total))
    for i in range(len(total)):
        free[i] = free_milli[i] / WHOLE_CARD_MILLI
    if taken > 0.0:
        if cpu_mean > 0.0:
            for i in range(len(total)):
                gpus = free[i]
                left = float(cpu_capacity[i] - cpu_used[i])
                after = _stranded(left - cpu, max(gpus - taken, 0.0), cpu_mean)
                cost[i] += after - _stranded(left, gpus, cpu_mean)
                cost[i] += tightness * max(left - cpu, 0.0)
        if memory_mean > 0.0:
            for i in range(len(total)):
                gpus = free[i]
                left = float(memory_capacity[i] - memory_used[i])
                after = _stranded(left - memory, max(gpus - taken, 0.0), memory_mean)
                cost[i] += after - _stranded(left, gpus, memory_mean)
    else:
        cpu, memory = cpu * (cpu_mean > 0.0), memory * (memory_mean > 0.0)
        for i in range(len(total)):
            left = float(cpu_capacity[i] - cpu_used[i])
            share = min(cpu / max(left, 1.0), 1.0)
            share = max(share, min(memory / max(float(memory_capacity[i] - memory_used[i]), 1.0), 1.0))
            cost[i] = tightness * max(left - cpu, 0.0) + share * free[i]
    for i in range(len(total)):
        total[i] += weight * min(max(50.0 - points * cost[i], 0.0), 100.0)


@compiled
def _ihep_cpu(total: Any, weight: float, nodes: Any, at: Any, delta: Any, given: Any) -> None:
    """Add the score of ihep for CPU pods.

    Given: the share of GPU nodes, the weights of CPU and memory, their sum.
    """
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    present = nodes.static[at.cards_present, nodes.first : nodes.last]
    cpu_used = nodes.load[at.nonzero, nodes.first : nodes.last]
    memory_used = nodes.load[at.nonzero + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.nonzero], delta[at.nonzero + 1]
    ratio, cpu_weight, memory_weight, weights = given[0], given[1], given[2], given[3]
    for i in range(len(total)):
        cpu_share = max(cpu_capacity[i] - cpu_used[i] - cpu, 0) / max(cpu_capacity[i], 1)
        memory_share = max(memory_capacity[i] - memory_used[i] - memory, 0) / max(memory_capacity[i], 1)
        spare = 100.0 * ((cpu_weight * cpu_share + memory_weight * memory_share) / weights)
        total[i] += weight * (ratio * spare if present[i] > 0 else 100.0 * ratio + (1.0 - ratio) * spare)


@compiled
def _part_of(asked: float, free: float) -> float:
    return min(asked / free, 1.0) if free > 0 else 0.0


@compiled
def _ihep_gpu(total: Any, weight: float, nodes: Any, at: Any, given: Any, cards: Any) -> None:
    """Add the score of ihep for GPU pods.

    Given: GPUs, MiB and cores per GPU, CPU cores, memory GiB; 1 for the product of quality and similarity.
    """
    usable, worth, static, load = cards
    for i in range(len(total)):
        if total[i] == NOWHERE:
            continue
        row, number, quality, memory_mib, cores = nodes.rows[i], 0, 0.0, 0, 0
        for card in range(at.cards):
            if usable[i] >> card & 1:
                number += 1
                quality += worth[card, row]
                memory_mib += load[at.card_memory_free + card, row]
                cores += max(static[at.card_cores + card, row], 0)
        some = max(number, 1)
        cpu = (static[at.allocatable, row] - load[at.requested, row]) / 1000
        memory = (static[at.allocatable + 1, row] - load[at.requested + 1, row]) / 2**30
        similar = _part_of(given[0], float(number)) + _part_of(given[1], memory_mib / some)
        similar += _part_of(given[2], cores / some)
        similar += _part_of(given[3], cpu)
        similar += _part_of(given[4], memory)
        counted = float((number > 0) + (memory_mib > 0) + (cores > 0) + (cpu > 0) + (memory > 0))
        similar /= max(counted, 1.0)
        card_quality = quality / some
        score = 50.0 * (card_quality + similar) if given[5] == 0 else 100.0 * card_quality * similar
        total[i] += weight * score


# -- exclusion of nodes: resource-fit and gpu-fit ---------------------------------------------------------------------


@compiled
def keep_out_full(total: Any, nodes: Any, at: Any, resource: int, need: int) -> None:
    """Set the totals of nodes without room for `need` of a resource to -inf."""
    capacity = nodes.static[at.allocatable + resource, nodes.first : nodes.last]
    requested = nodes.load[at.requested + resource, nodes.first : nodes.last]
    for i in range(len(total)):
        total[i] = NOWHERE if requested[i] + need > capacity[i] else total[i]


@compiled
def keep_out_without_cards(total: Any, usable: Any, card_id: int, nodes: Any, at: Any, cards: Any) -> None:
    """Write the usable GPUs of each node as a bit set, and set the totals of nodes with too few to -inf."""
    number, milli, memory = cards.number[card_id], cards.milli[card_id], cards.memory[card_id]
    cores, vendor, models = cards.cores[card_id], cards.vendor[card_id], cards.models[card_id]
    first, last = nodes.first, nodes.last
    usable[: len(total)] = 0
    left = np.zeros(len(total), np.int64)
    for card in range(at.cards):
        bit = np.int64(1) << card
        milli_free = nodes.load[at.card_milli_free + card, first:last]
        memory_free = nodes.load[at.card_memory_free + card, first:last]
        card_memory = nodes.static[at.card_memory + card, first:last]
        card_cores = nodes.static[at.card_cores + card, first:last]
        card_vendor = nodes.static[at.card_vendor + card, first:last]
        card_model = nodes.static[at.card_model + card, first:last]
        for i in range(len(total)):
            left[i] = bit if milli_free[i] >= milli else 0
        if milli < WHOLE_CARD_MILLI:
            for i in range(len(total)):
                left[i] = left[i] if memory_free[i] >= share_of_memory(card_memory[i], milli, memory) else 0
        if memory > 0:
            for i in range(len(total)):
                left[i] = left[i] if card_memory[i] >= memory else 0
        if cores > 0:
            for i in range(len(total)):
                left[i] = left[i] if card_cores[i] >= cores else 0
        if vendor != UNKNOWN:
            for i in range(len(total)):
                left[i] = left[i] if card_vendor[i] == vendor else 0
        if cards.choosy[card_id]:
            for i in range(len(total)):
                left[i] = left[i] if models[card_model[i]] else 0
        for i in range(len(total)):
            usable[i] |= left[i]
    for i in range(len(total)):
        found = 0
        for card in range(at.cards):
            found += usable[i] >> card & 1
        total[i] = NOWHERE if found < number else total[i]


@compiled
def share_of_memory(card_memory: int, milli: int, memory: int) -> int:
    """Return the memory charged for a share of a GPU: the requested memory, else a proportional part, rounded up."""
    part = np.int64(np.float64(max(card_memory, 0) * milli + 999) / 1000.0)
    return memory if memory > 0 else part  # type: ignore[return-value]


@compiled
def take_cards(card_id: int, row: int, usable: int, static: Any, load: Any, at: Any, cards: Any) -> int:
    """Charge those of the usable GPUs that gpu-fit would select, and return them as a bit set."""
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
