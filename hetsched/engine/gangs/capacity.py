"""Capacity of a cluster for the members of a gang, as upper bounds by free or total amounts.

Devices that serve an extended resource on the nodes without a device plugin are not counted: there, the resource does
not limit the capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Ints
from hetsched.engine.cluster.devices.extended_resources import nodes_without_plugin, served_resources
from hetsched.engine.cluster.state import ClusterState


def slots_for(members: Iterable[PodSpec], state: ClusterState, *, empty: bool = False) -> int:
    """Return an upper bound on the number of members that fit the nodes' free amounts (if `empty`, total amounts).

    Members of one shape are counted in whole pods per node; different shapes are counted as if they did not compete.
    The result is never too low, and is exact for one shape if no filter checks more than amounts.
    """
    counts = members_by_shape(members)
    return sum(min(count, int(node_slots(shape, state, empty=empty).sum())) for shape, count in counts.items())


def members_by_shape(members: Iterable[PodSpec]) -> Counter[Shape]:
    """Return the number of members of each shape."""
    shapes: dict[int, Shape] = {}
    by_identity: Counter[int] = Counter()  # most members share one Shape object
    for pod in members:
        shapes[id(pod.shape)] = pod.shape
        by_identity[id(pod.shape)] += 1
    counts: Counter[Shape] = Counter()
    for key, count in by_identity.items():
        counts[shapes[key]] += count
    return counts


def node_slots(shape: Shape, state: ClusterState, *, empty: bool = False) -> Ints:
    """Return (N,) how many pods of one shape fit each node by free amounts (if `empty`, by total amounts)."""
    nodes = state.all_rows
    slots: Ints = np.full(nodes.n, np.iinfo(np.int64).max // max(nodes.n, 1), np.int64)
    served = served_resources(shape, state.devices.known)
    limited: dict[str, Bools] = {name: ~nodes_without_plugin(name, state) for name in served}
    for name, need in shape.requests:
        if not need or (shape.gpu is not None and name in GPU_RESOURCES):
            continue
        row = state.resources.index.get(name)
        if row is None:
            if name in limited:
                continue
            return np.zeros(nodes.n, np.int64)
        free = nodes.static("allocatable")[row]
        if not empty:
            free = free - nodes.load("requested")[row]
        np.minimum(slots, np.maximum(free, 0) // need, out=slots, where=limited.get(name, True))
    if shape.gpu is not None:
        there = nodes.static("card_milli") + nodes.static("card_resting")
        cards = there if empty else nodes.load("card_milli_free")
        if shape.gpu.milli < WHOLE_CARD_MILLI:
            fit = (np.maximum(cards, 0) // shape.gpu.milli).sum(axis=0)
        else:
            fit = (cards >= WHOLE_CARD_MILLI).sum(axis=0) // shape.gpu.count
        gpu = next((name for name in limited if name in GPU_RESOURCES), "")
        np.minimum(slots, fit, out=slots, where=limited.get(gpu, True))
    return slots


def missing_resources(least: Sequence[tuple[str, int]], state: ClusterState, *, empty: bool = False) -> tuple[str, ...]:
    """Return the resources whose free amount in the cluster is less than `least` requires; if `empty`, whose total is
    less.
    """
    nodes = state.all_rows
    short = []
    for name, amount in least:
        if state.devices.known.class_of(name):
            continue
        row = state.resources.index.get(name)
        if name in GPU_RESOURCES:  # GPUs may be known from a NodeGpu only, without an allocatable amount
            vendor = state.vendors.index.get(name.split(".", 1)[0], 0)
            vendors = nodes.static("card_vendor")
            cards = nodes.static("card_milli") + nodes.static("card_resting")
            there = cards if empty else nodes.load("card_milli_free")
            # A GPU of unknown vendor (0) may be of any vendor.
            has = int(((there >= WHOLE_CARD_MILLI) & ((vendors == vendor) | (vendors == 0))).sum())
        elif row is None:
            has = 0
        else:
            there = nodes.static("allocatable")[row]
            if not empty:
                there = np.maximum(there - nodes.load("requested")[row], 0)
            has = sum(there.tolist())  # Python integers: many nodes with UNLIMITED pods overflow 64 bits
        if has < amount:
            short.append(name)
    return tuple(short)
