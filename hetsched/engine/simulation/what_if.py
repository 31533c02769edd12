"""What-if: run the scheduling cycle on a copy of the cluster, without writing.

The `Scheduler` of real decisions schedules the pods in queue order; each pod sees the earlier placements. Placements
that still wait for a permit after the last pod are undone. Pods of drained nodes are placed first, because they would
have to move before new pods arrive. Static pods and pods of DaemonSets remain, as with `kubectl drain
--ignore-daemonsets`. If no node is found for a displaced pod, the request fails, as for any unplaced pod. If the policy
preempts, victims are removed from the copy; they are listed, but not placed again.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import msgspec

from hetsched.contracts.api.decision import (
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
from hetsched.contracts.message import Message, joined, replace_pod
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import format_amount
from hetsched.engine.cluster.balance import cluster_balance
from hetsched.engine.cluster.expected_use import REQUESTED, basis_of
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.explain.nearest_fit import SearchBudget, nearest_fit
from hetsched.engine.explain.tipping_points import tipping
from hetsched.engine.framework.cycle import ANY_ISA, Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.gpu.workload_mix import mix_of_shapes
from hetsched.engine.numa.cpu_grants import pairings
from hetsched.engine.numa.device_zones import alignments

from .evictions import PREEMPTED, evictions
from .movable_pods import runs_per_node

_SCORE_DIGITS = 6
_ALL_SEARCHES = 8  # limit on the cost of all searches of one what-if, in multiples of a single search


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
    """Place `pods` on a copy of `state` and return the complete result; `drain` empties nodes first.

    With `consume`, the state may be modified, so no copy is made. `evaluated_at` is RFC 3339 UTC, given by the caller
    because the engine has no clock. `outcomes` receives the outcome of each pod, for a caller that assumes the pod.
    """
    snapshot = state.digest()
    fork = state if consume else state.fork()
    before = cluster_balance(fork)
    if policy.wants_mix:
        fork.use_mix(
            mix_of_shapes([*(b.compiled.shape for b in fork.placed_pods.values()), *(pod.shape for pod in pods)])
        )
    scheduler = Scheduler(fork, policy, evicts=True)
    evicted: list[Evicted] = []
    displaced, drained = _drain(scheduler, drain, evicted)
    nodes: list[NodeOutcome] = []
    margins: list[Tipping] = []
    refused: dict[str, tuple[Diagnosis, tuple[NearestFit, ...]]] = {}
    outcomes = {} if outcomes is None else outcomes
    explanations = _Explanations(scheduler)
    for pod in policy.queue(pods, fork):
        margin = tipping(scheduler, pod) if explain else None
        rows = matrix(scheduler, pod) if explain else ()
        outcome = outcomes[pod.key] = scheduler.schedule(pod)
        if explain and outcome.evicted:
            vacated = _without_evicted(scheduler, pod)
            margin, rows = tipping(vacated, pod), matrix(vacated, pod)
        nodes.extend(rows)
        if outcome.node is None:
            refused[pod.key] = explanations.of(pod, placed=len(outcomes) - len(refused))
        # The margin is that of the node with the best score, which is not the selected node if Reserve failed.
        elif margin is not None and margin.node == outcome.node:
            margins.append(margin)
    scheduler.settle()
    for outcome in outcomes.values():
        evicted.extend(evictions(outcome, ChainMap(outcomes, drained), fork))
    placements: list[Placement] = []
    unplaced: list[Unplaced] = []
    refusals: list[Diagnosis] = []
    for outcome in outcomes.values():
        if outcome.node is not None:
            placements.append(placement(outcome, fork))
            continue
        # A pod undone with its gang, or evicted for another pod, is explained by the final state.
        diagnosis, fits = refused.get(outcome.pod.key) or (
            _explain_unplaced(scheduler, outcome),
            explanations.of(outcome.pod, placed=-1)[1],
        )
        unplaced.append(diagnosis.unplaced(outcome.pod, fits))
        refusals.append(diagnosis)
    placed = {item.pod for item in placements}
    displaced = tuple(_displaced_twice(scheduler, item, drained[item.pod]) for item in displaced)
    homeless = [item for item in displaced if item.to is None]
    verdict = Verdict.worst([*(item.verdict for item in unplaced), *(item.verdict for item in homeless)])
    sentences = [
        _drain_summary(displaced) if drain and (homeless or not pods) else None,
        _summary(placements, refusals, len(fork.reports)) if pods else None,
        evicting(evicted),
    ]
    return WhatIfAnswer(
        verdict=verdict,
        summary=joined("; ", filter(None, sentences)),
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


def _without_evicted(scheduler: Scheduler, pod: PodSpec) -> Scheduler:
    """Return a scheduler on the state without the evicted pods, which is the state on which `pod` was scored."""
    state = scheduler.state.fork()
    state.forget(pod.key)
    return Scheduler(state, scheduler.policy)


class _Explanations:
    """Diagnoses and nearest fits of rejected pods; equal pods share both if no pod was placed in between.

    Each search for nearest fits has a budget, and all searches together have a second budget.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left = _ALL_SEARCHES * SearchBudget().rows
        self._known: dict[Any, tuple[PodSpec, Diagnosis, tuple[NearestFit, ...]]] = {}

    def of(self, pod: PodSpec, placed: int) -> tuple[Diagnosis, tuple[NearestFit, ...]]:
        if not pod.ready:
            return diagnose(self._scheduler, pod), ()
        key = (pod.shape, pod.namespace, tuple(sorted(pod.labels.items())), pod.priority, pod.gang, placed)
        if key not in self._known:
            diagnosis = diagnose(self._scheduler, pod)
            self._known[key] = pod, diagnosis, self._search(pod)
        first, diagnosis, fits = self._known[key]
        if first is not pod and pod.gang is not None:  # the explanation of a gang differs from one member to the next
            diagnosis = diagnose(self._scheduler, pod)
        elif first is not pod:
            diagnosis = msgspec.structs.replace(diagnosis, summary=replace_pod(diagnosis.summary, pod.key))
        return diagnosis, fits

    def _search(self, pod: PodSpec) -> tuple[NearestFit, ...]:
        budget = SearchBudget(min(SearchBudget().rows, self._left))
        self._left -= budget.rows
        fits = nearest_fit(self._scheduler, pod, budget)
        self._left += max(budget.rows, 0)
        return fits


