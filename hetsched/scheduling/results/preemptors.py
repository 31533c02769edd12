"""Results of pods that fit after evictions.

In a live cluster such a pod is nominated and waits for the end of its victims. The victims of a gang become part of the
results when all its members of the batch were decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hetsched.contracts.api.decision import Evicted, NodeOutcome
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.simulation.evictions import evictions
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import Result

from ..nominations import Nominees
from .explanations import RejectionExplanations
from .placed import PlacedResults
from .unplaced import nominated_result, waiting_gang_result


class GangPlacement(NamedTuple):
    """The placement of a gang member whose victims are not part of its result yet."""

    position: int
    pending: PendingPod
    outcome: Outcome
    top: tuple[NodeOutcome, ...]
    scheduler: Scheduler


class PreemptorResults:
    """Results of the preemptors of one batch on one snapshot."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        nominees: Nominees,
        placed: PlacedResults,
        explanations: RejectionExplanations,
    ) -> None:
        self._snapshot = snapshot
        self._nominees = nominees
        self._placed = placed
        self._explanations = explanations

    def nominated(
        self,
        pending: PendingPod,
        scheduler: Scheduler,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...],
    ) -> Result:
        """Nominate a pod for the node that it fits once its victims have ended, and return its result."""
        before = {placed.pod.key: placed for placed in outcome.evicted}
        found, superseded = self._nominees.settle(outcome, evicted)
        if found is None:
            return msgspec.structs.replace(self._placed.result(pending, scheduler, outcome, top), overridden=superseded)
        state = scheduler.state
        own = state.forget(outcome.pod.key)
        assert own is not None
        diagnosis = self._explanations.explain(scheduler, outcome.pod)
        state.restore(own)
        evictions_due = tuple(one for one in evicted if one.pod not in superseded)
        victims = [before[one.pod] for one in evictions_due]
        result = nominated_result(pending, scheduler.policy.spec, found, diagnosis, victims, evictions_due)
        return msgspec.structs.replace(result, overridden=superseded)

    def gang(self, members: Sequence[GangPlacement], outcomes: Mapping[str, Outcome]) -> list[Result]:
        """Return the results of the members of a gang that starts after evictions.

        `outcomes` are those of the pods of the batch, by key.
        """
        evicted = [tuple(evictions(member.outcome, outcomes, member.scheduler.state)) for member in members]
        if not self._snapshot.nominates:
            return [self._of_member(member, of_member) for member, of_member in zip(members, evicted, strict=True)]
        settled = [
            self._nominees.restore_victims(member.outcome, of_member)
            for member, of_member in zip(members, evicted, strict=True)
        ]
        victims = [victim for staying, _ in settled for victim in staying]
        results = []
        for member, of_member, (staying, superseded) in zip(members, evicted, settled, strict=True):
            if victims:
                found = self._nominees.nominate(member.outcome, staying)
                due = tuple(one for one in of_member if one.pod not in superseded)
                result = waiting_gang_result(member.pending, member.scheduler.policy.spec, found, victims, due)
            else:
                result = self._of_member(member)
            results.append(msgspec.structs.replace(result, overridden=superseded))
        return results

    def _of_member(self, member: GangPlacement, evicted: tuple[Evicted, ...] = ()) -> Result:
        return self._placed.result(member.pending, member.scheduler, member.outcome, member.top, evicted)
