"""Make room for a pod that fits nowhere, by having less important pods leave.

Rule: a pod that no node fits, though one would with some pods gone, gets the cheapest victims by the order and the
minimal sets of `engine.preemption`. Who may leave:
    pods of lower priority                             where the newcomer's namespace has no quota
    pods of other quotas that use more than their min  where it has one, and used + request <= its own min: they only
                                                       give back what they borrowed, whatever their priority
    pods of lower priority of its own namespace        where used + request > its own min
Quotas count only beside the plugin `quota`. Nobody leaves for a pod with `preemptionPolicy: Never`, or for a member
of a gang, which might not start even then. Pods that the kubelet runs from a file never leave, nor do pods that the
driver spares: those whose eviction was refused a moment ago, and on a live cluster, unless `foreign` says otherwise,
pods of other schedulers, which would place them again by rules of their own, perhaps where they just were. The pods
named do leave only where the driver evicts.
Source: kube-scheduler's DefaultPreemption; scheduler-plugins, KEP-9 "Capacity scheduling".
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from hetsched.contracts.params import Params
from hetsched.contracts.workload import PodSpec, is_ours
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.framework.preemption import Rule, Search
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Eviction


class PreemptionParams(Params, frozen=True):
    """How far the search goes."""

    most_nodes: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=10000,
            title="Nodes looked at closely",
            description="The search ends with the best of so many nodes, those that look cheapest first.",
        ),
    ] = 100
    foreign: Annotated[
        bool,
        msgspec.Meta(
            title="Pods of other schedulers",
            description="On a live cluster, pods whose schedulerName is not ours may have to leave too.",
        ),
    ] = False


@plugin(
    "preemption",
    summary="Where no node fits, the fewest and lowest pods of less importance make room.",
    params=PreemptionParams,
)
class Preemption:
    params: PreemptionParams
    peers: frozenset[str] = frozenset()

    def post_filter(self, request: Request, diagnosis: Attempt, state: ClusterState) -> Eviction | None:
        pod = request.pod
        if not pod.preempts or pod.gang is not None:
            return None
        rule = self._rule(request, state)
        search = Search(diagnosis, request, state, rule, counts_amounts="resource-fit" in self.peers)
        return search.best(self.params.most_nodes)

    def _rule(self, request: Request, state: ClusterState) -> Rule:
        pod, quotas, spared = request.pod, state.quotas, state.spared
        foreign_leave = self.params.foreign or not spared.foreign

        def preemptible(theirs: PodSpec) -> bool:
            kept = not foreign_leave and not is_ours(theirs.scheduler_name)
            return theirs.preemptible and not kept and theirs.key not in spared.keys

        def lower(booking: Booking) -> bool:
            return booking.pod.priority < pod.priority and preemptible(booking.pod)

        def own(booking: Booking) -> bool:
            return booking.pod.namespace == pod.namespace and lower(booking)

        def other(booking: Booking) -> bool:
            theirs = booking.pod
            return theirs.namespace != pod.namespace and quotas.governs(theirs) and preemptible(theirs)

        def borrowed(booking: Booking) -> bool:
            return bool(quotas.over_min(booking.pod.namespace))

        if "quota" not in self.peers or not quotas.governs(pod):
            return Rule(("lower", pod.priority, foreign_leave, spared), lower)
        if quotas.over_min(pod.namespace, request.shape.requests):
            return Rule(("own", pod.namespace, pod.priority, foreign_leave, spared), own)
        return Rule(("borrowed", pod.namespace, foreign_leave, spared), other, borrowed)
