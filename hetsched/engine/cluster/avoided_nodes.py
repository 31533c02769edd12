"""Nodes that pods of one owner avoid for a while because their kubelets rejected pods of that owner.

A controller replaces a rejected pod at once, and with the same facts the new pod would be placed on the same node. The
driver of the engine reports the results per owner and node, because the engine has no clock. A node in back-off
(`backs_off`) accepts
no pod of the owner. After the back-off it accepts a single pod, and the next one only after that pod ran (`running`).
An owner that is rejected on many nodes may be put into back-off on all nodes.
Invariant: without an entry nothing changes; capacity is never affected.
"""

from __future__ import annotations

import msgspec

MOVED_AWAY = "MovedAway"  # reason of a node from which an operator had a pod of the owner moved away
# Codes of the reasons that refuse such nodes.
REFUSED_CODE, MOVED_CODE = "KubeletRefused", "MovedAway"


class NodeRejections(msgspec.Struct, frozen=True):
    """A node's rejections of an owner's pods: their number, the last reason, and the end of the back-off.

    `running` are pods (keys) that run on the node; another pod of the owner there is on trial.
    """

    pods: int
    reason: str
    until: str
    backs_off: bool
    running: frozenset[str] = frozenset()


class Avoided(msgspec.Struct, frozen=True):
    """The nodes that rejected pods of one owner.

    `everywhere` holds the reason and the end of a back-off on all nodes.
    """

    nodes: dict[str, NodeRejections]
    everywhere: NodeRejections | None = None
