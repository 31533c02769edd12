"""Nodes that pods of one owner keep off for a while, because their kubelets refused pods of that owner.

Problem: a controller replaces a refused pod at once; placed by the same facts it goes to the same node.
Rule: whoever drives the engine says, per owner, what became of its pods where: the engine has no clock. A node that
`rests` takes no pod of the owner. One that rests no more takes a single pod, and the next one only after that ran
(`proven`). An owner that is refused all over the fleet may rest altogether.
Invariant: what is not said here changes nothing; capacity is never touched.
"""

from __future__ import annotations

import msgspec

MOVED_AWAY = "MovedAway"  # the reason of a node that an operator had a pod of the owner moved away from


class Refused(msgspec.Struct, frozen=True):
    """What one node's kubelet made of an owner's pods: how many it refused, why at last, and until when it rests.

    `proven` are pods (keys) that run on the node; another one of the owner there is being tried.
    """

    pods: int
    reason: str
    until: str
    rests: bool
    proven: frozenset[str] = frozenset()


class Avoided(msgspec.Struct, frozen=True):
    """The nodes that refused pods of one owner; `rest` is why and until when no node is tried at all."""

    nodes: dict[str, Refused]
    rest: Refused | None = None
