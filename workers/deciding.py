"""Decide for a batch of waiting pods on a warm state; nothing is written here.

Rule: pods are taken in queue order, each under the active revision of its own policy, all on one state, so each sees
the earlier ones. What the engine cannot decide because it fails is *not now* with the failure as its reason: one odd
pod never stops the others. Pods that a permit still holds at the end of the batch are given back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog

from hetsched.contracts.decision import NodeOutcome, Reason, Verdict
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cycle import Outcome, Scheduler
from hetsched.engine.explain import Diagnosis, best, diagnose
from hetsched.placement.actions import Result
from hetsched.placement.queue import Waiting
from hetsched.placement.snapshot import Loaded, Warm

_SCORE_DIGITS = 6
log = structlog.get_logger(__name__)


class Batch:
    """One batch on its way; `failed` says that the state cannot be trusted any more."""

    def __init__(self, warm: Warm, loaded: Loaded, specs: dict[str, PolicySpec], top_nodes: int) -> None:
        self.warm = warm
        self.loaded = loaded
        self.specs = specs
        self.top_nodes = top_nodes
        self.failed = False
        self._diagnosed: dict[tuple[str, Shape, tuple[int, int]], tuple[PodSpec, Diagnosis]] = {}
        self._held: dict[str, tuple[int, Outcome, Scheduler]] = {}

    def decide(self, waiting: Sequence[Waiting], seconds: float) -> list[Result]:
        """Decide for as many of these pods as the time allows, at least one; the pods are booked in the state."""
        until = time.monotonic() + seconds
        results: list[Result] = []
        for pod in waiting:
            results.append(self._one(pod, len(results)))
            if time.monotonic() > until:
                break
        return self._permits(results)

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
        scheduler = self.warm.scheduler(spec)
        top = best(scheduler, pod, self.top_nodes)
        outcome = scheduler.schedule(pod)
        if outcome.node is None:
            diagnosis = self._diagnose(scheduler, spec, pod)
            return self._refused(waiting, spec, diagnosis.verdict, diagnosis.summary, diagnosis.reasons)
        if outcome.held:
            self._held[pod.key] = (position, outcome, scheduler)
        return self._placed(waiting, spec, outcome, top)

    def _diagnose(self, scheduler: Scheduler, spec: PolicySpec, pod: PodSpec) -> Diagnosis:
        """Explain a refusal; equal pods in a row, with nothing booked in between, share the explanation."""
        if pod.problems:
            return diagnose(scheduler, pod)
        key = (spec.name, pod.shape, (scheduler.state.epoch, len(scheduler.state.log)))
        known = self._diagnosed.get(key)
        if known is None or known[0].namespace != pod.namespace or known[0].labels != pod.labels:
            known = self._diagnosed[key] = (pod, diagnose(scheduler, pod))
        first, diagnosis = known
        summary = pod.key + diagnosis.summary.removeprefix(first.key)
        return Diagnosis(diagnosis.verdict, diagnosis.reasons, diagnosis.funnel, summary, diagnosis.resolvable)

    def _placed(self, waiting: Waiting, spec: PolicySpec, outcome: Outcome, top: tuple[NodeOutcome, ...]) -> Result:
        assert outcome.node is not None
        score = round(outcome.score, _SCORE_DIGITS)
        return Result(
            waiting,
            Verdict.PLACED,
            f"{waiting.spec.key} placed on {outcome.node}{_held_text(outcome)}, score {score:.1f}",
            spec.name,
            spec.version,
            node_id=self.loaded.node_ids[outcome.node],
            node_name=outcome.node,
            allocation=outcome.allocation,
            score=score,
            top=top,
        )

    def _refused(
        self, waiting: Waiting, spec: PolicySpec, verdict: Verdict, summary: str, reasons: tuple[Reason, ...]
    ) -> Result:
        return Result(waiting, verdict, summary, spec.name, spec.version, reasons=reasons)

    def _permits(self, results: list[Result]) -> list[Result]:
        """Take back what a permit neither allowed nor refused by the end of the batch."""
        allowed: set[str] = set()
        for scheduler in {id(scheduler): scheduler for _, _, scheduler in self._held.values()}.values():
            for key in list(scheduler.room.held):
                scheduler.room.reject(key)
            passed, _ = scheduler.room.drain()
            allowed |= {outcome.pod.key for outcome in passed}
        for key, (position, outcome, scheduler) in self._held.items():
            if key not in allowed:
                scheduler.undo(outcome)
                result = results[position]
                reason = Reason("PermitWaiting", "permit", 0, "others it must start with are not placed yet")
                spec = self.specs[result.waiting.policy]
                summary = f"{key} waits: {reason.message}"
                results[position] = self._refused(result.waiting, spec, Verdict.NOT_NOW, summary, (reason,))
        return results


def _held_text(outcome: Outcome) -> str:
    """Say in words which cards a placement holds."""
    cards: Any = outcome.allocation.gpus
    if not cards:
        return ""
    if cards[0].milli < 1000:
        return f" with {cards[0].milli}/1000 of card {cards[0].index}"
    return f" with card{'s' if len(cards) > 1 else ''} {', '.join(str(card.index) for card in cards)}"
