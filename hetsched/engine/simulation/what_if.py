"""What would happen: the scheduling cycle on a copy, nothing written.

Rule: pods are tried in queue order, each seeing the earlier ones, by the same `Scheduler` that decides for real; what
a permit still holds after the last one is taken back. Pods of drained nodes are placed first, as they would have to
move before anything new comes. Where the policy preempts, victims leave the copy; they are listed, not placed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hetsched.contracts.decision import (
    Balance,
    Displaced,
    Evicted,
    ExpectedUse,
    NearestFit,
    NodeOutcome,
    Placement,
    PolicyRef,
    Reason,
    Tipping,
    Unplaced,
    Verdict,
    WhatIfAnswer,
    ZonePlacement,
)
from hetsched.contracts.units import format_amount
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.balance import cluster_balance
from hetsched.engine.cluster.expected_use import REQUESTED, basis_of
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import Diagnosis, diagnose, matrix
from hetsched.engine.explain.nearest_fit import Budget, nearest_fit
from hetsched.engine.explain.tipping_points import tipping
from hetsched.engine.framework.cycle import ANY_ISA, Outcome, Scheduler
from hetsched.engine.framework.policy import Policy
from hetsched.engine.gpu.workload_mix import mix_of_shapes
from hetsched.engine.numa.cpu_grants import pairings

from .evictions import PREEMPTED, evictions

_SCORE_DIGITS = 6
_ALL_SEARCHES = 8  # what all searches of one what-if may cost together, in single ones


def what_if(
    state: ClusterState,
    policy: Policy,
    pods: Sequence[PodSpec],
    *,
    evaluated_at: str,
    explain: bool = False,
    drain: Sequence[str] = (),
    consume: bool = False,
    outcomes: dict[str, Outcome] | None = None,
) -> WhatIfAnswer:
    """Place `pods` on a copy of `state` and return the whole answer; `drain` empties nodes first.

    `consume`: nobody else has the state, so no copy is made. `evaluated_at` is RFC 3339 UTC, given by the caller
    because the engine has no clock. `outcomes` takes what became of each pod, for whoever means to book it.
    """
    snapshot = state.digest()
    fork = state if consume else state.fork()
    before = cluster_balance(fork)
    if policy.wants_mix:
        fork.use_mix(mix_of_shapes([*(b.compiled.shape for b in fork.bookings.values()), *(pod.shape for pod in pods)]))
    scheduler = Scheduler(fork, policy, evicts=True)
    evicted: list[Evicted] = []
    displaced = _drain(scheduler, drain, evicted)
    nodes: list[NodeOutcome] = []
    margins: list[Tipping] = []
    refused: dict[str, tuple[Diagnosis, tuple[NearestFit, ...]]] = {}
    outcomes = {} if outcomes is None else outcomes
    explanations = _Explanations(scheduler)
    for pod in policy.queue(pods, fork):
        margin = tipping(scheduler, pod) if explain else None
        rows = matrix(scheduler, pod) if explain else ()
        outcome = scheduler.schedule(pod)
        evicted.extend(evictions(outcome, outcomes, fork))
        outcomes[pod.key] = outcome
        if explain and outcome.evicted:
            vacated = _vacated(scheduler, pod)
            margin, rows = tipping(vacated, pod), matrix(vacated, pod)
        nodes.extend(rows)
        if outcome.node is None:
            refused[pod.key] = explanations.of(pod, booked=len(outcomes) - len(refused))
        # A node that refused the reservation in the end won by no margin.
        elif margin is not None and margin.node == outcome.node:
            margins.append(margin)
    scheduler.settle()
    placements: list[Placement] = []
    unplaced: list[Unplaced] = []
    refusals: list[Diagnosis] = []
    for outcome in outcomes.values():
        if outcome.node is not None:
            placements.append(placement(outcome, fork))
            continue
        # One that had to go with its gang, or for another pod, is explained by how things stand in the end.
        diagnosis, fits = refused.get(outcome.pod.key) or (
            _afterwards(scheduler, outcome),
            explanations.of(outcome.pod, booked=-1)[1],
        )
        unplaced.append(diagnosis.unplaced(outcome.pod, fits))
        refusals.append(diagnosis)
    placed = {item.pod for item in placements}
    verdict = Verdict.worst([item.verdict for item in unplaced])
    return WhatIfAnswer(
        verdict=verdict,
        summary=_summary(placements, refusals, len(fork.reports)) + _evicting(evicted),
        policy=PolicyRef(policy.spec.name, policy.spec.version),
        evaluated_at=evaluated_at,
        snapshot=snapshot,
        placements=tuple(placements),
        unplaced=tuple(unplaced),
        nodes=tuple(sorted(nodes, key=_matrix_order)) if explain else None,
        displaced=displaced,
        evictions=tuple(evicted),
        balance=_balance(before, fork),
        tipping=tuple(margin for margin in margins if margin.pod in placed) if explain else None,
    )


def _vacated(scheduler: Scheduler, pod: PodSpec) -> Scheduler:
    """Return a scheduler on what the evicted pods left: that is where `pod` was scored, as the ledger shows it too."""
    state = scheduler.state.fork()
    state.forget(pod.key)
    return Scheduler(state, scheduler.policy)


class _Explanations:
    """Why pods were refused and what would help; alike pods with nothing booked in between share both.

    The searches for nearest fits have a budget each, and one together.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left = _ALL_SEARCHES * Budget().rows
        self._known: dict[Any, tuple[PodSpec, Diagnosis, tuple[NearestFit, ...]]] = {}

    def of(self, pod: PodSpec, booked: int) -> tuple[Diagnosis, tuple[NearestFit, ...]]:
        if not pod.ready:
            return diagnose(self._scheduler, pod), ()
        key = (pod.shape, pod.namespace, tuple(sorted(pod.labels.items())), pod.priority, pod.gang, booked)
        if key not in self._known:
            diagnosis = diagnose(self._scheduler, pod)
            self._known[key] = pod, diagnosis, self._search(pod)
        first, diagnosis, fits = self._known[key]
        if first is not pod and pod.gang is not None:  # what is said of a gang changes from one member to the next
            diagnosis = diagnose(self._scheduler, pod)
        elif first is not pod:
            summary = pod.key + diagnosis.summary.removeprefix(first.key)
            diagnosis = msgspec.structs.replace(diagnosis, summary=summary)
        return diagnosis, fits

    def _search(self, pod: PodSpec) -> tuple[NearestFit, ...]:
        budget = Budget(min(Budget().rows, self._left))
        self._left -= budget.rows
        fits = nearest_fit(self._scheduler, pod, budget)
        self._left += max(budget.rows, 0)
        return fits


