"""Result of one scheduling cycle."""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod

from .request import Request
from .status import Eviction, Refusal


class Outcome(msgspec.Struct, eq=False, gc=False):
    """Result of one scheduling cycle.

    `node` is None if the pod is not placed. `is_waiting` is true if the pod is assumed but waits for a permit.
    `request` is set if the cycle compiled a request. If no node fits, `eviction` names the pods that could be
    preempted. A scheduler that evicts removes these pods, stores them in `evicted` and places the pending pod.
    """

    pod: PodSpec
    node: str | None = None
    row: int = -1
    allocation: Allocation = EMPTY
    score: float = 0.0
    is_waiting: bool = False
    refusal: tuple[str, Refusal] | None = None
    eviction: Eviction | None = None
    evicted: tuple[PlacedPod, ...] = ()
    request: Request | None = None
