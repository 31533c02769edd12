"""Decide a batch of pending pods on a snapshot, without writing to the database.

Pods are taken in queue order, each under the active revision of its own policy. All share one snapshot, so each pod
sees the allocations of the earlier ones. If the engine fails on a pod, that pod is *not now* with the failure as its
reason, and the others continue. A batch ends between gangs, never inside one: pods waiting in permit do not outlast the
batch and are released at its end. The victims of a pod are part of its decision; a victim placed in the same batch is
not placed after all. On a live cluster no victim is evicted at once: the pod is nominated and waits.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from hetsched.contracts.api.decision import GANG_SOURCE, PREEMPTION_SOURCE, Evicted, NodeOutcome, Reason, Verdict
from hetsched.contracts.message import Message, about, joined
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.explain.diagnosis import best, diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.gangs import gang_key, together
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy, by_decision_time
from hetsched.engine.framework.queueing_hints import for_anything
from hetsched.engine.framework.status import ProtectedPods
from hetsched.engine.simulation.evictions import evictions
from hetsched.placement.actions import Nominated, Result
from hetsched.placement.actions.evictions import spared
from hetsched.placement.scheduler_cache import ClusterSnapshot, SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_queue.decision_time import FREE_SECONDS

from .force_deleted import ForceDeleted
from .hold_use import BatchReservations, HoldAssignment
from .nominations import Nominees, waits_for, was_refused
from .result_messages import held_by, image_warnings, placement_summary, possible_preemption, unknown_images

_SCORE_DIGITS = 6
TURN_SECONDS = 1.25 * FREE_SECONDS  # the next batch then orders the namespace last, although its time decays
log = structlog.get_logger(__name__)


class _Explained(msgspec.Struct, frozen=True):
    """Why a pod is rejected, and the force-deleted pods that block it."""

    diagnosis: Diagnosis
    held: tuple[Reason, Message] | None


class SchedulingCycle:
    """One batch in progress; `failed`: the snapshot is inconsistent; `took_seconds`: one entry per pod."""

    def __init__(
        self,
        cache: SchedulerCache,
        loaded: ClusterSnapshot,
        specs: dict[str, PolicySpec],
        top_nodes: int,
        *,
        has_refused_evictions: bool,
    ) -> None:
        self.cache = cache
        self.loaded = loaded
        self.specs = specs
        self.top_nodes = top_nodes
        self.failed = False
        self.took_seconds: list[float] = []
        self._mixed: set[str] = set()
        self._schedulers: dict[int, Scheduler] = {}
        self._diagnosed: dict[tuple[str, Shape, tuple[int, int]], tuple[PodSpec, _Explained]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._booked: list[tuple[int, Outcome, Scheduler]] = []
        self._nominees = Nominees(loaded)
        self._reservations = BatchReservations(loaded, ())
        self._force_deleted = ForceDeleted(loaded, cache.cluster_id)
        self._refused_for: dict[int, list[Reason]] = defaultdict(list)
        self._unmeasured: tuple[Message, ...] | None = None
        if loaded.nominates:
            self._spare(spared(cache.cluster_id) if has_refused_evictions else {})

    def _spare(self, refused: dict[str, tuple[int, str]]) -> None:
        """Exclude victims whose eviction was recently refused."""
        self.loaded.state.spared = ProtectedPods(frozenset(refused), foreign=True)
        for victim, (pod_id, message) in refused.items():
            self._refused_for[pod_id].append(was_refused(victim, message))

    def decide(
        self,
        waiting: Sequence[PendingPod],
        policy: Policy | None,
        seconds: float,
        most: int,
        behind: Mapping[str, float] | None = None,
    ) -> list[Result]:
        """Decide about `most` of these pods, in the order of `policy`, or as many as fit into `seconds`.

        Namespaces in `behind` used more than their share of decision time; their pods come last. The batch also ends
        before the next pod of another namespace that used `TURN_SECONDS`, if pods of others are left.

        At least one pod is decided. A gang is decided until its minimum is reached; members after three times `seconds`
        are rejected. Decided pods are assumed in the snapshot.
        """
        began = time.monotonic()
        pods = {pod.spec.key: pod for pod in waiting}
        self._mixed = _mixed(waiting)
        self._reservations = BatchReservations(self.loaded, waiting)
        used = [self.specs[name] for name in {pod.policy for pod in waiting} & self.specs.keys()]
        if any(self.cache.policy(spec).wants_mix for spec in used):
            self.loaded.state.use_mix(self.loaded.state.booked_mix())
        results: list[Result] = []
        left = Counter(pod.spec.namespace for pod in waiting)
        took_of: dict[str, float] = defaultdict(float)
        for spec in self._order([pod.spec for pod in waiting], policy, behind or {}):
            spent = time.monotonic() - began
            over = bool(results) and (len(results) >= most or spent > seconds)
            if took_of[spec.namespace] > TURN_SECONDS and spec.namespace not in (behind or {}):
                over = over or left[spec.namespace] < left.total()  # others come first in the next batch
            if over and self._may_end_before(spec, results[-1].waiting.spec):
                break
            slow = over and spent > 3 * seconds
            began_one = time.perf_counter()
            results.append(self._too_slow(pods[spec.key]) if slow else self._one(pods[spec.key], len(results)))
            self.took_seconds.append(0.0)
            self._charge(spec, len(results) - 1, began_one)
            took_of[spec.namespace] += self.took_seconds[-1]
            left[spec.namespace] -= 1
        return self._settled(results)

    def _charge(self, pod: PodSpec, position: int, began: float) -> None:
        """Add the time since `began` (time.perf_counter()) to a pod's decision and to its namespace."""
        took = time.perf_counter() - began
        self.took_seconds[position] += took
        self.cache.spent[pod.namespace] += took

    def _may_end_before(self, pod: PodSpec, last: PodSpec) -> bool:
        """Return whether the batch may end between these two pods: their gangs differ, or their gang is complete."""
        gang = pod.gang
        if gang is None or gang_key(pod) != gang_key(last):
            return True
        return self.loaded.state.gangs.members_booked(gang_key(pod) or "") >= max(gang.min_available, 1)

    def _order(self, pods: Sequence[PodSpec], policy: Policy | None, behind: Mapping[str, float]) -> Iterable[PodSpec]:
        """Register the pods' gangs and return the pods in queue order, with the members of a gang adjacent."""
        state = self.loaded.state
        if policy is None:
            state.gangs.register(pods)
            return [pod for group in by_decision_time(pods, behind) for pod in together(group)]
        order = policy.queue(pods, state, behind)
        return order if policy.follows_placements else together(list(order))

    def _one(self, waiting: PendingPod, position: int) -> Result:
        spec = self.specs.get(waiting.policy)
        if spec is None:
            reason = Reason(
                "PolicyUnknown",
                "policy",
                0,
                Message("policy {policy} has no active version", policy=repr(waiting.policy)),
            )
            return Result(waiting, Verdict.NOT_NOW, reason.message, waiting.policy, 0, reasons=(reason,))
        try:
            return self._try(waiting, spec, position)
        except Exception as error:
            log.exception("the engine failed", pod=waiting.spec.key, policy=spec.name)
            self.failed = True
            with suppress(Exception):  # the rest is dropped with the snapshot; until then other pods need this capacity
                self.loaded.state.forget(waiting.spec.key)
            reason = Reason(
                "EngineError", "engine", 0, Message("the decision failed: {name}", name=type(error).__name__)
            )
            summary = Message("{pod} could not be scheduled: {name}", pod=waiting.spec.key, name=type(error).__name__)
            return self._refused(waiting, spec, Verdict.NOT_NOW, summary, (reason,))

    def _try(self, waiting: PendingPod, spec: PolicySpec, position: int) -> Result:
        pod = waiting.spec
        if gang_key(pod) in self._mixed:
            message = Message("gang {key}: its members name different policies", key=gang_key(pod) or "")
            reason = Reason("GangMixed", GANG_SOURCE, 0, message)
            return self._refused(waiting, spec, Verdict.MISCONFIGURED, message, (reason,))
        scheduler = self.cache.scheduler(spec)
        if id(scheduler) not in self._schedulers:
            self._schedulers[id(scheduler)] = scheduler
            scheduler.expire(time.monotonic())  # ends the backoff of gangs that is over
        nominated = self._nominees.suspend(pod)
        going = self._nominees.remaining_victims(nominated[0]) if nominated else []
        waits = bool(nominated and going and self._nominees.would_fit(scheduler, pod, nominated[0], going))
        given = self._reservations.give(scheduler, waiting, self.top_nodes)
        if given is not None:
            return self._use_reservation(waiting, spec, given, scheduler, position)
        top = best(scheduler, pod, self.top_nodes)
        outcome = scheduler.schedule(pod, preempts=not waits)
        if any(self._holds(booking.pod.key) for booking in outcome.evicted):
            scheduler.undo(outcome)  # under another policy it may still start with its gang
            outcome.eviction = None
        if outcome.node is None:
            diagnosis = self._diagnose(scheduler, spec, pod)
            if nominated is not None and waits:
                found = self._nominees.restore(*nominated)
                return self._nominated(waiting, spec, found, diagnosis, going, ())
            reasons = (*diagnosis.recorded, *possible_preemption(outcome), *self._refused_for.get(waiting.pod_id, ()))
            summary = joined("; ", [diagnosis.summary, *self._by_requests(scheduler)])
            refused = self._refused(waiting, spec, diagnosis.verdict, summary, reasons)
            after_refusal = for_anything(PREEMPTION_SOURCE, Message("")) if waiting.pod_id in self._refused_for else ()
            return msgspec.structs.replace(refused, waits_for=(*diagnosis.waits_for, *after_refusal))
        evicted = tuple(evictions(outcome, self._outcomes, scheduler.state))
        self._outcomes[pod.key] = outcome
        self._booked.append((position, outcome, scheduler))
        if outcome.evicted and self.loaded.nominates:
            return self._nominate(waiting, spec, outcome, top, evicted, scheduler)
        return self._placed(waiting, spec, outcome, top, evicted)

    def _use_reservation(
        self, waiting: PendingPod, spec: PolicySpec, given: HoldAssignment, scheduler: Scheduler, position: int
    ) -> Result:
        """Return the result of a pod that uses its reserved capacity."""
        self._outcomes[waiting.spec.key] = given.outcome
        self._booked.append((position, given.outcome, scheduler))
        result = self._placed(waiting, spec, given.outcome, given.top, ())
        template = "{said}, in the reserved capacity of hold {n}"
        summary = Message(template, said=result.summary, n=given.hold_id)
        return msgspec.structs.replace(result, summary=summary, room=given.room)

    def _nominate(
        self,
        waiting: PendingPod,
        spec: PolicySpec,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...],
        scheduler: Scheduler,
    ) -> Result:
        """Nominate a pod for the node on which it fits after its victims have left."""
        before = {booking.pod.key: booking for booking in outcome.evicted}
        found, superseded = self._nominees.settle(outcome, evicted)
        if found is None:
            return msgspec.structs.replace(self._placed(waiting, spec, outcome, top, ()), overridden=superseded)
        state = scheduler.state
        own = state.forget(outcome.pod.key)
        assert own is not None
        diagnosis = self._diagnose(scheduler, spec, outcome.pod)
        state.restore(own)
        leaving = tuple(one for one in evicted if one.pod not in superseded)
        going = [before[one.pod] for one in leaving]
        result = self._nominated(waiting, spec, found, diagnosis, going, leaving)
        return msgspec.structs.replace(result, overridden=superseded)

    def _nominated(
        self,
        waiting: PendingPod,
        spec: PolicySpec,
        found: Nominated,
        diagnosis: Diagnosis,
        going: Sequence[Booking],
        evicted: tuple[Evicted, ...],
    ) -> Result:
        reason = waits_for(found.node_name, going)
        summary = Message("{pod} waits: {said}", pod=waiting.spec.key, said=reason.message)
        summary = joined("; ", [summary, *held_by(diagnosis)])
        result = self._refused(waiting, spec, Verdict.NOT_NOW, summary, (reason, *diagnosis.recorded))
        leave = WaitsFor(
            PREEMPTION_SOURCE,
            (Event.POD_RELEASED,),
            Message("the deletion of the victims on {node}", node=found.node_name),
        )
        waits = (leave, *diagnosis.waits_for)
        return msgspec.structs.replace(result, evicted=evicted, nominated=found, waits_for=waits)

    def _holds(self, key: str) -> bool:
        return key in self._outcomes and self._outcomes[key].held

    def _diagnose(self, scheduler: Scheduler, spec: PolicySpec, pod: PodSpec) -> Diagnosis:
        """Explain a rejection; equal pods in a row without an allocation in between share the explanation."""
        group = scheduler.state.gangs.group_of(pod)
        if not pod.ready or (group is not None and group.refusal is not None):
            return diagnose(scheduler, pod)
        if pod.owner in scheduler.state.avoided:
            return diagnose(scheduler, pod)  # its reasons depend on its owner
        known = self._diagnosed.get(self._explained_at(scheduler, spec, pod))
        if known is None or not _alike(known[0], pod):
            diagnosis = diagnose(scheduler, pod)
            held = self._force_deleted.reason(scheduler, pod) if diagnosis.verdict is Verdict.NOT_NOW else None
            # The log has grown where force-deleted pods were removed and restored.
            known = self._diagnosed[self._explained_at(scheduler, spec, pod)] = (pod, _Explained(diagnosis, held))
        _, explained = known
        summary = about(explained.diagnosis.summary, pod.key)
        if explained.held is None:
            return msgspec.structs.replace(explained.diagnosis, summary=summary)
        reason, sentence = explained.held
        found = explained.diagnosis
        reasons, candidates = (*found.reasons, reason), found.candidates and (*found.candidates, ())
        summary = joined("; ", [summary, sentence])
        return msgspec.structs.replace(found, summary=summary, reasons=reasons, candidates=candidates)

    def _explained_at(self, scheduler: Scheduler, spec: PolicySpec, pod: PodSpec) -> tuple[str, Shape, tuple[int, int]]:
        return spec.name, pod.shape, (scheduler.state.epoch, len(scheduler.state.log))

    def _placed(
        self,
        waiting: PendingPod,
        spec: PolicySpec,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...],
    ) -> Result:
        assert outcome.node is not None
        score = round(outcome.score, _SCORE_DIGITS)
        scheduler = self.cache.scheduler(spec)
        said = placement_summary(waiting.spec.key, outcome, f"{score:.1f}")
        return Result(
            waiting,
            Verdict.PLACED,
            joined(
                "; ", [said, *unknown_images(waiting.spec), *image_warnings(outcome), *self._by_requests(scheduler)]
            ),
            spec.name,
            spec.version,
            node_id=self.loaded.node_ids[outcome.node],
            node_name=outcome.node,
            allocation=outcome.allocation,
            score=score,
            top=top,
            evicted=evicted,
        )

    def _by_requests(self, scheduler: Scheduler) -> tuple[Message, ...]:
        """Return a note that measured usage could not be used, with the number of stale nodes."""
        if not scheduler.policy.measures:
            return ()
        if self._unmeasured is None:
            late, nodes = len(scheduler.state.stale()), len(scheduler.state.reports)
            template = "decided by requests: the measured use of {n} of {m} nodes is stale"
            self._unmeasured = (Message(template, n=late, m=nodes),) if late else ()
        return self._unmeasured

    def _refused(
        self, waiting: PendingPod, spec: PolicySpec, verdict: Verdict, summary: Message, reasons: tuple[Reason, ...]
    ) -> Result:
        return Result(waiting, verdict, summary, spec.name, spec.version, reasons=reasons)

    def _too_slow(self, waiting: PendingPod) -> Result:
        message = Message(
            "gang {key}: its decision exceeded the time limit of one iteration", key=gang_key(waiting.spec) or ""
        )
        reason = Reason("GangTooSlow", GANG_SOURCE, 0, message)
        spec = self.specs.get(waiting.policy)
        version = 0 if spec is None else spec.version
        return Result(waiting, Verdict.NOT_NOW, message, waiting.policy, version, reasons=(reason,))

    def _settled(self, results: list[Result]) -> list[Result]:
        """Undo placements that permit neither allowed nor rejected, and explain those pods and the displaced ones."""
        for scheduler in self._schedulers.values():
            scheduler.settle()
            scheduler.room.drain()
        for position, outcome, scheduler in self._booked:
            if outcome.node is None:
                began = time.perf_counter()
                waiting, evicted = results[position].waiting, results[position].evicted
                self.failed = self.failed or results[position].room is not None  # its row still has the reservation
                if results[position].nominated is not None:
                    evicted = ()  # the victims were not notified yet
                undone = self._undone(waiting, self.specs[waiting.policy], outcome, scheduler)
                # Its victims are evicted all the same: the next pod took their place.
                results[position] = msgspec.structs.replace(undone, evicted=evicted)
                self._charge(waiting.spec, position, began)
        if any(outcome.node is None for _, outcome, _ in self._booked):
            return [_requeued(result) for result in results]
        return results

    def _undone(self, waiting: PendingPod, spec: PolicySpec, outcome: Outcome, scheduler: Scheduler) -> Result:
        """Explain a pod whose placement was undone, by the state of the gang it had to start with."""
        group = self.loaded.state.gangs.group_of(waiting.spec)
        if outcome.refusal is None or (group is not None and group.refusal is not None):
            found = self._diagnose(scheduler, spec, waiting.spec)
            refused = self._refused(waiting, spec, found.verdict, found.summary, found.recorded)
            return msgspec.structs.replace(refused, waits_for=found.waits_for)
        plugin, refusal = outcome.refusal
        reason = Reason(refusal.code, plugin, 0, refusal.message)
        summary = Message("{pod} waits: {said}", pod=waiting.spec.key, said=reason.message)
        return self._refused(waiting, spec, Verdict.NOT_NOW, summary, (reason,))


def _requeued(result: Result) -> Result:
    """Requeue a rejected pod: the pod that blocked it may not be placed after all."""
    if result.verdict is not Verdict.NOT_NOW:
        return result
    return msgspec.structs.replace(result, waits_for=(*result.waits_for, *for_anything(GANG_SOURCE, Message(""))))


def _alike(one: PodSpec, other: PodSpec) -> bool:
    """Return whether the explanation of one rejected pod applies to another one of the same shape."""
    return (one.namespace, one.labels, one.gang) == (other.namespace, other.labels, other.gang)


def _mixed(waiting: Sequence[PendingPod]) -> set[str]:
    """Return the gangs whose members name different policies; such members cannot wait for each other."""
    policies: dict[str, set[str]] = defaultdict(set)
    for pod in waiting:
        key = gang_key(pod.spec)
        if key is not None:
            policies[key].add(pod.policy)
    return {key for key, names in policies.items() if len(names) > 1}
