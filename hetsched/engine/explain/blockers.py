"""Blocking pods: the running pods whose removal would admit a pending pod, regardless of priority.

The explanation of a *not now* verdict names the pods that must end before the pod fits, on the nodes where the fewest
pods must end. The set of each node is the smallest that the preemption search finds if every pod may be preempted.
Nodes with the fewest blocking pods come first, then those with the least important pods, then by name. The result is
not a recommendation to evict.
Invariants: the state is unchanged afterwards; every filter accepts the pod if all of these pods are removed, but not if
one of them remains.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from hetsched.contracts.api.decision import Evicted
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.preemption.dry_run import Choice, Rule, VictimSearch
from hetsched.engine.preemption.victims import PreemptiblePods

if TYPE_CHECKING:
    from hetsched.engine.framework.cycle import Scheduler

MOST_NODES = 3
_LOOKED_AT = 48


def blockers(scheduler: Scheduler, pod: PodSpec) -> tuple[tuple[Evicted, ...], ...]:
    """Return the blocking pods on the best nodes; empty if their removal would not help.

    The result is empty for a member of a gang, which needs capacity for all members.
    """
    if not pod.ready or pod.gang is not None:
        return ()
    state = scheduler.state
    request = state.compile(pod)
    rule = Rule(("any", pod.key), lambda placed: True)
    counted = scheduler.policy.counts_resources
    search = _EachNodeSearch(Attempt(scheduler, request), request, state, rule, counts_amounts=counted)
    found = sorted(search.choices(), key=lambda choice: (len(choice.victims), choice.cost))
    return tuple(_evicted(choice, state) for choice in found[:MOST_NODES])


def _evicted(choice: Choice, state: ClusterState) -> tuple[Evicted, ...]:
    name = state.columns.names
    return tuple(
        Evicted(placed.pod.key, name[placed.row], placed.pod.priority, choice.broken.get(placed.pod.key))
        for placed in choice.victims
    )


class _EachNodeSearch(VictimSearch):
    """Victim search that returns a result for each of the most promising nodes, not only for the best one."""

    def choices(self) -> list[Choice]:
        """Return the smallest set of blocking pods of each examined node on which the pod would fit without them."""
        removable = PreemptiblePods.of(self.state, self.rule.key, self.rule.is_evictable)
        bounds = removable.bounds(self.request.compiled, self.attempt.policy, self.attempt.possible, self._short)
        looked_at = islice(bounds.cheapest_first(), _LOOKED_AT)
        found = (self._victims_on(row, removable.on_row[row], (0, *bounds.at(row))) for row in looked_at)
        return [choice for choice in found if choice is not None]
