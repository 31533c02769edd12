"""The extension points that one pod passes in a scheduling cycle, from a pending pod to an assumed pod.

The extension points run in the order of the Scheduling Framework: PreFilter, Filter, (PostFilter), PreScore, Score,
NormalizeScore, node selection, Reserve, Permit; then, outside the serial part, PreBind, Bind, PostBind. A refusal after
Reserve runs Unreserve and forgets the assumed pod. In the same cycle, the permit plugins reject the waiting pods that
depended on this pod. Among nodes with equal total score, the first by name is selected or, if the policy says so, a
pseudo-random node that depends only on the seed and the pod.
Source: Kubernetes documentation, "Scheduling Framework".
Invariants: a refused pod leaves the state unchanged; the same state, policy and pod give the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import EMPTY, Allocation, IsaGrant
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Floats
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose

from .handle import Trial
from .outcome import Outcome
from .policy import Policy
from .post_filter import Attempt
from .request import Request
from .scoring import INFEASIBLE, EvaluatedPod, Evaluator
from .status import Eviction, Refusal, Wait
from .waiting_pods import WaitingPods

ANY_ISA = IsaGrant("any")
OTHERS_NOT_PLACED = Refusal("PermitWaiting", Message("pods that must start together with this pod are not placed yet"))


class Scheduler:
    """Run scheduling cycles one after the other on one state under one policy.

    With `evicts`, the scheduler removes the victims that a PostFilter plugin names from the state; otherwise it only
    reports them.
    """

    def __init__(self, state: ClusterState, policy: Policy, *, evicts: bool = False) -> None:
        self.state = state
        self.policy = policy
        if policy.wants_mix and not state.mix_is_set:
            state.use_mix(state.placed_mix())
        self.evaluator = Evaluator(state, policy)
        self.waiting_pods = WaitingPods(state)
        self.evicts = evicts

    def schedule(self, pod: PodSpec, *, preempts: bool = True, evaluated: EvaluatedPod | None = None) -> Outcome:
        """Select a node for `pod` and assume the pod there; a pod that is not ready is skipped.

        Without `preempts`, the PostFilter plugins do not run. `evaluated` is a valid evaluation of a pod without gang.
        """
        outcome = Outcome(pod)
        if not pod.ready:
            return outcome
        self.state.gangs.mark_tried(pod)
        evaluated = evaluated or self.evaluate(pod)
        request = outcome.request = evaluated.request
        request.scored = {}  # outcomes may be kept
        if not self._place(outcome, evaluated):
            if preempts:
                self._post_filter(outcome, request)
            if outcome.eviction is not None and self.evicts:
                self._evict(outcome, request, outcome.eviction)
            if outcome.node is None:
                self._notify_unschedulable(request)
        return outcome

    def evaluate(self, pod: PodSpec) -> EvaluatedPod:
        """Evaluate a pod on the current state."""
        self.prepare(pod)
        request = self.state.compile(pod)
        return EvaluatedPod(request, *self.evaluator.evaluate(request))

    def prepare(self, pod: PodSpec) -> None:
        """Let plugins decide for all members of a gang before the nodes of its first member are evaluated.

        Further calls for members of the same registered queue have no effect.
        """
        for plugin in self.policy.preparing:
            if pod.ready and plugin.concerns(pod) and plugin.prepare is not None:
                plugin.prepare(self.state.compile(pod), self)

    @contextmanager
    def trial(
        self, pods: Sequence[PodSpec], least: int, select: Callable[[Request], Eviction | None] | None = None
    ) -> Iterator[Trial]:
        """Place pods in order, without Permit and PostFilter, and undo all placements at the end of the `with` block.

        The trial stops as soon as fewer than `least` of the pods can be placed. `select` may name victims for a pod
        that fits no node; they are removed during the trial, which then also stops after `least` placements.
        """
        placed: list[tuple[Request, int]] = []
        evicted: list[PlacedPod] = []
        attempts, failed = 0, None
        try:
            for attempts, pod in enumerate(pods, start=1):
                if select is not None and len(placed) >= least:
                    break
                request = self.state.compile(pod)
                _, total = self.evaluator.evaluate(request)
                row, reserved = self._reserve_best(request, total)
                eviction = select(request) if row < 0 and select is not None else None
                if eviction is not None:
                    evicted += [one for key in eviction.victims if (one := self.state.forget(key)) is not None]
                    _, total = self.evaluator.evaluate(request)
                    row, reserved = self._reserve_best(request, total)
                if row >= 0:
                    self.state.assume(request, row, reserved)
                    placed.append((request, row))
                    continue
                failed = failed or request
                if len(placed) + len(pods) - attempts < least:
                    break
            yield Trial(len(placed), attempts, failed)
        finally:
            for request, row in reversed(placed):
                self._unreserve(request, row)
                self.state.forget(request.pod.key)
            for victim in evicted:
                self.state.restore(victim)

    def _place(self, outcome: Outcome, evaluated: EvaluatedPod) -> bool:
        """Select a node and assume the pod there, unless a permit plugin refuses; return whether a node was found."""
        request, evaluation, total = evaluated
        row, reserved = self._reserve_best(request, total)
        if row < 0:
            if evaluation.refusal is not None:
                outcome.refusal = (evaluation.refusal[0].name, evaluation.refusal[1])
            return False
        self._assume_pod(outcome, request, row, reserved)
        weights = evaluation.weight_sum + request.cluster_weight
        outcome.score = float(total[row]) / weights if weights else 0.0
        return True

    def _reserve_best(self, request: Request, total: Floats) -> tuple[int, Allocation]:
        """Reserve on the row with the highest total on which the reservation succeeds; the row is -1 if there is none.

        The caller must then assume or unreserve the allocation.
        """
        row = self.pick(request, total)
        tried = total
        while row >= 0:
            reserved = self.reserve(request, row)
            if not isinstance(reserved, Refusal):
                return row, reserved
            if tried is total:
                tried = total.copy()
            tried[row] = INFEASIBLE
            row = self.pick(request, tried)
        return -1, EMPTY

    def pick(self, request: Request, total: Floats) -> int:
        """Return the row with the highest total, or -1 if no row is feasible."""
        if not total.size:
            return -1
        row = int(total.argmax())
        best = total[row]
        if best == INFEASIBLE:
            return -1
        ties = self.policy.spec.ties
        if ties.by == "random":
            equal = np.flatnonzero(total == best)
            draw = blake2b(f"{ties.seed}/{request.pod.key}".encode(), digest_size=8).digest()
            row = int(equal[int.from_bytes(draw) % len(equal)])
        return row

    def _post_filter(self, outcome: Outcome, request: Request) -> None:
        """Run the PostFilter plugins in order until one of them returns an eviction."""
        if not self.policy.post_filters:
            return
        attempt = Attempt(self, request)
        for plugin in self.policy.post_filters:
            outcome.eviction = plugin.instance.post_filter(request, attempt, self.state)
            if outcome.eviction is not None:
                return

    def _evict(self, outcome: Outcome, request: Request, eviction: Eviction) -> None:
        """Remove the victims and place the pod; restore the victims if the pod still cannot start immediately.

        Members of a gang that starts after the eviction of other pods wait in Permit for each other.
        """
        placed_pods, group = self.state.placed_pods, self.state.gangs.group_of(outcome.pod)
        may_wait = group is not None and group.preempts
        if all(key in placed_pods and key not in self.waiting_pods.pods for key in eviction.victims):
            outcome.evicted = tuple(placed_pods[key] for key in eviction.victims)
            for key in eviction.victims:
                self.state.forget(key)
            outcome.refusal = None
            evaluated = EvaluatedPod(request, *self.evaluator.evaluate(request))
            if self._place(outcome, evaluated) and outcome.node is not None and (may_wait or not outcome.is_waiting):
                return
            self._undo_placement(outcome)
        outcome.eviction = None

    def _notify_unschedulable(self, request: Request) -> None:
        """Reject waiting pods that depended on this pod."""
        for plugin in self.policy.permits_for(request.pod):
            if plugin.missed is not None:
                plugin.missed(request, self.waiting_pods, partial(diagnose, self, request.pod))
        self._undo_rejected()

    def can_reserve(self, request: Request, row: int) -> bool:
        """Return whether the devices, CPUs and zones that the pod needs on a row can be reserved now."""
        return self.reserve_refusal(request, row) is None

    def reserve_refusal(self, request: Request, row: int) -> Refusal | None:
        """Return why the pod's devices, CPUs and zones cannot be reserved on a row now, or None if they can."""
        reserved = self.reserve(request, row)
        if isinstance(reserved, Refusal):
            return reserved
        self._unreserve(request, row)
        return None

    def _unreserve(self, request: Request, row: int) -> None:
        for plugin in self.policy.reserves:
            plugin.instance.unreserve(request, row, self.state)

    def place_on(self, pod: PodSpec, row: int, allocation: Allocation | None = None) -> Outcome:
        """Assume `pod` on a row that the caller chose, if all filters accept it and its reservation succeeds.

        This does not preempt pods and does not run permit plugins; the caller starts the pod. If `allocation` is given,
        it is used instead of a new reservation.
        """
        outcome = Outcome(pod)
        self.prepare(pod)
        request = outcome.request = self.state.compile(pod)
        evaluation, total = self.evaluator.evaluate(request)
        if not pod.ready or total[row] == INFEASIBLE:
            return outcome
        reserved = self.reserve(request, row) if allocation is None else allocation
        if isinstance(reserved, Refusal):
            outcome.refusal = ("reserve", reserved)
            return outcome
        outcome.row, outcome.node = row, self.state.columns.names[row]
        outcome.allocation = self.state.assume(request, row, reserved).allocation
        weights = evaluation.weight_sum + request.cluster_weight
        outcome.score = float(total[row]) / weights if weights else 0.0
        return outcome

    def reserve(self, request: Request, row: int) -> Allocation | Refusal:
        """Run the Reserve plugins for the pod on a row; return the allocation or a refusal.

        The caller must then assume or unreserve the allocation.
        """
        allocation = EMPTY
        for position, plugin in enumerate(self.policy.reserves):
            part = plugin.instance.reserve(request, row, self.state)
            if isinstance(part, Refusal):
                for earlier in self.policy.reserves[: position + 1]:
                    earlier.instance.unreserve(request, row, self.state)
                return part
            if part is not None:
                allocation = part if allocation is EMPTY else merge_allocations(allocation, part)
        return allocation

    def _assume_pod(self, outcome: Outcome, request: Request, row: int, allocation: Allocation) -> None:
        outcome.row, outcome.node = row, self.state.columns.names[row]
        outcome.allocation = self.state.assume(request, row, allocation).allocation
        waits: dict[str, Wait] = {}
        for plugin in self.policy.permits_for(outcome.pod):
            answer = plugin.instance.permit(request, row, self.waiting_pods)
            if isinstance(answer, Refusal):
                outcome.refusal = (plugin.name, answer)
                self.undo(outcome)
                return
            if isinstance(answer, Wait):
                waits[plugin.name] = answer
        if waits:
            outcome.is_waiting = True
            self.waiting_pods.add(outcome, waits)

    def settle(self) -> None:
        """Undo the placements that still wait for a permit. Call this once no further gang members can arrive."""
        for key, waiting_pod in list(self.waiting_pods.pods.items()):
            self.waiting_pods.reject(key, (min(waiting_pod.holders), OTHERS_NOT_PLACED))
        self._undo_rejected()

    def expire(self, now_seconds: float) -> None:
        """Undo placements whose permit timeout has passed on the caller's clock, and end expired gang back-offs."""
        self.state.gangs.end_backoffs(now_seconds)
        self.waiting_pods.expire(now_seconds)
        self._undo_rejected()

    def undo(self, outcome: Outcome) -> None:
        """Undo a placement and the placements that waited for it; a second call has no effect.

        Later placements may exist. This restores the pods that were evicted for the placement, so undo several
        placements in reverse order.
        """
        self._undo_placement(outcome)
        self._undo_rejected()

    def _undo_rejected(self) -> None:
        while self.waiting_pods.to_undo:
            self._undo_placement(self.waiting_pods.to_undo.popleft())

    def _undo_placement(self, outcome: Outcome) -> None:
        if outcome.row < 0:
            self._restore(outcome)
            return
        request = outcome.request or self.state.compile(outcome.pod)
        self._unreserve(request, outcome.row)
        self.state.forget(outcome.pod.key)
        self._restore(outcome)
        self.waiting_pods.remove(outcome.pod.key)
        outcome.node, outcome.row, outcome.allocation, outcome.is_waiting = None, -1, EMPTY, False
        for plugin in self.policy.permits_for(outcome.pod):
            if plugin.withdrawn is not None:
                plugin.withdrawn(request, self.waiting_pods)

    def _restore(self, outcome: Outcome) -> None:
        """Restore the victims that were evicted for a placement that is undone."""
        for placed in outcome.evicted:
            self.state.restore(placed)
        outcome.evicted = ()

    def bind(self, outcome: Outcome) -> Refusal | None:
        """Run the binding cycle of an assumed pod. If a plugin refuses, the placement is undone.

        Under a policy without a Bind plugin the caller writes the binding and records the outcome itself.
        """
        if outcome.node is None or outcome.is_waiting:
            raise ValueError(f"{outcome.pod.key} is {'held' if outcome.is_waiting else 'not placed'}")
        arguments = (outcome.pod, outcome.node, outcome.allocation)
        steps = [(plugin, plugin.instance.pre_bind) for plugin in self.policy.pre_binds]
        steps += [(plugin, plugin.instance.bind) for plugin in self.policy.binds]
        for plugin, step in steps:
            refusal: Refusal | None = step(*arguments)
            if refusal is not None:
                outcome.refusal = (plugin.name, refusal)
                self.undo(outcome)
                return refusal
        for plugin in self.policy.post_binds:
            plugin.instance.post_bind(*arguments)
        return None


def merge_allocations(first: Allocation, second: Allocation) -> Allocation:
    """Merge two parts of a pod's allocation."""
    return msgspec.structs.replace(
        first,
        gpus=first.gpus + second.gpus,
        zones=first.zones + second.zones,
        volumes=first.volumes + second.volumes,
        devices=first.devices + second.devices,
        extended=second.extended or first.extended,
        isa=second.isa or first.isa,
        cpu_policy=second.cpu_policy or first.cpu_policy,
    )
