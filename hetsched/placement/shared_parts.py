"""Shared parts of pods: equal shapes, labels, allocations and texts are kept in memory once.

The pods of a controller have equal demands, and pods that are decoded one by one have copies of them: half of the
memory of a snapshot.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.workload import PodSpec, Shape


class SharedParts:
    """The parts of the pods that were passed to it. The results equal the arguments."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, Shape] = {}
        self._labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._texts: dict[str, str] = {}

    def text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def allocation(self, allocation: Allocation) -> Allocation:
        return EMPTY if allocation == EMPTY else allocation

    def spec(self, spec: PodSpec) -> PodSpec:
        return msgspec.structs.replace(
            spec,
            shape=self._shapes.setdefault(spec.shape, spec.shape),
            labels=self._labels.setdefault(tuple(spec.labels.items()), spec.labels),
            namespace=self.text(spec.namespace),
            qos=self.text(spec.qos),
            scheduler_name=self.text(spec.scheduler_name),
            controller=self.text(spec.controller),
            controller_uid=self.text(spec.controller_uid),
            node_name=self.text(spec.node_name),
        )
