"""Order the queue by priority, the members of a gang adjacent.

Rule: pods with higher priority come first. Pods with equal priority keep their submission order, where a gang has the
position of its first member and the other members follow in submission order. This is the order of upstream
coscheduling's QueueSort, which compares priority, then the creation time of the gang (or the first attempt of a plain
pod), then names. Here both times are the submission time, which is unique, so the names are never compared. Without
gangs the order is that of `priority-sort`.
Source: Kubernetes scheduler-plugins, `Less` of coscheduling (KEP-2 and KEP-42); adapted, because the tie-breaks differ
between its versions and the latest version can interleave two groups that were created in the same second.
"""

from __future__ import annotations

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin


@plugin(
    "gang-sort",
    summary="Order pods by priority, then by submission; the members of a gang are adjacent.",
    reads=Reads.STATIC,
)
class GangSort:
    by_priority = True
    together = True

    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority,)
