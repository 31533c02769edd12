"""Which running pods stand between a waiting pod and a node, whoever they are.

Problem: "not now" asks for a name: whose end would let it in, and where is that closest.
Rule: on each node the smallest set that preemption's own search finds, as if everybody might leave; nodes with the
fewest such pods first, then the least important, then by name. Nothing is said of whether anybody should leave.
Invariants: the ledger is left as it was; with these pods gone, and without any one of them still there, every filter
lets the pod in.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from hetsched.contracts.decision import Evicted
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.framework.preemption import Choice, Rule, Search
from hetsched.engine.framework.victims import Removable

if TYPE_CHECKING:
    from hetsched.engine.framework.cycle import Scheduler

MOST_NODES = 3
_LOOKED_AT = 48


def blockers(scheduler: Scheduler, pod: PodSpec, most: int = MOST_NODES) -> tuple[tuple[Evicted, ...], ...]:
    """Return for the `most` best nodes who would have to be gone there; nothing where that would not help.

    Of a member of a gang nothing is told: it needs room for all.
    """
    if not pod.ready or pod.gang is not None:
        return ()
    state = scheduler.state
    request = state.compile(pod)
    rule = Rule(("anybody", pod.key), lambda booking: True)
    counted = any(plugin.name == "resource-fit" for plugin in scheduler.policy.gates)
    search = _Everywhere(Attempt(scheduler, request), request, state, rule, counts_amounts=counted)
    found = sorted(search.choices(), key=lambda choice: (len(choice.victims), choice.cost))
    return tuple(_told(choice, state) for choice in found[:most])


def _told(choice: Choice, state: ClusterState) -> tuple[Evicted, ...]:
    name = state.columns.names
    return tuple(
        Evicted(one.pod.key, name[one.row], one.pod.priority, choice.broken.get(one.pod.key)) for one in choice.victims
    )


class _Everywhere(Search):
    """Looks at the most promising nodes, each for itself."""

    def choices(self) -> list[Choice]:
        """Return what was found on each of the nodes that were looked at."""
        removable = Removable.of(self.state, self.rule.key, self.rule.may_leave)
        bounds = removable.bounds(self.request.compiled, self.attempt.policy, self.attempt.possible, self._short)
        looked_at = islice(bounds.cheapest_first(), _LOOKED_AT)
        found = (self._on(row, removable.on_row[row], (0, *bounds.at(row))) for row in looked_at)
        return [choice for choice in found if choice is not None]
