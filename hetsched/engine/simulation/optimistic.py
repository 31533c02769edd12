"""Optimistic concurrency: several schedulers decide on copies of one state, and pods in conflict are decided again.

A `Branch` is a copy of the shared state with its own scheduler, and records its position in the state's log. A commit
applies each placement, in the order decided, unless
    the inventory has changed since the copy was made;
    another writer has since changed the node of the placement, or the node of a pod that it evicts;
    an eviction by this branch on one of these nodes is in conflict, so the victim may still use its allocation; or
    the filters of the branch's policy reject the placement on the current shared state (rules between pods, quotas).
A placement that is not applied is a conflict: it changes nothing, and its pod is decided again on a new branch. The
caller of `commit` owns the shared state during the call; deciding needs no lock.
Source: Schwarzkopf et al., "Omega: flexible, scalable schedulers for large compute clusters" (EuroSys 2013).
Invariant: the shared state after a commit is one that a single scheduler could have reached; of two placements that
need the same resources, only one is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.post_filter import Attempt

from .evictions import evictions


class Branch:
    """One scheduler's own copy of a state, with its position in the state's log."""

    def __init__(self, truth: ClusterState, policy: Policy, *, evicts: bool = False) -> None:
        self.scheduler = Scheduler(truth.fork(), policy, evicts=evicts)
        self._epoch, self._seen = truth.epoch, len(truth.log)

    def decide(self, pods: Sequence[PodSpec]) -> list[Outcome]:
        """Try pods, in the policy's queue order, on the copy; placements that still wait for a permit are undone."""
        scheduler = self.scheduler
        outcomes: dict[str, Outcome] = {}
        for pod in scheduler.policy.queue(pods, scheduler.state):
            outcome = scheduler.schedule(pod)
            # Victims of a pod that is itself evicted become victims of the pod that evicts it.
            handed_on = [
                placed for own in outcome.evicted if own.pod.key in outcomes for placed in outcomes[own.pod.key].evicted
            ]
            before = {item.pod for item in evictions(outcome, outcomes, scheduler.state)}
            outcome.evicted = (*handed_on, *(placed for placed in outcome.evicted if placed.pod.key in before))
            outcomes[pod.key] = outcome
        scheduler.settle()
        return list(outcomes.values())

    def commit(self, truth: ClusterState, outcomes: Iterable[Outcome]) -> list[PodSpec]:
        """Apply the placements that are still valid; return the pods in conflict, for another try.

        Members of a gang are applied together or not at all, and only if enough of the gang runs then. The branch
        cannot be used afterwards.
        """
        if truth.epoch != self._epoch:
            return [outcome.pod for outcome in outcomes if outcome.node is not None]
        foreign = set(truth.log[self._seen :])
        judge = Scheduler(truth, self.scheduler.policy)
        conflicts: list[PodSpec] = []
        for group in _groups(outcome for outcome in outcomes if outcome.node is not None):
            taken: list[tuple[Outcome, list[PlacedPod]]] = []
            for outcome in group:
                victims = _take_over(judge, outcome, foreign)
                if victims is None:
                    break
                taken.append((outcome, victims))
            if len(taken) < len(group) or self._is_broken(group[0].pod, truth):
                for outcome, victims in reversed(taken):
                    truth.forget(outcome.pod.key)
                    for placed in victims:
                        truth.restore(placed)
                conflicts += [outcome.pod for outcome in group]
                foreign.update(placed.row for outcome in group for placed in outcome.evicted)
        return conflicts

    def _is_broken(self, pod: PodSpec, truth: ClusterState) -> bool:
        """Return whether the pod's gang is complete on this branch but incomplete on the shared state."""
        gang, key = pod.gang, gang_key(pod)
        if gang is None or key is None:
            return False
        here, there = self.scheduler.state.gangs.placed_members(key), truth.gangs.placed_members(key)
        return here >= gang.min_available > there


def _groups(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Group the members of each gang; every other outcome forms a separate group."""
    groups: dict[tuple[bool, str], list[Outcome]] = {}
    for outcome in outcomes:
        gang = gang_key(outcome.pod)
        groups.setdefault((gang is not None, gang or outcome.pod.key), []).append(outcome)
    return list(groups.values())


def _take_over(judge: Scheduler, outcome: Outcome, foreign: set[int]) -> list[PlacedPod] | None:
    """Apply a placement to the shared state if it is still valid; return its victims, or None on a conflict."""
    truth = judge.state
    rows = {outcome.row, *(placed.row for placed in outcome.evicted)}
    keys = [placed.pod.key for placed in outcome.evicted]
    if rows & foreign or outcome.pod.key in truth.placed_pods or not all(key in truth.placed_pods for key in keys):
        return None
    victims = [truth.placed_pods[key] for key in keys]
    for key in keys:
        truth.forget(key)
    request = truth.compile(outcome.pod)
    if Attempt(judge, request).fits(outcome.row):
        truth.assume(request, outcome.row, outcome.allocation)
        return victims
    for placed in victims:
        truth.restore(placed)
    return None
