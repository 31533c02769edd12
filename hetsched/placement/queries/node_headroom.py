"""Headroom of one node: how many more copies of common shapes fit, and which resource runs out first.

The engine counts the copies that fit in addition to all reservations, on the scheduler cache and under the cluster's
policy. The assumed copies are removed before the lock on the cache is released. Nothing is written.
"""

from __future__ import annotations

import msgspec

from hetsched.engine.simulation.node_capacity import NodeCapacity, node_capacity
from hetsched.inventory.models import Cluster
from hetsched.placement.scheduler_cache import cache_of

from .common_shapes import CommonShape, common_shapes

MOST_COPIES = 200


class ShapeHeadroom(msgspec.Struct, frozen=True):
    """One common shape and its headroom on a node."""

    common: CommonShape
    room: NodeCapacity


def headroom_on(cluster: Cluster, node_name: str) -> list[ShapeHeadroom]:
    """Return the headroom of every common shape on a node; nothing if no policy is active or the node is unknown."""
    shapes = common_shapes(cluster.pk)
    copy = cache_of(cluster.pk)
    with copy.locked_snapshot() as loaded:
        policy = copy.default_policy()
        row = loaded.state.row_of.get(node_name)
        if policy is None or row is None:
            return []
        scheduler = copy.scheduler(policy.spec)
        done = False
        try:
            found = [ShapeHeadroom(shape, node_capacity(scheduler, shape.pod, row, MOST_COPIES)) for shape in shapes]
            done = True
        finally:
            if not done:
                copy.invalidate()  # discard the cached state, because it still contains copies
    return found