def _explain_unplaced(scheduler: Scheduler, outcome: Outcome) -> Diagnosis:
    """Explain a pod whose placement was undone; a preempted pod names its preemptor."""
    diagnosis = diagnose(scheduler, outcome.pod)
    if outcome.refusal is None or outcome.refusal[1].code != PREEMPTED:
        return diagnosis
    plugin, refusal = outcome.refusal
    reason = Reason(refusal.code, plugin, 0, refusal.message)
    return Diagnosis(
        Verdict.NOT_NOW,
        (reason, *diagnosis.reasons),
        diagnosis.funnel,
        Message("{pod} is {detail}", pod=outcome.pod.key, detail=refusal.message),
    )


def _drain(
    scheduler: Scheduler, names: Sequence[str], evicted: list[Evicted]
) -> tuple[tuple[Displaced, ...], dict[str, Outcome]]:
    """Cordon nodes and place their pods again; add the pods that are evicted for them to `evicted`.

    Returns the displaced pods, and the outcome of each.
    """
    state = scheduler.state
    moving: list[tuple[str, PodSpec]] = []
    for name in names:
        row = state.row_of[name]
        state.apply_report(msgspec.structs.replace(state.reports[row], unschedulable=True))
        for key in [key for key, placed in state.on_row[row].items() if not runs_per_node(placed.pod)]:
            placed = state.forget(key)
            if placed is not None:
                moving.append((name, placed.pod))
    former_nodes = {pod.key: name for name, pod in moving}
    outcomes: dict[str, Outcome] = {}
    for pod in scheduler.policy.queue([pod for _, pod in moving], state):
        outcomes[pod.key] = scheduler.schedule(pod)
    scheduler.settle()
    for outcome in outcomes.values():
        evicted.extend(evictions(outcome, outcomes, state))
    return tuple(_displaced(scheduler, former_nodes[key], outcome) for key, outcome in outcomes.items()), outcomes


def _displaced(scheduler: Scheduler, from_: str, outcome: Outcome) -> Displaced:
    """Return a pod of drained node `from_` with its new node, or with the reason why no node fits."""
    key = outcome.pod.key
    if outcome.node is not None:
        return Displaced(key, from_, outcome.node, Verdict.PLACED)
    diagnosis = _explain_unplaced(scheduler, outcome)
    return Displaced(key, from_, None, diagnosis.verdict, message=diagnosis.summary)