def _afterwards(scheduler: Scheduler, outcome: Outcome) -> Diagnosis:
    """Explain a pod that was placed and had to go again; one that was preempted says for whom."""
    diagnosis = diagnose(scheduler, outcome.pod)
    if outcome.refusal is None or outcome.refusal[1].code != PREEMPTED:
        return diagnosis
    plugin, refusal = outcome.refusal
    reason = Reason(refusal.code, plugin, 0, refusal.message)
    return Diagnosis(
        Verdict.NOT_NOW, (reason, *diagnosis.reasons), diagnosis.funnel, f"{outcome.pod.key} is {refusal.message}"
    )


def _drain(scheduler: Scheduler, names: Sequence[str], evicted: list[Evicted]) -> tuple[Displaced, ...]:
    """Cordon nodes, take their pods off and place these again; note who is evicted for them."""
    state = scheduler.state
    moving: list[tuple[str, PodSpec]] = []
    for name in names:
        row = state.row_of[name]
        state.apply_report(msgspec.structs.replace(state.reports[row], unschedulable=True))
        for key in list(state.on_row[row]):
            booking = state.forget(key)
            if booking is not None:
                moving.append((name, booking.pod))
    left = {pod.key: name for name, pod in moving}
    outcomes: dict[str, Outcome] = {}
    for pod in scheduler.policy.queue([pod for _, pod in moving], state):
        outcome = scheduler.schedule(pod)
        evicted.extend(evictions(outcome, outcomes, state))
        outcomes[pod.key] = outcome
    scheduler.settle()
    displaced: list[Displaced] = []
    for outcome in outcomes.values():
        verdict = Verdict.PLACED if outcome.node else diagnose(scheduler, outcome.pod).verdict
        displaced.append(Displaced(outcome.pod.key, left[outcome.pod.key], outcome.node, verdict))
    return tuple(displaced)


def placement(outcome: Outcome, state: ClusterState) -> Placement:
    """Write an outcome that is booked on `state` as the contract's placement."""
    held = outcome.allocation
    return Placement(
        pod=outcome.pod.key,
        node=outcome.node or "",
        isa=held.isa or ANY_ISA,
        zones=tuple(ZonePlacement.of(zone) for zone in held.zones),
        gpus=held.gpus,
        score=round(outcome.score, _SCORE_DIGITS),
        pairings=tuple(pairings(state, outcome.pod.key)),
        expected_use=expected_use(state.bookings[outcome.pod.key].pod),
    )


def expected_use(pod: PodSpec) -> ExpectedUse | None:
    """Say what a pod is expected to use and on what basis, once what was learnt has been applied to it.

    None where nothing better than its requests is known.
    """
    basis = basis_of(pod)
    if basis == REQUESTED:
        return None
    return ExpectedUse(basis, {name: format_amount(name, amount) for name, amount in pod.shape.expected_usage})


def _balance(before: float, state: ClusterState) -> Balance:
    after = cluster_balance(state)
    return Balance(round(before, _SCORE_DIGITS), round(after, _SCORE_DIGITS), tuple(state.stale()))


def _summary(placements: list[Placement], refusals: list[Diagnosis], nodes: int) -> str:
    """Say how it came out in one sentence; of several refusals the first of the worst is told."""
    total = len(placements) + len(refusals)
    if not refusals:
        if total == 1:
            only = placements[0]
            return f"{only.pod} fits on {only.node} with score {only.score:.1f}, out of {nodes} nodes"
        return f"all {total} pods fit, on {len({p.node for p in placements})} of {nodes} nodes"
    worst = max(refusals, key=lambda refusal: refusal.verdict.exit_code)
    if total == 1:
        return worst.summary
    return f"{len(placements)} of {total} pods fit; {worst.summary}"


def _evicting(evicted: Sequence[Evicted]) -> str:
    """Say who would have to leave."""
    if not evicted:
        return ""
    broken = sum(item.pdb is not None for item in evicted)
    against = f", {broken} against a disruption budget" if broken else ""
    if len(evicted) == 1:
        only = evicted[0]
        return f"; it needs the eviction of {only.pod} (priority {only.priority}) from {only.node}{against}"
    nodes = len({item.node for item in evicted})
    where = f"from {evicted[0].node}" if nodes == 1 else f"from {nodes} nodes"
    return f"; it needs the eviction of {len(evicted)} running pods {where}{against}"


def _matrix_order(row: NodeOutcome) -> tuple[str, bool, int, str]:
    return (row.pod, row.rank is None, row.rank or 0, row.name)
