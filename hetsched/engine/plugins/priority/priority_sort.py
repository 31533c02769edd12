"""Order the queue by priority.

Rule: pods with higher priority come first. Pods with equal priority keep their submission order.
Source: kube-scheduler's PrioritySort plugin.
"""

from __future__ import annotations

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin


@plugin("priority-sort", summary="Order pods by priority, then by submission.", reads=Reads.STATIC)
class PrioritySort:
    by_priority = True

    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority,)
