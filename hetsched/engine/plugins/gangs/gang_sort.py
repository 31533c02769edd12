"""Order the queue by priority, the members of a gang adjacent.

Rule: higher priority first; among equals submission order, where a gang has the position of its first member and the
other members follow in submission order. That is the key (-priority, time of the gang or pod, number of the gang or
pod, time of the pod, its name) with the submission as the time: the first attempt of a plain pod and the creation of a
group are both the moment at which the queue received them, and no two are equal, so the later parts of the key never
decide. Without gangs the order is that of `priority-sort`.
Source: Kubernetes scheduler-plugins, coscheduling's Less (KEP-2 and KEP-42); derived, because its published
tie-breaks differ and the latest can interleave two groups of one second.
"""

from __future__ import annotations

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin


@plugin("gang-sort", summary="Higher priority first, gang members adjacent, then submission order.", reads=Reads.STATIC)
class GangSort:
    by_priority = True
    together = True

    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority,)
