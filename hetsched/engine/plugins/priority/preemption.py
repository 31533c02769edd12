"""Select victims of lower priority for a pod that fits no node.

Rule: if no node fits the pod, but a node would fit without some of its pods, the plugin selects the cheapest victims,
by the order and the minimal sets of `engine.preemption`. Possible victims:
    pods of lower priority                             if the namespace of the preemptor has no quota
    pods of other quotas that use more than their min  if the namespace has a quota, and used + request <= its min;
                                                       their borrowed capacity is reclaimed, whatever their priority
    pods of lower priority in the same namespace       if the namespace has a quota, and used + request > its min
Quotas are considered only if the policy has the plugin `quota`. Pods with `preemptionPolicy: Never` do not preempt.
A member of a gang preempts only if the gang then has its minimum of members. Before the first eviction for a gang, its
pending members are placed on trial in queue order, each with its own cheapest victims, until the minimum is reached;
otherwise no pod is evicted. At most 4,096 / n nodes are searched for each of n members. A gang does not preempt for its
minimum if the minimum fits without evictions, if the gang requires a topology level, if its minResources are not free,
or if one of its pending members has `preemptionPolicy: Never`.
Static pods are not victims. The caller can exclude further pods: those with a recently rejected eviction and, on a live
cluster unless `foreign` is set, pods of other schedulers, which could place them on the same node again. The caller
evicts the victims.
Source: kube-scheduler's DefaultPreemption; scheduler-plugins, KEP-9 "Capacity scheduling".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec, Shape, is_ours
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.disruption import matcher
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.gangs import GangMembers, gang_key
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Eviction, ProtectedPods
from hetsched.engine.preemption.dry_run import Rule, VictimSearch
from hetsched.engine.preemption.victims import PreemptiblePods

_MOST_GANG_NODES = 4096  # nodes searched in detail for the members of a gang together, up to its minimum


class PreemptionParams(Params, frozen=True):
    """Limits of the search."""

    most_nodes: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=10000,
            title="Nodes searched in detail",
            description=(
                "Number of nodes searched for victims, in order of estimated cost; "
                "the node with the best result is selected."
            ),
        ),
    ] = 100
    foreign: Annotated[
        bool,
        msgspec.Meta(
            title="Pods of other schedulers",
            description="On a live cluster, also preempt pods of other schedulers.",
        ),
    ] = False


def _missing_members(pod: PodSpec, state: ClusterState) -> int:
    """Return how many members the pod's gang needs, with the pod, to reach its minimum; 1 without a gang."""
    key = gang_key(pod)
    return 1 if pod.gang is None or key is None else pod.gang.min_available - state.gangs.placed_members(key)


