"""Nominated pods within one batch: they are assumed in addition to their victims, and their nominations are checked.

In a live cluster the engine places a pod as if its victims were already deleted. This module restores the victims on
the node, and the pod waits until they are deleted. In its next scheduling cycle the nominated pod is removed from the
snapshot first. While some of its victims remain and the pod would fit its node without them, it does not preempt other
pods: it is placed on a node that has become free, or continues to wait. Otherwise it is scheduled like any other pod. A
nominated pod that is displaced by a pod of higher priority is not a victim: it only loses its nomination and need not
be evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.api.decision import PREEMPTION_PENDING, PREEMPTION_SOURCE, Evicted, Reason
from hetsched.contracts.message import Message, format_pods
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.post_filter import Attempt
from hetsched.placement.cluster_snapshot import ClusterSnapshot, Nominee
from hetsched.placement.models.holds import MARK, own_name
from hetsched.placement.scheduling_result import NominatedNode


class Nominees:
    """The nominated pods of a snapshot during one batch."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    def suspend(self, pod: PodSpec) -> tuple[Nominee, PlacedPod] | None:
        """Remove a nominated pod from the snapshot at the start of its scheduling cycle, and return it."""
        nominee = self._snapshot.nominees.pop(pod.key, None)
        placed = None if nominee is None else self._snapshot.state.forget(pod.key)
        return None if nominee is None or placed is None else (nominee, placed)

    def restore(self, nominee: Nominee, placed: PlacedPod) -> NominatedNode:
        """Put a pod that `suspend` removed back into the snapshot, and return its nomination."""
        self._snapshot.state.restore(placed)
        self._snapshot.nominees[placed.pod.key] = nominee
        return NominatedNode(self._snapshot.node_ids[nominee.node], nominee.node, placed.allocation)

    def remaining_victims(self, nominee: Nominee) -> list[PlacedPod]:
        """Return the remaining victims of a nomination, including force-deleted pods that still hold resources."""
        placed_pods = self._snapshot.state.placed_pods
        victims = [(key, uid, own_name(key, uid)) for key, uid in sorted(nominee.victims)]
        found = [name for key, uid, kept in victims for name in (key, kept) if _is_placed(placed_pods.get(name), uid)]
        return [placed_pods[name] for name in found]

    def would_fit(self, scheduler: Scheduler, pod: PodSpec, nominee: Nominee, going: Sequence[PlacedPod]) -> bool:
        """Return True if a pod would fit its nominated node without its remaining victims (`going`).

        The caller must already have removed the pod from the snapshot.
        """
        state = self._snapshot.state
        row = state.row_of.get(nominee.node)
        if row is None:
            return False
        for placed in going:
            state.forget(placed.pod.key)
        try:
            return Attempt(scheduler, state.compile(pod)).fits(row)
        finally:
            for placed in going:
                state.restore(placed)

    def settle(self, outcome: Outcome, evicted: Sequence[Evicted]) -> tuple[NominatedNode | None, tuple[str, ...]]:
        """Restore the victims of a placement, except pods that were only nominated.

        Return the pod's nomination, or None if no eviction is needed, and the pods whose nominations were superseded.
        """
        snapshot, state = self._snapshot, self._snapshot.state
        keys = {one.pod for one in evicted}
        evicted_keys = [placed.pod.key for placed in outcome.evicted]
        superseded = tuple(key for key in evicted_keys if snapshot.nominees.pop(key, None) is not None)
        staying = [placed for placed in outcome.evicted if placed.pod.key in keys.difference(superseded)]
        outcome.evicted = ()  # so that the victims are not restored twice
        if not staying:
            return None, superseded
        for placed in staying:
            state.restore(placed)
        assert outcome.node is not None
        victims = frozenset((placed.pod.key, placed.pod.uid) for placed in staying)
        snapshot.nominees[outcome.pod.key] = Nominee(outcome.node, victims)
        return NominatedNode(snapshot.node_ids[outcome.node], outcome.node, outcome.allocation), superseded


def waits_for(node: str, going: Sequence[PlacedPod]) -> Reason:
    """Return the reason that names the victims for which a nominated pod waits."""
    victims = [(placed.pod.key.partition(MARK)[0], placed.pod.priority) for placed in going]
    pods = format_pods([Message("{pod} (priority {number})", pod=key, number=priority) for key, priority in victims])
    message = Message("the pod can be placed on {node} after the deletion of {pods}", node=node, pods=pods)
    return Reason(PREEMPTION_PENDING, PREEMPTION_SOURCE, 1, message)


def was_refused(victim: str, message: str) -> Reason:
    """Return the reason that reports that the eviction of `victim` was refused."""
    return Reason(
        "PreemptionRefused",
        PREEMPTION_SOURCE,
        0,
        Message("{pods} was not evicted: {detail}", pods=victim, detail=message),
    )


def _is_placed(placed: PlacedPod | None, uid: str) -> bool:
    return placed is not None and placed.pod.uid == uid
