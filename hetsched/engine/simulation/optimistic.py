"""Several schedulers side by side on one state: decide on copies, commit onto one truth, let the loser try again.

Problem: schedulers that lock the whole cluster wait for each other; schedulers that do not may give one place twice.
Rule: a `Branch` is a copy of the truth with a scheduler of its own, and remembers the point in the truth's log at which
it was taken. A commit takes each placement over, in the order decided, unless
    the inventory has changed since,
    its node, or the node of a pod that it evicts, was written to by somebody else since, or should have been by an
    eviction of this branch that is a conflict itself: what was granted there may still be held,
    or the filters of its policy, asked again on the truth as it is by now, refuse it (rules between pods, quotas).
What is not taken over is a conflict: nothing of it is written, and its pod is decided again on a fresh branch. Whoever
calls `commit` holds the truth for that moment; deciding needs no lock.
Source: Schwarzkopf et al., "Omega: flexible, scalable schedulers for large compute clusters" (EuroSys 2013): shared
state, optimistic concurrency, conflicts detected by node and incremental transactions. The database does the same
for whole batches: `placement.actions.record` compares the cluster's revision and the leader's epoch.
Invariant: the truth after a commit is one that a single scheduler could have come to; of two placements that want the
same room one is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Outcome, Scheduler
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.post_filter import Attempt

from .evictions import evictions


class Branch:
    """One scheduler's own copy of a state, and where in the state's log it was taken."""

    def __init__(self, truth: ClusterState, policy: Policy, *, evicts: bool = False) -> None:
        self.scheduler = Scheduler(truth.fork(), policy, evicts=evicts)
        self._epoch, self._seen = truth.epoch, len(truth.log)

    def decide(self, pods: Sequence[PodSpec]) -> list[Outcome]:
        """Try pods, in the policy's queue order, on the copy; what a permit holds in the end is taken back."""
        scheduler = self.scheduler
        outcomes: dict[str, Outcome] = {}
        for pod in scheduler.policy.queue(pods, scheduler.state):
            outcome = scheduler.schedule(pod)
            # Victims of a pod that is evicted in turn count as victims of the evictor.
            handed_on = [
                one for own in outcome.evicted if own.pod.key in outcomes for one in outcomes[own.pod.key].evicted
            ]
            before = {item.pod for item in evictions(outcome, outcomes, scheduler.state)}
            outcome.evicted = (*handed_on, *(one for one in outcome.evicted if one.pod.key in before))
            outcomes[pod.key] = outcome
        scheduler.settle()
        return list(outcomes.values())

    def commit(self, truth: ClusterState, outcomes: Iterable[Outcome]) -> list[PodSpec]:
        """Take over what still holds; return the pods whose placement conflicts, for another try.

        Members of a gang are taken over together or not at all, and only where enough of it runs by then. The branch
        is spent afterwards.
        """
        if truth.epoch != self._epoch:
            return [outcome.pod for outcome in outcomes if outcome.node is not None]
        foreign = set(truth.log[self._seen :])
        judge = Scheduler(truth, self.scheduler.policy)
        conflicts: list[PodSpec] = []
        for group in _groups(outcome for outcome in outcomes if outcome.node is not None):
            taken: list[tuple[Outcome, list[Booking]]] = []
            for outcome in group:
                left = _take_over(judge, outcome, foreign)
                if left is None:
                    break
                taken.append((outcome, left))
            if len(taken) < len(group) or self._is_broken(group[0].pod, truth):
                for outcome, left in reversed(taken):
                    truth.forget(outcome.pod.key)
                    for booking in left:
                        truth.restore(booking)
                conflicts += [outcome.pod for outcome in group]
                foreign.update(booking.row for outcome in group for booking in outcome.evicted)
        return conflicts

    def _is_broken(self, pod: PodSpec, truth: ClusterState) -> bool:
        """Tell whether the pod's gang is whole here and would not be on the truth, because others left meanwhile."""
        gang, key = pod.gang, gang_key(pod)
        if gang is None or key is None:
            return False
        here, there = self.scheduler.state.gangs.members_booked(key), truth.gangs.members_booked(key)
        return here >= gang.min_available > there


def _groups(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Put the members of each gang together; every other outcome stands alone."""
    groups: dict[tuple[bool, str], list[Outcome]] = {}
    for outcome in outcomes:
        gang = gang_key(outcome.pod)
        groups.setdefault((gang is not None, gang or outcome.pod.key), []).append(outcome)
    return list(groups.values())


def _take_over(judge: Scheduler, outcome: Outcome, foreign: set[int]) -> list[Booking] | None:
    """Book a placement on the truth if nothing speaks against it; return who left for it, None where it conflicts."""
    truth = judge.state
    rows = {outcome.row, *(booking.row for booking in outcome.evicted)}
    victims = [booking.pod.key for booking in outcome.evicted]
    if rows & foreign or outcome.pod.key in truth.bookings or not all(key in truth.bookings for key in victims):
        return None
    left = [truth.bookings[key] for key in victims]
    for key in victims:
        truth.forget(key)
    request = truth.compile(outcome.pod)
    if Attempt(judge, request).fits(outcome.row):
        truth.assume(request, outcome.row, outcome.allocation)
        return left
    for booking in left:
        truth.restore(booking)
    return None
