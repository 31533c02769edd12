"""Nodes that pods of one owner avoid for a while because their kubelets rejected pods of that owner.

A controller replaces a rejected pod immediately. The scheduler would place the new pod on the same node, because it
knows the same facts. The engine has no clock, so its caller reports the rejections and back-offs per owner and node. A
node in back-off (`backs_off`) accepts no pod of the owner. After the back-off it accepts a single pod, and the next one
only after that pod ran (`running`). An owner that is rejected on many nodes may be put into back-off on all nodes.
Invariants: an owner without an entry is not restricted; the capacity of nodes never changes.
"""

from __future__ import annotations

import msgspec

MOVED_AWAY = "MovedAway"  # reason if an operator moved a pod of the owner away from the node
# Message codes for the refusal of an avoided node: after a rejection by the kubelet, after a move by an operator.
REFUSED_CODE, MOVED_CODE = "KubeletRefused", "MovedAway"


class NodeRejections(msgspec.Struct, frozen=True):
    """A node's rejections of an owner's pods: their number, the last reason, and the end of the back-off.

    `running` holds the keys of the owner's pods that run on the node. While another pod of the owner is placed there
    but does not run yet, the node accepts no further pod of the owner.
    """

    pods: int
    reason: str
    until: str
    backs_off: bool
    running: frozenset[str] = frozenset()


class AvoidedNodes(msgspec.Struct, frozen=True):
    """The nodes that rejected pods of one owner.

    `everywhere` holds the reason and the end of a back-off on all nodes.
    """

    nodes: dict[str, NodeRejections]
    everywhere: NodeRejections | None = None
