"""Decide for a batch of waiting pods on a warm state; nothing is written here.

Rule: pods are taken in queue order, each under the active revision of its own policy, all on one state, so each sees
the earlier ones. What the engine cannot decide because it fails is *not now* with the failure as its reason: one odd
pod never stops the others. A batch ends between gangs, never inside one: what is held does not outlast it, so whoever
is held at its end is given back. Pods that have to leave for another leave with its decision; one that this very
batch had placed is not placed after all. On a live cluster nobody leaves at once: the pod is nominated and waits.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from hetsched.contracts.decision import Evicted, NodeOutcome, Reason, Verdict
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.explain.diagnosis import Diagnosis, best, diagnose
from hetsched.engine.framework.cycle import Outcome, Scheduler
from hetsched.engine.framework.gangs import gang_key, together
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.queueing_hints import for_anything
from hetsched.engine.framework.status import Spared
from hetsched.engine.simulation.evictions import evictions
from hetsched.placement.actions import Nominated, Result
from hetsched.placement.actions.evictions import spared
from hetsched.placement.queue import Waiting
from hetsched.placement.snapshot import Loaded, Warm

from .hold_use import Given, Rooms
from .nominations import Nominees, waits_for, was_refused

_SCORE_DIGITS = 6
_MOST_NAMED = 5
log = structlog.get_logger(__name__)


class Batch:
    """One batch on its way; `failed`: the state cannot be trusted any more; `took_seconds`: one entry for each pod."""

    def __init__(self, warm: Warm, loaded: Loaded, specs: dict[str, PolicySpec], top_nodes: int) -> None:
        self.warm = warm
        self.loaded = loaded
        self.specs = specs
        self.top_nodes = top_nodes
        self.failed = False
        self.took_seconds: list[float] = []
        self._mixed: set[str] = set()
        self._schedulers: dict[int, Scheduler] = {}
        self._diagnosed: dict[tuple[str, Shape, tuple[int, int]], tuple[PodSpec, Diagnosis]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._booked: list[tuple[int, Outcome, Scheduler]] = []
        self._nominees = Nominees(loaded)
        self._rooms = Rooms(loaded, ())
        self._refused_for: dict[int, list[Reason]] = defaultdict(list)
        self._unmeasured: str | None = None
        if loaded.nominates:
            self._spare(spared(warm.cluster_id))

    def _spare(self, refused: dict[str, tuple[int, str]]) -> None:
        """Have those stay whose eviction was refused a moment ago."""
        self.loaded.state.spared = Spared(frozenset(refused), foreign=True)
        for victim, (pod_id, message) in refused.items():
            self._refused_for[pod_id].append(was_refused(victim, message))

    def decide(self, waiting: Sequence[Waiting], policy: Policy | None, seconds: float, most: int) -> list[Result]:
        """Decide for about `most` of these pods, in the order of `policy`, or as many as the time allows.

        At least one pod is decided, and of a gang that is begun as many as make it whole; one that takes three times
        as long is refused. The pods are booked in the state.
        """
        began = time.monotonic()
        pods = {pod.spec.key: pod for pod in waiting}
        self._mixed = _mixed(waiting)
        self._rooms = Rooms(self.loaded, waiting)
        used = [self.specs[name] for name in {pod.policy for pod in waiting} & self.specs.keys()]
        if any(self.warm.policy(spec).wants_mix for spec in used):
            self.loaded.state.use_mix(self.loaded.state.booked_mix())
        results: list[Result] = []
        for spec in self._order([pod.spec for pod in waiting], policy):
            spent = time.monotonic() - began
            over = bool(results) and (len(results) >= most or spent > seconds)
            if over and self._may_end_before(spec, results[-1].waiting.spec):
                break
            slow = over and spent > 3 * seconds
            began_one = time.perf_counter()
            results.append(self._too_slow(pods[spec.key]) if slow else self._one(pods[spec.key], len(results)))
            self.took_seconds.append(time.perf_counter() - began_one)
        return self._settled(results)

    def _may_end_before(self, pod: PodSpec, last: PodSpec) -> bool:
        """Tell whether the batch may end between these two: they are of different gangs, or theirs is whole."""
        gang = pod.gang
        if gang is None or gang_key(pod) != gang_key(last):
            return True
        return self.loaded.state.gangs.members_booked(gang_key(pod) or "") >= max(gang.min_available, 1)

    def _order(self, pods: Sequence[PodSpec], policy: Policy | None) -> Iterable[PodSpec]:
        """Announce the pods and return them in queue order, gangs side by side whatever the policy."""
        state = self.loaded.state
        if policy is None:
            state.gangs.announce(pods)
            return together(pods)
        order = policy.queue(pods, state)
        return order if policy.follows_placements else together(list(order))

    def _one(self, waiting: Waiting, position: int) -> Result:
        spec = self.specs.get(waiting.policy)
        if spec is None:
            reason = Reason("PolicyUnknown", "policy", 0, f"policy {waiting.policy!r} has no active version")
            return Result(waiting, Verdict.NOT_NOW, reason.message, waiting.policy, 0, reasons=(reason,))
        try:
            return self._try(waiting, spec, position)
        except Exception as error:
            log.exception("the engine failed", pod=waiting.spec.key, policy=spec.name)
            self.failed = True
            with suppress(Exception):  # what it left behind goes with the state; until then the others need the room
                self.loaded.state.forget(waiting.spec.key)
            reason = Reason("EngineError", "engine", 0, f"the decision failed: {type(error).__name__}")
            summary = f"{waiting.spec.key} could not be decided: {type(error).__name__}"
            return self._refused(waiting, spec, Verdict.NOT_NOW, summary, (reason,))

    def _try(self, waiting: Waiting, spec: PolicySpec, position: int) -> Result:
        pod = waiting.spec
        if gang_key(pod) in self._mixed:
            message = f"gang {gang_key(pod)}: its members name different policies"
            reason = Reason("GangMixed", "gang", 0, message)
            return self._refused(waiting, spec, Verdict.MISCONFIGURED, message, (reason,))
        scheduler = self.warm.scheduler(spec)
        if id(scheduler) not in self._schedulers:
            self._schedulers[id(scheduler)] = scheduler
            scheduler.expire(time.monotonic())  # gangs whose back-off is over wake up
        nominated = self._nominees.take_off(pod)
        going = self._nominees.left_to_go(nominated[0]) if nominated else []
        waits = bool(nominated and going and self._nominees.comes_true(scheduler, pod, nominated[0], going))
        given = self._rooms.give(scheduler, waiting, self.top_nodes)
        if given is not None:
            return self._housed(waiting, spec, given, scheduler, position)
        top = best(scheduler, pod, self.top_nodes)
        outcome = scheduler.schedule(pod, preempts=not waits)
        if any(self._holds(booking.pod.key) for booking in outcome.evicted):
            scheduler.undo(outcome)  # under another policy it may still start with its gang
            outcome.eviction = None
        if outcome.node is None:
            diagnosis = self._diagnose(scheduler, spec, pod)
            if nominated is not None and waits:
                found = self._nominees.put_back(*nominated)
                return self._nominated(waiting, spec, found, diagnosis, going, ())
            reasons = (*diagnosis.reasons, *_candidates(outcome), *self._refused_for.get(waiting.pod_id, ()))
            summary = diagnosis.summary + self._by_requests(scheduler)
            refused = self._refused(waiting, spec, diagnosis.verdict, summary, reasons)
            tired = for_anything("preemption", "") if waiting.pod_id in self._refused_for else ()
            return msgspec.structs.replace(refused, waits_for=(*diagnosis.waits_for, *tired))
        evicted = tuple(evictions(outcome, self._outcomes, scheduler.state))
        self._outcomes[pod.key] = outcome
        self._booked.append((position, outcome, scheduler))
        if outcome.evicted and self.loaded.nominates:
            return self._have_leave(waiting, spec, outcome, top, evicted, scheduler)
        return self._placed(waiting, spec, outcome, top, evicted)

    def _housed(self, waiting: Waiting, spec: PolicySpec, given: Given, scheduler: Scheduler, position: int) -> Result:
        """Say that a pod got the room that was held for it."""
        self._outcomes[waiting.spec.key] = given.outcome
        self._booked.append((position, given.outcome, scheduler))
        result = self._placed(waiting, spec, given.outcome, given.top, ())
        summary = f"{result.summary}, in the room of hold {given.hold_id}"
        return msgspec.structs.replace(result, summary=summary, room=given.room)

    def _have_leave(
        self,
        waiting: Waiting,
        spec: PolicySpec,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...],
        scheduler: Scheduler,
    ) -> Result:
        """Nominate a pod for the node on which it fits once others have left."""
        before = {booking.pod.key: booking for booking in outcome.evicted}
        found, gave_way = self._nominees.settle(outcome, evicted)
        if found is None:
            return msgspec.structs.replace(self._placed(waiting, spec, outcome, top, ()), overridden=gave_way)
        state = scheduler.state
        own = state.forget(outcome.pod.key)
        assert own is not None
        diagnosis = self._diagnose(scheduler, spec, outcome.pod)
        state.restore(own)
        leaving = tuple(one for one in evicted if one.pod not in gave_way)
        going = [before[one.pod] for one in leaving]
        result = self._nominated(waiting, spec, found, diagnosis, going, leaving)
        return msgspec.structs.replace(result, overridden=gave_way)

    def _nominated(
        self,
        waiting: Waiting,
        spec: PolicySpec,
        found: Nominated,
        diagnosis: Diagnosis,
        going: Sequence[Booking],
        evicted: tuple[Evicted, ...],
    ) -> Result:
        reason = waits_for(found.node_name, going)
        summary = f"{waiting.spec.key} waits: {reason.message}"
        result = self._refused(waiting, spec, Verdict.NOT_NOW, summary, (reason, *diagnosis.reasons))
        leave = WaitsFor("preemption", (Event.POD_RELEASED,), f"those to leave {found.node_name} that were asked to")
        waits = (leave, *diagnosis.waits_for)
        return msgspec.structs.replace(result, evicted=evicted, nominated=found, waits_for=waits)

    def _holds(self, key: str) -> bool:
        return key in self._outcomes and self._outcomes[key].held

    def _diagnose(self, scheduler: Scheduler, spec: PolicySpec, pod: PodSpec) -> Diagnosis:
        """Explain a refusal; equal pods in a row, with nothing booked in between, share the explanation."""
        roll = scheduler.state.gangs.roll_of(pod)
        if not pod.ready or (roll is not None and roll.refusal is not None):
            return diagnose(scheduler, pod)
        if pod.owner in scheduler.state.avoided:
            return diagnose(scheduler, pod)  # its reasons are its owner's
        key = (spec.name, pod.shape, (scheduler.state.epoch, len(scheduler.state.log)))
        known = self._diagnosed.get(key)
        if known is None or not _alike(known[0], pod):
            known = self._diagnosed[key] = (pod, diagnose(scheduler, pod))
        first, diagnosis = known
        summary = pod.key + diagnosis.summary.removeprefix(first.key)
        return msgspec.structs.replace(diagnosis, summary=summary)

    def _placed(
        self,
        waiting: Waiting,
        spec: PolicySpec,
        outcome: Outcome,
        top: tuple[NodeOutcome, ...],
        evicted: tuple[Evicted, ...],
    ) -> Result:
        assert outcome.node is not None
        score = round(outcome.score, _SCORE_DIGITS)
        scheduler = self.warm.scheduler(spec)
        return Result(
            waiting,
            Verdict.PLACED,
            f"{waiting.spec.key} placed on {outcome.node}{_held_text(outcome)}, score {score:.1f}"
            f"{_leaving(outcome)}{_unknown_images(waiting.spec)}{self._by_requests(scheduler)}",
            spec.name,
            spec.version,
            node_id=self.loaded.node_ids[outcome.node],
            node_name=outcome.node,
            allocation=outcome.allocation,
            score=score,
            top=top,
            evicted=evicted,
        )

    def _by_requests(self, scheduler: Scheduler) -> str:
        """Say that measured use was to decide, and of how many nodes there is none that counts."""
        if not scheduler.policy.measures:
            return ""
        if self._unmeasured is None:
            late, nodes = len(scheduler.state.stale()), len(scheduler.state.reports)
            self._unmeasured = f"; by requests: the measured use of {late} of {nodes} nodes is stale" if late else ""
        return self._unmeasured

    def _refused(
        self, waiting: Waiting, spec: PolicySpec, verdict: Verdict, summary: str, reasons: tuple[Reason, ...]
    ) -> Result:
        return Result(waiting, verdict, summary, spec.name, spec.version, reasons=reasons)

    def _too_slow(self, waiting: Waiting) -> Result:
        message = f"gang {gang_key(waiting.spec)}: it could not be decided within one turn"
        reason = Reason("GangTooSlow", "gang", 0, message)
        spec = self.specs.get(waiting.policy)
        version = 0 if spec is None else spec.version
        return Result(waiting, Verdict.NOT_NOW, message, waiting.policy, version, reasons=(reason,))

    def _settled(self, results: list[Result]) -> list[Result]:
        """Take back what a permit neither allowed nor refused, and explain what went or had to leave for others."""
        for scheduler in self._schedulers.values():
            scheduler.settle()
            scheduler.room.drain()
        for position, outcome, scheduler in self._booked:
            if outcome.node is None:
                waiting, evicted = results[position].waiting, results[position].evicted
                self.failed = self.failed or results[position].room is not None  # its row still holds the room
                if results[position].nominated is not None:
                    evicted = ()  # nobody was told yet
                gone = self._gone(waiting, self.specs[waiting.policy], outcome, scheduler)
                # Whoever left for it has left all the same: its place was taken by the next.
                results[position] = msgspec.structs.replace(gone, evicted=evicted)
        if any(outcome.node is None for _, outcome, _ in self._booked):
            return [_looked_at_again(result) for result in results]
        return results

    def _gone(self, waiting: Waiting, spec: PolicySpec, outcome: Outcome, scheduler: Scheduler) -> Result:
        """Explain a pod that was placed and had to go, by what became of those it had to start with."""
        roll = self.loaded.state.gangs.roll_of(waiting.spec)
        if outcome.refusal is None or (roll is not None and roll.refusal is not None):
            found = self._diagnose(scheduler, spec, waiting.spec)
            refused = self._refused(waiting, spec, found.verdict, found.summary, found.reasons)
            return msgspec.structs.replace(refused, waits_for=found.waits_for)
        plugin, refusal = outcome.refusal
        reason = Reason(refusal.code, plugin, 0, refusal.message)
        return self._refused(waiting, spec, Verdict.NOT_NOW, f"{waiting.spec.key} waits: {reason.message}", (reason,))


def _looked_at_again(result: Result) -> Result:
    """Have a refused pod tried again: it may have been refused for the sake of one that is not placed after all."""
    if result.verdict is not Verdict.NOT_NOW:
        return result
    return msgspec.structs.replace(result, waits_for=(*result.waits_for, *for_anything("gang", "")))


def _alike(one: PodSpec, other: PodSpec) -> bool:
    """Tell whether what is said of one refused pod holds of another one of its shape."""
    return (one.namespace, one.labels, one.gang) == (other.namespace, other.labels, other.gang)


def _mixed(waiting: Sequence[Waiting]) -> set[str]:
    """Return the gangs whose members would be decided by different policies, which could not hold each other."""
    policies: dict[str, set[str]] = defaultdict(set)
    for pod in waiting:
        key = gang_key(pod.spec)
        if key is not None:
            policies[key].add(pod.policy)
    return {key for key, names in policies.items() if len(names) > 1}


def _candidates(outcome: Outcome) -> tuple[Reason, ...]:
    """Name the pods that could make room where the scheduler does not evict."""
    if outcome.eviction is None:
        return ()
    victims = outcome.eviction.victims
    named = ", ".join(victims[:_MOST_NAMED]) + (
        f" and {len(victims) - _MOST_NAMED} more" if victims[_MOST_NAMED:] else ""
    )
    message = f"it would fit on {outcome.eviction.node} without {named}, which nobody evicts on this cluster"
    return (Reason("PreemptionPossible", "preemption", 1, message),)


def _leaving(outcome: Outcome) -> str:
    """Say how many pods had to leave for a placement."""
    count = len(outcome.evicted)
    if not count:
        return ""
    first = outcome.evicted[0].pod.key
    return f", in the place of {first}" if count == 1 else f", in the place of {first} and {count - 1} more"


def _unknown_images(pod: PodSpec) -> str:
    """Say that a placed pod may not run where it is, because nobody knows what its images are built for."""
    unknown = [facts for facts in pod.image_facts if facts.unknown]
    if not unknown:
        return ""
    more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
    return f"; what {unknown[0].image}{more} is built for is not known: {unknown[0].unknown}"


def _held_text(outcome: Outcome) -> str:
    """Say in words which cards a placement holds."""
    cards: Any = outcome.allocation.gpus
    if not cards:
        return ""
    if cards[0].milli < 1000:
        return f" with {cards[0].milli}/1000 of card {cards[0].index}"
    return f" with card{'s' if len(cards) > 1 else ''} {', '.join(str(card.index) for card in cards)}"
