"""The scheduling cycle: decide a batch of pending pods on a snapshot, without writing to the database.

Pods are decided in queue order, each under the active revision of its own policy. All pods share one snapshot, so each
decision includes the allocations of the earlier pods. If the engine fails on a pod, that pod gets the verdict *not now*
with the failure as its reason, and the other pods are still decided. A batch ends between gangs, never inside a gang:
pods that wait in permit are released at the end of their batch. The victims of a pod are part of its decision. If a
victim was placed in the same batch, its placement is undone. In a live cluster victims are not evicted immediately: the
pod is nominated and waits. The victims of a gang become part of the decisions when all its members of the batch were
decided; if the gang cannot start, nothing is evicted.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from hetsched.contracts.api.decision import PREEMPTION_SOURCE, NodeOutcome, Reason
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.explain.decision_matrix import best, best_of
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.gangs import gang_key, together
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy, by_decision_time
from hetsched.engine.framework.queueing_hints import for_anything
from hetsched.engine.framework.status import ProtectedPods
from hetsched.engine.simulation.evictions import evictions
from hetsched.placement.actions.evictions import unevictable_pods
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_queue.decision_time import FREE_SECONDS
from hetsched.placement.scheduling_result import Result

from .compiled_runs import CompiledRuns, UpcomingPods
from .hold_use import BatchReservations, HoldAssignment
from .nominations import GangNominations, Nominees, was_refused
from .results.explanations import RejectionExplanations
from .results.messages import possible_preemption
from .results.placed import PlacedResults
from .results.preemptors import GangPlacement, PreemptorResults
from .results.unplaced import (
    failed_result,
    mixed_gang_result,
    mixed_gangs,
    nominated_result,
    refused_result,
    rejected_result,
    timed_out_result,
    unknown_policy_result,
    waiting_gang_result,
    with_requeue,
)

TURN_SECONDS = 1.25 * FREE_SECONDS  # still above FREE_SECONDS in the next batch, where the namespace then comes last
log = structlog.get_logger(__name__)


class SchedulingCycle:
    """The scheduling cycle of one batch.

    `failed` is True if the snapshot is inconsistent. `took_seconds` contains the duration of each pod's decision.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        snapshot: ClusterSnapshot,
        specs: dict[str, PolicySpec],
        top_nodes: int,
        *,
        has_refused_evictions: bool,
    ) -> None:
        self.cache = cache
        self.snapshot = snapshot
        self.specs = specs
        self.top_nodes = top_nodes
        self.failed = False
        self.took_seconds: list[float] = []
        self._mixed_gangs: set[str] = set()
        self._schedulers: dict[int, Scheduler] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._assumed: list[tuple[int, Outcome, Scheduler]] = []
        self._runs = CompiledRuns(cache, specs, top_nodes)
        self._nominees = Nominees(snapshot)
        self._gang_nominations = GangNominations(snapshot, self._nominees)
        self._gang: list[GangPlacement] = []  # the gang that is being decided
        self._reservations = BatchReservations(snapshot, ())
        self._explanations = RejectionExplanations(snapshot, cache.cluster_id)
        self._refused_evictions: dict[int, list[Reason]] = defaultdict(list)
        self._placed = PlacedResults(snapshot)
        self._preemptors = PreemptorResults(snapshot, self._nominees, self._placed, self._explanations)
        if snapshot.nominates:
            self._protect_victims(unevictable_pods(cache.cluster_id) if has_refused_evictions else {})

    def _protect_victims(self, refused: dict[str, tuple[int, str]]) -> None:
        """Exclude pods whose eviction was recently refused from the choice of victims."""
        self.snapshot.state.spared = ProtectedPods(frozenset(refused), foreign=True)
        for victim, (pod_id, message) in refused.items():
            self._refused_evictions[pod_id].append(was_refused(victim, message))

    def decide(
        self,
        pending: Sequence[PendingPod],
        policy: Policy | None,
        seconds: float,
        most: int,
        used_seconds: Mapping[str, float] | None = None,
    ) -> list[Result]:
        """Decide `most` of these pods in the order of `policy`, or as many as possible within `seconds`.

        Namespaces in `used_seconds` used more than their share of decision time; their pods come last. The batch also
        ends before the next pod of any other namespace that has used `TURN_SECONDS` in this batch, if pods of other
        namespaces remain.

        At least one pod is decided. A gang is decided until its minimum is reached; members that are not decided after
        three times `seconds` are rejected. Decided pods are assumed in the snapshot.
        """
        began = time.monotonic()
        pods = {pod.spec.key: pod for pod in pending}
        self._mixed_gangs = mixed_gangs(pending)
        self._reservations = BatchReservations(self.snapshot, pending)
        self._use_mix(pending)
        results: list[Result] = []
        remaining = Counter(pod.spec.namespace for pod in pending)
        namespace_seconds: dict[str, float] = defaultdict(float)
        upcoming = self._upcoming(pods, policy, used_seconds or {})
        while upcoming:
            pod = upcoming.first(1)[0]
            if results and gang_key(pod.spec) != gang_key(results[-1].waiting.spec):
                self._end_gang(results)
            namespace, elapsed = pod.spec.namespace, time.monotonic() - began
            may_end = bool(results) and (len(results) >= most or elapsed > seconds)
            if namespace_seconds[namespace] > TURN_SECONDS and namespace not in (used_seconds or {}):
                # the next batch decides other namespaces first
                may_end = may_end or remaining[namespace] < remaining.total()
            if may_end and self._may_end_before(pod.spec, results[-1].waiting.spec):
                break
            run_began = time.perf_counter()
            run = self._place_run(upcoming, len(results), most - len(results))
            if not run and may_end and elapsed > 3 * seconds:
                run = [timed_out_result(pod, self.specs.get(pod.policy))]
            elif not run:
                run = [self._decide_pod(pod, len(results))]
            upcoming.drop(len(run))
            took = (time.perf_counter() - run_began) / len(run)
            for result in run:
                results.append(result)
                self.took_seconds.append(0.0)
                self._charge(result.waiting.spec, len(results) - 1, took)
                namespace_seconds[result.waiting.spec.namespace] += took
                remaining[result.waiting.spec.namespace] -= 1
        self._runs.count(pending)
        self._end_gang(results)
        return self._end_batch(results)

    def place(
        self,
        pending: Sequence[PendingPod],
        policy: Policy | None,
        seconds: float,
        used_seconds: Mapping[str, float],
    ) -> tuple[list[Result], set[str]]:
        """Try these pods, without gangs and holds, in the order of `policy`, until about `seconds` have passed.

        Return the placements, and the keys of the pods that were not tried. Pods that do not fit get no result, and
        nothing is assumed for them. The time of a single pod is not added to the decision time of its namespace,
        because no other pod waits. `used_seconds` is described in `decide`.
        """
        began = time.monotonic()
        pods = {pod.spec.key: pod for pod in pending}
        self._use_mix(pending)
        results: list[Result] = []
        upcoming, untried = self._upcoming(pods, policy, used_seconds), set(pods)
        self._runs.count(pending)
        while upcoming and (len(untried) == len(pods) or time.monotonic() - began <= seconds):
            run_began = time.perf_counter()
            run = self._place_run(upcoming, len(results), len(pending))
            tried = upcoming.first(max(len(run), 1))
            if not run:
                result = self._place_pod(tried[0], len(results))
                run = [] if result is None else [result]
            upcoming.drop(len(tried))
            untried.difference_update(pod.spec.key for pod in tried)
            results += run
            took = (time.perf_counter() - run_began) / len(tried)
            self.took_seconds += [took] * len(run)
            for pod in tried if len(pods) > 1 else ():
                self.cache.decision_seconds[pod.spec.namespace] += took
        return results, untried

    def undo(self) -> None:
        """Undo all placements of this batch on the snapshot."""
        for _, outcome, scheduler in reversed(self._assumed):
            scheduler.undo(outcome)
        self._assumed.clear()

    def _use_mix(self, pending: Sequence[PendingPod]) -> None:
        """Set the workload mix of the snapshot if a policy of these pods uses it."""
        policies_used = [self.specs[name] for name in {pod.policy for pod in pending} & self.specs.keys()]
        if any(self.cache.policy(spec).wants_mix for spec in policies_used):
            self.snapshot.state.use_mix(self.snapshot.state.placed_mix())

    def _charge(self, pod: PodSpec, position: int, took: float) -> None:
        """Add a duration in seconds to a pod's decision and to its namespace."""
        self.took_seconds[position] += took
        self.cache.decision_seconds[pod.namespace] += took

    def _may_end_before(self, pod: PodSpec, last: PodSpec) -> bool:
        """Return True if the batch may end between these pods: their gangs differ or the gang reached its minimum."""
        gang = pod.gang
        if gang is None or gang_key(pod) != gang_key(last):
            return True
        return self.snapshot.state.gangs.placed_members(gang_key(pod) or "") >= max(gang.min_available, 1)

    def _order(
        self, pods: Sequence[PodSpec], policy: Policy | None, used_seconds: Mapping[str, float]
    ) -> Iterable[PodSpec]:
        """Register the pods' gangs and return the pods in queue order, with the members of a gang adjacent."""
        state = self.snapshot.state
        if policy is None:
            state.gangs.register_queue(pods)
            return [pod for group in by_decision_time(pods, used_seconds) for pod in together(group)]
        order = policy.queue(pods, state, used_seconds)
        return order if policy.follows_placements else together(list(order))

    def _upcoming(
        self, pods: Mapping[str, PendingPod], policy: Policy | None, used_seconds: Mapping[str, float]
    ) -> UpcomingPods:
        order = self._order([pod.spec for pod in pods.values()], policy, used_seconds)
        return UpcomingPods(order, pods, is_fixed=policy is None or not policy.follows_placements)

    def _place_run(self, upcoming: UpcomingPods, position: int, most: int) -> list[Result]:
        """Place the next pods in the compiled loop; the list is empty if the cycle must decide the next pod."""
        try:
            placements = [] if self.failed else self._runs.place(upcoming, max(most, 1))
        except Exception:
            log.exception("the compiled loop failed")
            self.failed = True
            return []
        results: list[Result] = []
        for pending, (outcome, top) in zip(upcoming.first(len(placements)), placements, strict=True):
            scheduler = self.cache.scheduler(self.specs[pending.policy])
            self._outcomes[pending.spec.key] = outcome
            self._assumed.append((position + len(results), outcome, scheduler))
            results.append(self._placed.result(pending, scheduler, outcome, top))
        return results

    def _decide_pod(self, pending: PendingPod, position: int) -> Result:
        spec = self.specs.get(pending.policy)
        if spec is None:
            return unknown_policy_result(pending)
        try:
            return self._schedule_pod(pending, spec, position)
        except Exception as error:
            log.exception("the engine failed", pod=pending.spec.key, policy=spec.name)
            self.failed = True
            # remove the failed pod now, so that the other pods can use its capacity; the snapshot is discarded later
            with suppress(Exception):
                self.snapshot.state.forget(pending.spec.key)
            return failed_result(pending, spec, error)

    def _place_pod(self, pending: PendingPod, position: int) -> Result | None:
        """Assume a pod on the best node, without preemption; return None if it fits no node or waits in Permit."""
        spec = self.specs.get(pending.policy)
        if spec is None:
            return None
        try:
            scheduler = self.cache.scheduler(spec)
            top, outcome = self._schedule(scheduler, pending.spec, preempts=False)
        except Exception:
            log.exception("the engine failed", pod=pending.spec.key, policy=spec.name)
            self.failed = True
            return None
        if outcome.is_waiting:
            scheduler.undo(outcome)
        if outcome.node is None:
            return None
        self._assumed.append((position, outcome, scheduler))
        return self._placed.result(pending, scheduler, outcome, top)

    def _schedule(
        self, scheduler: Scheduler, pod: PodSpec, *, preempts: bool
    ) -> tuple[tuple[NodeOutcome, ...], Outcome]:
        """Schedule a pod; return its best nodes before the decision, and the outcome."""
        if pod.gang is not None or not pod.ready:
            return best(scheduler, pod, self.top_nodes), scheduler.schedule(pod, preempts=preempts)
        evaluated = scheduler.evaluate(pod)
        top = best_of(scheduler, evaluated, self.top_nodes)
        return top, scheduler.schedule(pod, preempts=preempts, evaluated=evaluated)

    def _schedule_pod(self, pending: PendingPod, spec: PolicySpec, position: int) -> Result:
        pod = pending.spec
        if gang_key(pod) in self._mixed_gangs:
            return mixed_gang_result(pending, spec)
        scheduler = self.cache.scheduler(spec)
        if id(scheduler) not in self._schedulers:
            self._schedulers[id(scheduler)] = scheduler
            scheduler.expire(time.monotonic())  # ends expired back-offs of gangs
        awaited = self._gang_nominations.awaited_victims(scheduler, pod)
        if awaited:
            return waiting_gang_result(pending, spec, self._nominees.nominated_node(pod), awaited)
        starts_with_gang = self._starts_with_gang(pod)
        nominated = self._nominees.suspend(pod)
        if nominated is None and not starts_with_gang:
            nominated = self._gang_nominations.suspended(pod)
        victims = self._nominees.remaining_victims(nominated[0]) if nominated else []
        waits = bool(nominated and victims and self._nominees.would_fit(scheduler, [nominated], victims))
        assignment = self._reservations.assign(scheduler, pending, self.top_nodes)
        if assignment is not None:
            return self._reservation_result(pending, spec, assignment, scheduler, position)
        top, outcome = self._schedule(scheduler, pod, preempts=not waits)
        if any(self._waits_in_permit(placed.pod.key) for placed in outcome.evicted):
            scheduler.undo(outcome)  # a victim waits in permit under another policy and may still start with its gang
            outcome.eviction = None
        if outcome.node is None:
            diagnosis = self._explanations.explain(scheduler, pod)
            if nominated is not None and waits:
                found = self._nominees.restore(*nominated)
                return nominated_result(pending, spec, found, diagnosis, victims, ())
            reasons = (
                *diagnosis.recorded,
                *possible_preemption(outcome),
                *self._refused_evictions.get(pending.pod_id, ()),
            )
            summary = joined("; ", [diagnosis.summary, *self._placed.stale_use(scheduler)])
            refused = rejected_result(pending, spec, diagnosis.verdict, summary, reasons)
            after_refusal = (
                for_anything(PREEMPTION_SOURCE, Message("")) if pending.pod_id in self._refused_evictions else ()
            )
            return msgspec.structs.replace(refused, waits_for=(*diagnosis.waits_for, *after_refusal))
        self._assumed.append((position, outcome, scheduler))
        if starts_with_gang:
            self._outcomes[pod.key] = outcome
            self._gang.append(GangPlacement(position, pending, outcome, top, scheduler))
            return self._placed.result(pending, scheduler, outcome, top)
        evicted = tuple(evictions(outcome, self._outcomes, scheduler.state))
        self._outcomes[pod.key] = outcome
        if outcome.evicted and self.snapshot.nominates:
            return self._preemptors.nominated(pending, scheduler, outcome, top, evicted)
        return self._placed.result(pending, scheduler, outcome, top, evicted)

    def _reservation_result(
        self, pending: PendingPod, spec: PolicySpec, assignment: HoldAssignment, scheduler: Scheduler, position: int
    ) -> Result:
        """Return the result of a pod that uses its reserved capacity."""
        self._outcomes[pending.spec.key] = assignment.outcome
        self._assumed.append((position, assignment.outcome, scheduler))
        result = self._placed.result(pending, scheduler, assignment.outcome, assignment.top)
        template = "{detail}, on the capacity reserved by hold {n}"
        summary = Message(template, detail=result.summary, n=assignment.hold_id)
        return msgspec.structs.replace(result, summary=summary, used_reservation=assignment.reservation)

    def _end_gang(self, results: list[Result]) -> None:
        """Add the victims of the gang that was decided last to the results of its members.

        The placements are undone if the gang is incomplete, so that later pods do not use the resources of its victims.
        """
        gang, self._gang = self._gang, []
        if not any(member.outcome.evicted for member in gang):
            return
        began = time.perf_counter()
        try:
            if any(member.outcome.is_waiting for member in gang):
                for member in reversed(gang):
                    member.scheduler.undo(member.outcome)
                return
            results_of_gang = self._preemptors.gang(
                [member for member in gang if member.outcome.node is not None], self._outcomes
            )
        except Exception as error:
            log.exception("the engine failed", gang=gang_key(gang[0].pending.spec))
            self.failed = True
            results_of_gang = [failed_result(member.pending, member.scheduler.policy.spec, error) for member in gang]
        positions = {member.pending.spec.key: member.position for member in gang}
        for result in results_of_gang:
            results[positions[result.waiting.spec.key]] = result
        self._charge(gang[-1].pending.spec, gang[-1].position, time.perf_counter() - began)

    def _starts_with_gang(self, pod: PodSpec) -> bool:
        """Return whether a pod starts together with other members of its gang that this batch decides.

        Otherwise its gang already has its minimum of members and does not wait for evictions.
        """
        key = gang_key(pod)
        if pod.gang is None or key is None:
            return False
        missing = pod.gang.min_available - self.snapshot.state.gangs.placed_members(key)
        return missing > 0 or any(member.outcome.evicted for member in self._gang)

    def _waits_in_permit(self, key: str) -> bool:
        return key in self._outcomes and self._outcomes[key].is_waiting

    def _end_batch(self, results: list[Result]) -> list[Result]:
        """Undo placements that Permit plugins neither allowed nor rejected, and explain all undone placements."""
        self._gang_nominations.restore_undecided({result.waiting.spec.key for result in results})
        for scheduler in self._schedulers.values():
            scheduler.settle()
            scheduler.waiting_pods.drain()
        for position, outcome, scheduler in self._assumed:
            if outcome.node is None:
                began = time.perf_counter()
                pending, evicted = results[position].waiting, results[position].evicted
                # Discard the snapshot: it lacks the hold's capacity that the pod used, although its row exists.
                self.failed = self.failed or results[position].used_reservation is not None
                if results[position].nominated is not None:
                    evicted = ()  # evictions for a nominated pod were not requested yet
                undone = self._undone_result(pending, self.specs[pending.policy], outcome, scheduler)
                # Other victims are evicted in any case, because later pods may have been placed on their resources.
                results[position] = msgspec.structs.replace(undone, evicted=evicted)
                self._charge(pending.spec, position, time.perf_counter() - began)
        if any(outcome.node is None for _, outcome, _ in self._assumed):
            return [with_requeue(result) for result in results]
        return results

    def _undone_result(self, pending: PendingPod, spec: PolicySpec, outcome: Outcome, scheduler: Scheduler) -> Result:
        """Explain why a placement was undone, with the refusal of a plugin or a diagnosis of the current state."""
        group = self.snapshot.state.gangs.group_of(pending.spec)
        if outcome.refusal is None or (group is not None and group.refusal is not None):
            found = self._explanations.explain(scheduler, pending.spec)
            refused = rejected_result(pending, spec, found.verdict, found.summary, found.recorded)
            return msgspec.structs.replace(refused, waits_for=found.waits_for)
        return refused_result(pending, spec, *outcome.refusal)
