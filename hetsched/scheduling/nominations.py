"""Nominated pods within one batch: they are assumed in addition to their victims, and their nominations are checked.

In a live cluster the engine places a pod as if its victims were already deleted. This module restores the victims on
the node, and the pod waits until they are deleted. In its next scheduling cycle the nominated pod is removed from the
snapshot first. While some of its victims remain and the pod would fit its node without them, it does not preempt other
pods: it is placed on a node that has become free, or continues to wait. Otherwise it is scheduled like any other pod. A
nominated pod that is displaced by a pod of higher priority is not a victim: it only loses its nomination and need not
be evicted.

The nominations that one decision makes for a gang belong together. If it can only start after evictions, all its
members of the batch are nominated, also those that need no victims: otherwise they would run before the others. The
capacity of all members stays reserved until the last victim has ended; then the gang is scheduled like any other gang.
While victims remain and the nominated members would fit their nodes without them, no member is scheduled, unless the
minimum fits the free capacity. If the nominated members are too few or no longer fit, their nominations are ignored,
and the gang is scheduled again. Members of a gang that has its minimum of placed members are nominated one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hetsched.contracts.api.decision import PREEMPTION_PENDING, PREEMPTION_SOURCE, Evicted, Reason
from hetsched.contracts.message import Message, format_pods
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.post_filter import Attempt
from hetsched.placement.cluster_snapshot import ClusterSnapshot, Nominee
from hetsched.placement.models.holds import MARK, own_name
from hetsched.placement.scheduling_result import NominatedNode

NominatedPod = tuple[Nominee, PlacedPod]


class Nominees:
    """The nominated pods of a snapshot during one batch."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    def suspend(self, pod: PodSpec) -> NominatedPod | None:
        """Remove a nominated pod from the snapshot at the start of its scheduling cycle, and return it."""
        nominee = self._snapshot.nominees.pop(pod.key, None)
        placed = None if nominee is None else self._snapshot.state.forget(pod.key)
        return None if nominee is None or placed is None else (nominee, placed)

    def restore(self, nominee: Nominee, placed: PlacedPod) -> NominatedNode:
        """Put a pod that `suspend` removed back into the snapshot, and return its nomination."""
        self._snapshot.state.restore(placed)
        self._snapshot.nominees[placed.pod.key] = nominee
        return self._continuing(nominee, placed)

    def nominated_node(self, pod: PodSpec) -> NominatedNode | None:
        """Return the continuing nomination of a pod in the snapshot, or None if the pod is not nominated."""
        nominee = self._snapshot.nominees.get(pod.key)
        return None if nominee is None else self._continuing(nominee, self._snapshot.state.placed_pods[pod.key])

    def _continuing(self, nominee: Nominee, placed: PlacedPod) -> NominatedNode:
        return NominatedNode(self._snapshot.node_ids[nominee.node], nominee.node, placed.allocation, is_new=False)

    def remaining_victims(self, nominee: Nominee) -> list[PlacedPod]:
        """Return the remaining victims of a nomination, including force-deleted pods that still hold resources."""
        placed_pods = self._snapshot.state.placed_pods
        victims = [(key, uid, own_name(key, uid)) for key, uid in sorted(nominee.victims)]
        found = [name for key, uid, kept in victims for name in (key, kept) if _is_placed(placed_pods.get(name), uid)]
        return [placed_pods[name] for name in found]

    def would_fit(self, scheduler: Scheduler, nominated: Sequence[NominatedPod], going: Sequence[PlacedPod]) -> bool:
        """Return whether nominated pods would all fit their nodes without their remaining victims (`going`).

        The victims of other pods that are nominated for these nodes are left out too, because those pods are assumed.
        The caller must already have removed the pods from the snapshot.
        """
        state, nodes = self._snapshot.state, {nominee.node for nominee, _ in nominated}
        others = [nominee for nominee in self._snapshot.nominees.values() if nominee.node in nodes]
        victims = {one.pod.key: one for nominee in others for one in self.remaining_victims(nominee)}
        victims |= {one.pod.key: one for one in going}
        restored: list[PlacedPod] = []
        for victim in victims.values():
            state.forget(victim.pod.key)
        try:
            for nominee, placed in nominated:
                row = state.row_of.get(nominee.node)
                if row is None or not Attempt(scheduler, state.compile(placed.pod)).fits(row):
                    return False
                state.restore(placed)
                restored.append(placed)
            return True
        finally:
            for placed in restored:
                state.forget(placed.pod.key)
            for victim in victims.values():
                state.restore(victim)

    def settle(self, outcome: Outcome, evicted: Sequence[Evicted]) -> tuple[NominatedNode | None, tuple[str, ...]]:
        """Restore the victims of a placement, except pods that were only nominated.

        Return the pod's nomination, or None if no eviction is needed, and the pods whose nominations were superseded.
        """
        staying, superseded = self.restore_victims(outcome, evicted)
        return self.nominate(outcome, staying) if staying else None, superseded

    def restore_victims(self, outcome: Outcome, evicted: Sequence[Evicted]) -> tuple[list[PlacedPod], tuple[str, ...]]:
        """Restore the victims of a placement, and return them; pods that were only nominated lose their nomination.

        Return also the pods whose nominations were superseded.
        """
        snapshot, state = self._snapshot, self._snapshot.state
        keys = {one.pod for one in evicted}
        evicted_keys = [placed.pod.key for placed in outcome.evicted]
        superseded = tuple(key for key in evicted_keys if snapshot.nominees.pop(key, None) is not None)
        staying = [placed for placed in outcome.evicted if placed.pod.key in keys.difference(superseded)]
        outcome.evicted = ()  # so that the victims are not restored twice
        for placed in staying:
            state.restore(placed)
        return staying, superseded

    def nominate(self, outcome: Outcome, victims: Sequence[PlacedPod]) -> NominatedNode:
        """Nominate a placed pod for its node, on which it is assumed in addition to its victims."""
        snapshot = self._snapshot
        assert outcome.node is not None
        names = frozenset((placed.pod.key, placed.pod.uid) for placed in victims)
        snapshot.nominees[outcome.pod.key] = Nominee(outcome.node, names)
        return NominatedNode(snapshot.node_ids[outcome.node], outcome.node, outcome.allocation, is_new=True)


