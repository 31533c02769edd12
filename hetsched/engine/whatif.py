"""What would happen: the scheduling cycle on a copy, nothing written.

Rule: pods are tried in queue order, each seeing the earlier ones, by the same `Scheduler` that decides for real; what
a permit still holds after the last one is taken back. Pods of drained nodes are placed first, as they would have to
move before anything new comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hetsched.contracts.decision import (
    Balance,
    Displaced,
    ExpectedUse,
    NearestFit,
    NodeOutcome,
    Placement,
    PolicyRef,
    Tipping,
    Unplaced,
    Verdict,
    WhatIfAnswer,
    ZonePlacement,
)
from hetsched.contracts.units import format_amount
from hetsched.contracts.workload import PodSpec

from .balance import cluster_balance
from .cycle import ANY_ISA, Outcome, Scheduler
from .expected_use import REQUESTED, basis_of
from .explain import Diagnosis, diagnose, matrix
from .nearest import Budget, nearest_fit
from .pinning import pairings
from .policy import Policy
from .state import ClusterState
from .tipping import tipping

_SCORE_DIGITS = 6


def what_if(
    state: ClusterState,
    policy: Policy,
    pods: Sequence[PodSpec],
    *,
    evaluated_at: str,
    explain: bool = False,
    drain: Sequence[str] = (),
) -> WhatIfAnswer:
    """Place `pods` on a copy of `state` and return the whole answer; `drain` empties nodes first.

    `evaluated_at` is RFC 3339 UTC, given by the caller because the engine has no clock.
    """
    snapshot = state.digest()
    fork = state.fork()
    before = cluster_balance(fork)
    scheduler = Scheduler(fork, policy)
    displaced = _drain(scheduler, drain)
    nodes: list[NodeOutcome] = []
    margins: list[Tipping] = []
    refused: dict[str, tuple[Diagnosis, tuple[NearestFit, ...]]] = {}
    outcomes: list[Outcome] = []
    nearest = _Nearest(scheduler)
    for pod in policy.queue(pods, fork):
        margin = tipping(scheduler, pod) if explain else None
        if explain:
            nodes.extend(matrix(scheduler, pod))
        outcome = scheduler.schedule(pod)
        outcomes.append(outcome)
        if outcome.node is None:
            diagnosis = diagnose(scheduler, pod)
            refused[pod.key] = diagnosis, nearest.to(pod, booked=len(outcomes) - len(refused))
        # A node that refused the reservation in the end won by no margin.
        elif margin is not None and margin.node == outcome.node:
            margins.append(margin)
    scheduler.settle()
    placements: list[Placement] = []
    unplaced: list[Unplaced] = []
    refusals: list[Diagnosis] = []
    for outcome in outcomes:
        if outcome.node is not None:
            placements.append(placement(outcome, fork))
            continue
        # One that had to go with its gang is explained by what became of the gang.
        diagnosis, fits = refused.get(outcome.pod.key) or (diagnose(scheduler, outcome.pod), ())
        unplaced.append(diagnosis.unplaced(outcome.pod, fits))
        refusals.append(diagnosis)
    placed = {item.pod for item in placements}
    verdict = Verdict.worst([item.verdict for item in unplaced])
    return WhatIfAnswer(
        verdict=verdict,
        summary=_summary(placements, refusals, len(fork.reports)),
        policy=PolicyRef(policy.spec.name, policy.spec.version),
        evaluated_at=evaluated_at,
        snapshot=snapshot,
        placements=tuple(placements),
        unplaced=tuple(unplaced),
        nodes=tuple(sorted(nodes, key=_matrix_order)) if explain else None,
        displaced=displaced,
        evictions=(),
        balance=_balance(before, fork),
        tipping=tuple(margin for margin in margins if margin.pod in placed) if explain else None,
    )


class _Nearest:
    """Nearest fits of one what-if, on one budget; alike pods with nothing booked in between share theirs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._budget = Budget()
        self._known: dict[Any, tuple[NearestFit, ...]] = {}

    def to(self, pod: PodSpec, booked: int) -> tuple[NearestFit, ...]:
        key = (pod.shape, pod.namespace, tuple(sorted(pod.labels.items())), pod.priority, pod.gang, booked)
        if key not in self._known:
            self._known[key] = nearest_fit(self._scheduler, pod, self._budget)
        return self._known[key]


def _drain(scheduler: Scheduler, names: Sequence[str]) -> tuple[Displaced, ...]:
    """Cordon nodes, take their pods off and place these again."""
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
    outcomes = [scheduler.schedule(pod) for pod in scheduler.policy.queue([pod for _, pod in moving], state)]
    scheduler.settle()
    displaced: list[Displaced] = []
    for outcome in outcomes:
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
        expected_use=_expected_use(state.bookings[outcome.pod.key].pod),
    )


def _expected_use(pod: PodSpec) -> ExpectedUse | None:
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


def _matrix_order(row: NodeOutcome) -> tuple[str, bool, int, str]:
    return (row.pod, row.rank is None, row.rank or 0, row.name)
