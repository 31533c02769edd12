"""Order the queue by priority, then by QoS class.

Rule: pods with higher priority come first. Pods with equal priority are ordered Guaranteed, Burstable, BestEffort. Pods
that are equal in both keep their submission order.
Source: Kubernetes scheduler-plugins, qos/queue_sort.go. It corrects the published comparison, which was not an order:
it returned true in both directions for two Guaranteed pods.
"""

from __future__ import annotations

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin

_RANK = {"Guaranteed": 0, "Burstable": 1}


@plugin(
    "qos-sort",
    summary="Order pods by priority, then by QoS class: Guaranteed, Burstable, BestEffort.",
    reads=Reads.STATIC,
)
class QosSort:
    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority, _RANK.get(pod.qos, 2))