class GangNominations:
    """The nominated gangs of a snapshot during one batch."""

    def __init__(self, snapshot: ClusterSnapshot, nominees: Nominees) -> None:
        self._snapshot = snapshot
        self._nominees = nominees
        self._victims: dict[str, list[PlacedPod]] = {}  # by gang; empty if the gang does not wait
        self._suspended: dict[str, NominatedPod] = {}  # by pod key

    def awaited_victims(self, scheduler: Scheduler, pod: PodSpec) -> list[PlacedPod]:
        """Return the victims for whose deletion the pod's gang waits; empty if the pod is to be scheduled.

        The first call for a gang of which not enough members are placed removes its nominated members from the
        snapshot, unless the gang waits.
        """
        key = gang_key(pod)
        if key is None:
            return []
        if key not in self._victims:
            self._victims[key] = self._suspend(scheduler, key, pod)
        return self._victims[key]

    def restore_undecided(self, decided: Collection[str]) -> None:
        """Put nominated members that the batch did not contain back into the snapshot."""
        for key, (nominee, placed) in self._suspended.items():
            if key not in decided:
                self._nominees.restore(nominee, placed)

    def suspended(self, pod: PodSpec) -> NominatedPod | None:
        """Return the nomination of a pod that was removed from the snapshot with those of its gang."""
        return self._suspended.get(pod.key)

    def _suspend(self, scheduler: Scheduler, key: str, pod: PodSpec) -> list[PlacedPod]:
        placed_pods = self._snapshot.state.placed_pods
        pods = [placed_pods[name].pod for name in self._snapshot.nominees]
        members = [member for member in pods if gang_key(member) == key]
        nominated = [found for member in members if (found := self._nominees.suspend(member)) is not None]
        least = _missing(scheduler, key, pod)
        victims = {one.pod.key: one for nominee, _ in nominated for one in self._nominees.remaining_victims(nominee)}
        going = list(victims.values()) if least > 0 else []
        if least > 0 and not (going and self._waits(scheduler, pod, nominated, going, least)):
            self._suspended |= {placed.pod.key: (nominee, placed) for nominee, placed in nominated}
            return []
        for nominee, placed in nominated:
            self._nominees.restore(nominee, placed)
        return going

    def _waits(
        self,
        scheduler: Scheduler,
        pod: PodSpec,
        nominated: Sequence[NominatedPod],
        going: Sequence[PlacedPod],
        least: int,
    ) -> bool:
        """Return whether a gang fits its nominated nodes without the victims, but does not fit as a whole now.

        The caller must already have removed the nominated members from the snapshot.
        """
        group = scheduler.state.gangs.group_of(pod)
        if len(nominated) < least or group is None:
            return False
        with scheduler.trial(list(group.members.values()), least) as trial:
            fits_now = trial.placed >= least
        group.check_again()
        waits = not fits_now and self._nominees.would_fit(scheduler, nominated, going)
        group.check_again()
        return waits


def _missing(scheduler: Scheduler, key: str, pod: PodSpec) -> int:
    """Return how many members a gang needs in addition to those that are placed."""
    least = 1 if pod.gang is None else pod.gang.min_available
    return least - scheduler.state.gangs.placed_members(key)


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
