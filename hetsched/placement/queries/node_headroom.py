"""How many more copies of common shapes one node takes now, and what runs out first.

Rule: the engine counts on the warm state under the cluster's policy, beside all that is booked; what it books to count
is taken back before anybody else sees the state. Nothing is written.
"""

from __future__ import annotations

import msgspec

from hetsched.engine.simulation.node_capacity import NodeRoom, room_on
from hetsched.inventory.models import Cluster
from hetsched.placement.snapshot import warm

from .common_shapes import Common, common_shapes

MOST_COPIES = 200


class ShapeRoom(msgspec.Struct, frozen=True):
    """One common shape and its room on a node."""

    common: Common
    room: NodeRoom


def rooms_on(cluster: Cluster, node_name: str) -> list[ShapeRoom]:
    """Return the room of every common shape on a node, none where no policy decides or the node is not known."""
    shapes = common_shapes(cluster.pk)
    copy = warm(cluster.pk)
    with copy.held() as loaded:
        policy = copy.default_policy()
        row = loaded.state.row_of.get(node_name)
        if policy is None or row is None:
            return []
        scheduler = copy.scheduler(policy.spec)
        done = False
        try:
            found = [ShapeRoom(one, room_on(scheduler, one.pod, row, MOST_COPIES)) for one in shapes]
            done = True
        finally:
            if not done:
                copy.forget()  # something may be booked that nobody has
    return found
