"""Upper bounds of the members of a gang that the cluster can hold, by amounts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Ints
from hetsched.engine.cluster.state import ClusterState

from .gangs import GangMembers


def room_for(group: GangMembers, state: ClusterState, *, empty: bool = False) -> int:
    """Return an upper bound of the members that could be booked, by free (or, if `empty`, all) amounts alone.

    Members of one shape are counted by whole pods per node, different shapes as if they did not compete: the result is
    never too low, and exact for one shape if only amounts decide.
    """
    shapes = {id(pod.shape): pod.shape for pod in group.members.values()}
    by_identity = Counter(id(pod.shape) for pod in group.members.values())  # most members share one object
    counts: Counter[Shape] = Counter()
    for key, count in by_identity.items():
        counts[shapes[key]] += count
    return sum(min(count, _slots(shape, state, empty=empty)) for shape, count in counts.items())


def _slots(shape: Shape, state: ClusterState, *, empty: bool) -> int:
    """Return how many pods of one shape fit the free (or all) amounts of all nodes, without other pods."""
    nodes = state.all_rows
    slots: Ints = np.full(nodes.n, np.iinfo(np.int64).max // max(nodes.n, 1), np.int64)
    for name, need in shape.requests:
        if not need or (shape.gpu is not None and name in GPU_RESOURCES):
            continue
        row = state.resources.index.get(name)
        if row is None:
            return 0
        free = nodes.static("allocatable")[row]
        if not empty:
            free = free - nodes.load("requested")[row]
        np.minimum(slots, np.maximum(free, 0) // need, out=slots)
    if shape.gpu is not None:
        there = nodes.static("card_milli") + nodes.static("card_resting")
        cards = there if empty else nodes.load("card_milli_free")
        if shape.gpu.milli < WHOLE_CARD_MILLI:
            fit = (np.maximum(cards, 0) // shape.gpu.milli).sum(axis=0)
        else:
            fit = (cards >= WHOLE_CARD_MILLI).sum(axis=0) // shape.gpu.count
        np.minimum(slots, fit, out=slots)
    return int(slots.sum())


def short_of(least: Sequence[tuple[str, int]], state: ClusterState, *, empty: bool = False) -> tuple[str, ...]:
    """Return the resources of which the whole cluster has less free (less in total if `empty`) than `least`."""
    nodes = state.all_rows
    short = []
    for name, amount in least:
        row = state.resources.index.get(name)
        if name in GPU_RESOURCES:  # GPUs may be known from a NodeGpu alone, without an allocatable
            vendor = state.vendors.index.get(name.split(".", 1)[0], 0)
            vendors = nodes.static("card_vendor")
            cards = nodes.static("card_milli") + nodes.static("card_resting")
            there = cards if empty else nodes.load("card_milli_free")
            # A GPU of unknown vendor (0) may be of any.
            has = int(((there >= WHOLE_CARD_MILLI) & ((vendors == vendor) | (vendors == 0))).sum())
        elif row is None:
            has = 0
        else:
            there = nodes.static("allocatable")[row]
            if not empty:
                there = np.maximum(there - nodes.load("requested")[row], 0)
            has = sum(there.tolist())  # Python's integers: nodes without a maximum number of pods overflow 64 bits
        if has < amount:
            short.append(name)
    return tuple(short)