@plugin(
    "preemption",
    summary="If no node fits, preempt as few pods of lower priority as possible.",
    params=PreemptionParams,
    helped_by=frozenset({Event.NAMES_CHANGED}),
)
class Preemption:
    params: PreemptionParams
    peers: Collection[str] = ()
    evicts_lower_priority = True

    def post_filter(self, request: Request, diagnosis: Attempt, state: ClusterState) -> Eviction | None:
        pod, group = request.pod, state.gangs.group_of(request.pod)
        was_rejected = group is not None and group.refusal is not None
        if not pod.preempts or not self._gang_can_start(pod, diagnosis, state):
            return None
        if was_rejected and diagnosis.fits_after_evictions([pod], 1):
            return Eviction("", ())  # only the capacity for the whole gang was insufficient
        return self._victims(request, diagnosis, state)

    def _victims(self, request: Request, attempt: Attempt, state: ClusterState) -> Eviction | None:
        most_nodes, group = self.params.most_nodes, state.gangs.group_of(request.pod)
        if group is not None and _missing_members(request.pod, state) > 0:
            # The trial and the decisions of a gang search the same nodes, so that they find the same victims.
            most_nodes = min(most_nodes, max(_MOST_GANG_NODES // len(group.members), 1))
        rule = self._rule(request, state, state.spared)
        search = VictimSearch(attempt, request, state, rule, counts_amounts=attempt.policy.counts_resources)
        return search.best(most_nodes)

    def _gang_can_start(self, pod: PodSpec, attempt: Attempt, state: ClusterState) -> bool:
        """Return whether the pod's gang, if any, has its minimum of members after evictions for its pending members.

        The result is searched once for each registered queue. If it is true, the gang is no longer rejected for lack of
        capacity.
        """
        group, missing = state.gangs.group_of(pod), _missing_members(pod, state)
        if group is None:
            return missing <= 1
        if missing > 0 and group.preempts is None:
            group.preempts = self._gang_needs_evictions(pod, group, missing, attempt, state)
        return group.refusal is None and (missing <= 0 or bool(group.preempts))

    def _gang_needs_evictions(
        self, pod: PodSpec, group: GangMembers, missing: int, attempt: Attempt, state: ClusterState
    ) -> bool:
        """Return whether the missing members of a gang fit after evictions, but not without evictions."""
        members = [pod, *(member for key, member in group.members.items() if key in group.untried)]
        refusal, topology = group.refusal, None if pod.gang is None else pod.gang.topology
        if (refusal is not None and not refusal.resolvable) or (topology is not None and topology.required):
            return False
        if len(members) < missing or not all(member.preempts for member in group.members.values()):
            return False
        # Other members may be sufficient; the pod then preempts for itself once the gang has its minimum.
        if refusal is None and len(members) > missing and attempt.fits_after_evictions(members, missing):
            return False
        failed: set[Shape] = set()

        def select(request: Request, attempt: Attempt) -> Eviction | None:
            found = None
            if request.shape not in failed:
                found = self._victims(request, attempt, state)
            if found is None:
                failed.add(request.shape)
            return found

        group.refusal = None
        fits = attempt.fits_after_evictions(members, missing, select)
        if not fits:
            group.refusal = refusal
        return fits

    def waits_to_evict(self, request: Request, state: ClusterState) -> Message | None:
        """Return a wait condition if a disruption budget selects a possible victim (rejected evictions included)."""
        if not state.budgets or not request.pod.preempts:
            return None
        rule = self._rule(request, state, ProtectedPods(foreign=state.spared.foreign))
        leaving = PreemptiblePods.of(state, rule.key, rule.is_evictable).on_row
        for budget in state.budgets:
            selector = matcher(budget)
            rows = np.flatnonzero(state.neighbours.matching(state, (selector,))).tolist()
            if any(selector.matches(placed.pod, state.namespaces) for row in rows for placed in leaving[row]):
                return Message("a disruption budget that allows the eviction of pods with lower priority")
        return None

    def _rule(self, request: Request, state: ClusterState, spared: ProtectedPods) -> Rule:
        pod, quotas = request.pod, state.quotas
        foreign_leave = self.params.foreign or not spared.foreign

        def preemptible(theirs: PodSpec) -> bool:
            kept = not foreign_leave and not is_ours(theirs.scheduler_name)
            return theirs.preemptible and not kept and theirs.key not in spared.keys

        def lower(placed: PlacedPod) -> bool:
            return placed.pod.priority < pod.priority and preemptible(placed.pod)

        def own(placed: PlacedPod) -> bool:
            return placed.pod.namespace == pod.namespace and lower(placed)

        def other(placed: PlacedPod) -> bool:
            theirs = placed.pod
            return theirs.namespace != pod.namespace and quotas.applies_to(theirs) and preemptible(theirs)

        def borrowed(placed: PlacedPod) -> bool:
            return bool(quotas.over_min(placed.pod.namespace))

        if "quota" not in self.peers or not quotas.applies_to(pod):
            return Rule(("lower", pod.priority, foreign_leave, spared), lower)
        if quotas.over_min(pod.namespace, request.shape.requests):
            return Rule(("own", pod.namespace, pod.priority, foreign_leave, spared), own)
        return Rule(("borrowed", pod.namespace, foreign_leave, spared), other, borrowed)
