"""Results of placed pods."""

from __future__ import annotations

from hetsched.contracts.api.decision import Evicted, NodeOutcome, Verdict
from hetsched.contracts.message import Message, joined
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import Result

from .messages import image_warnings, placement_summary, unknown_images

_SCORE_DIGITS = 6


class PlacedResults:
    """Results of the placed pods of one batch on one snapshot."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._stale_use: tuple[Message, ...] | None = None

    def result(
        self,
        pending: PendingPod,
        scheduler: Scheduler,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...] = (),
    ) -> Result:
        """Return the result of a pod that `scheduler` placed; `top` are the best nodes before the placement."""
        assert outcome.node is not None
        score, spec = round(outcome.score, _SCORE_DIGITS), scheduler.policy.spec
        message = placement_summary(pending.spec.key, outcome, f"{score:.1f}")
        warnings = *unknown_images(pending.spec), *image_warnings(outcome), *self.stale_use(scheduler)
        return Result(
            pending,
            Verdict.PLACED,
            joined("; ", [message, *warnings]),
            spec.name,
            spec.version,
            node_id=self._snapshot.node_ids[outcome.node],
            node_name=outcome.node,
            allocation=outcome.allocation,
            score=score,
            top=top,
            evicted=evicted,
        )

    def stale_use(self, scheduler: Scheduler) -> tuple[Message, ...]:
        """Return a note with the number of nodes that were rated by requests, because their measured usage is stale."""
        if not scheduler.policy.measures:
            return ()
        if self._stale_use is None:
            late, nodes = len(scheduler.state.stale()), len(scheduler.state.reports)
            template = "for {n} of {m} nodes, the decision uses requests because the measured use is stale"
            self._stale_use = (Message(template, n=late, m=nodes),) if late else ()
        return self._stale_use
