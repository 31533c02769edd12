"""Order the queue by priority, then by class of service.

Rule: higher priority first; among equals Guaranteed > Burstable > BestEffort; among those submission order.
Source: Kubernetes scheduler-plugins, qos/queue_sort.go, which corrects the published comparison: that one returned true
both ways for two Guaranteed pods and was no order.
"""

from __future__ import annotations

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin

_RANK = {"Guaranteed": 0, "Burstable": 1}


@plugin("qos-sort", summary="Higher priority first, then Guaranteed > Burstable > BestEffort.", reads=Reads.STATIC)
class QosSort:
    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority, _RANK.get(pod.qos, 2))