def _displaced_twice(scheduler: Scheduler, item: Displaced, outcome: Outcome) -> Displaced:
    """Return the final result of a displaced pod, which a requested pod may have evicted from its new node."""
    return item if outcome.node == item.to else _displaced(scheduler, item.from_, outcome)


def _drain_summary(displaced: Sequence[Displaced]) -> Message:
    """Summarise whether other nodes were found for the pods of drained nodes; of several failures, name the worst."""
    if not displaced:
        return Message("no pods need to be moved")
    homeless = [item for item in displaced if item.to is None]
    if not homeless:
        one = len(displaced) == 1
        return (
            Message("the displaced pod fits on another node")
            if one
            else Message("all {n} displaced pods fit on other nodes", n=len(displaced))
        )
    worst = max(homeless, key=lambda item: item.verdict.exit_code)
    if len(displaced) == 1:
        found = Message("the displaced pod fits on no other node")
    else:
        template = "{n} of {m} displaced pods fit on no other node"
        found = Message(template, n=len(homeless), m=len(displaced))
    return joined("; ", [found, worst.message or ""])


def placement(outcome: Outcome, state: ClusterState) -> Placement:
    """Convert an outcome that is applied to `state` to a `Placement` of hetsched.contracts."""
    allocation = outcome.allocation
    return Placement(
        pod=outcome.pod.key,
        node=outcome.node or "",
        isa=allocation.isa or ANY_ISA,
        zones=tuple(ZonePlacement.of(zone) for zone in allocation.zones),
        gpus=allocation.gpus,
        score=round(outcome.score, _SCORE_DIGITS),
        pairings=tuple(pairings(state, outcome.pod.key)),
        alignments=tuple(alignments(state.placed_pods[outcome.pod.key].allocation)),
        expected_use=expected_use(state.placed_pods[outcome.pod.key].pod),
    )


def expected_use(pod: PodSpec) -> ExpectedUse | None:
    """Return the expected use of a pod and its source, or None if only its requests are known.

    The learnt usage must already have been applied to the pod.
    """
    basis = basis_of(pod)
    if basis == REQUESTED:
        return None
    return ExpectedUse(basis, {name: format_amount(name, amount) for name, amount in pod.shape.expected_usage})


def _balance(before: float, state: ClusterState) -> Balance:
    after = cluster_balance(state)
    return Balance(round(before, _SCORE_DIGITS), round(after, _SCORE_DIGITS), tuple(state.stale()))


def _summary(placements: list[Placement], refusals: list[Diagnosis], nodes: int) -> Message:
    """Summarise the result in one sentence; of several rejections, name the first with the worst verdict."""
    total = len(placements) + len(refusals)
    if not refusals:
        if total == 1:
            only = placements[0]
            template = "{pod} fits on {node} with score {score}, out of {n} nodes"
            return Message(template, pod=only.pod, node=only.node, score=f"{only.score:.1f}", n=nodes)
        return Message("all {n} pods fit, on {m} of {k} nodes", n=total, m=len({p.node for p in placements}), k=nodes)
    worst = max(refusals, key=lambda refusal: refusal.verdict.exit_code)
    if total == 1:
        return worst.summary
    found = Message("{n} of {m} pods fit", n=len(placements), m=total)
    return joined("; ", [found, worst.summary])


def evicting(evicted: Sequence[Evicted]) -> Message | None:
    """Return a message that lists the victims, or None if there are no victims."""
    if not evicted:
        return None
    broken = sum(item.pdb is not None for item in evicted)
    if len(evicted) == 1:
        only = evicted[0]
        template = "the placement requires the eviction of {pod} (priority {number}) from {node}"
        message = Message(template, pod=only.pod, number=only.priority, node=only.node)
    elif (nodes := len({item.node for item in evicted})) == 1:
        template = "the placement requires the eviction of {n} running pods from {node}"
        message = Message(template, n=len(evicted), node=evicted[0].node)
    else:
        message = Message(
            "the placement requires the eviction of {n} running pods from {m} nodes", n=len(evicted), m=nodes
        )
    return (
        Message("{detail}, {n} of which violate a disruption budget", detail=message, n=broken) if broken else message
    )


def _matrix_order(row: NodeOutcome) -> tuple[str, bool, int, str]:
    return (row.pod, row.rank is None, row.rank or 0, row.name)
