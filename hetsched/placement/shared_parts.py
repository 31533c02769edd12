"""Shared parts of pods: equal shapes, labels, allocations and texts are kept in memory once.

The pods of a controller have equal demands, but each pod that is decoded from a row has its own copy of them. The
copies would be more than half of the memory of a snapshot.
"""

from __future__ import annotations

from sys import intern

import msgspec

from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.workload import PodSpec, Shape


class SharedParts:
    """The parts of the pods that were passed to it; a result equals its argument."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, Shape] = {}
        self._labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}

    def allocation(self, allocation: Allocation) -> Allocation:
        return EMPTY if allocation == EMPTY else allocation

    def spec(self, spec: PodSpec) -> PodSpec:
        return msgspec.structs.replace(
            spec,
            shape=self._shapes.setdefault(spec.shape, spec.shape),
            labels=self._labels.setdefault(tuple(spec.labels.items()), spec.labels),
            namespace=intern(spec.namespace),
            qos=intern(spec.qos),
            scheduler_name=intern(spec.scheduler_name),
            controller=intern(spec.controller),
            controller_uid=intern(spec.controller_uid),
            node_name=intern(spec.node_name),
        )
