"""Nearest fit: the smallest change of a request that makes it fit.

A refusal is completed by a statement such as "with 7 GiB instead of 8 it would run on gpu-3". First, every relaxable
field of the request is dropped on its own. If a node then fits, the smallest sufficient change of the field is a
result. If no single field helps unless it is dropped completely, pairs of the fields that do not help alone are tried
in the same way. A filter can add relaxations of the fields that only this filter reads (`relaxations`). Every result is
applied to the request and verified by the real cycle, Reserve included. Results are sorted by size (see
`relaxations.py`), then by the number of dropped rules, because an added toleration keeps all that the pod states, then
by the number of fitting nodes, then by field: at most five are returned, only the smallest of each field. The search
evaluates filters over windows of nodes. Once it has evaluated `SearchBudget.rows` rows, it returns the results found so
far.
Invariants: the state is unchanged afterwards; same state, policy and pod give the same results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.api.decision import FieldChange, NearestFit
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import Bools, Rows, Window
from hetsched.engine.cluster.expected_use import DECLARED, basis_of
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.request import width
from hetsched.engine.framework.status import SKIP, Refusal

from .isa_relaxations import instruction_sets
from .relaxations import Fits, Relaxation, Step, numbers
from .rule_relaxations import rules

if TYPE_CHECKING:
    from hetsched.engine.framework.cycle import Scheduler
    from hetsched.engine.framework.outcome import Outcome

MOST_ANSWERS = 5
MOST_NODES = 10
_ROWS = 1_500_000
# An evaluation is counted as at least this many rows, which bounds the search in small clusters too.
_LEAST_ROWS = 500
_WHOLE = 1.0
_MEMBER_ROWS = 600


class SearchBudget:
    """Number of rows that may still be evaluated; several searches may share one budget."""

    def __init__(self, rows: int = _ROWS) -> None:
        self.rows = rows


class _Exhausted(Exception):
    """The budget is used up; the results found before are valid."""


class _Candidate(NamedTuple):
    steps: tuple[Step, ...]
    shape: Shape
    rows: Rows

    @property
    def order(self) -> tuple[float, int, int, tuple[str, ...], tuple[str, ...]]:
        fields, values = tuple(step.field for step in self.steps), tuple(step.to for step in self.steps)
        return sum(step.size for step in self.steps), values.count(""), -len(self.rows), fields, values


def nearest_fit(scheduler: Scheduler, pod: PodSpec, budget: SearchBudget | None = None) -> tuple[NearestFit, ...]:
    """Return the smallest changes of its request with which `pod`, which fits nowhere, would be placed now.

    For a pod of a registered gang, the changes apply to all members with the same request; for a pod of an unknown
    gang the result is empty.
    """
    return tuple(change.fit for change in changes(scheduler, pod, budget))


class SufficientChange(NamedTuple):
    """A sufficient change of a request, with the changed pods: the pod itself, or all pending members of its gang."""

    fit: NearestFit
    pods: tuple[PodSpec, ...]


def changes(scheduler: Scheduler, pod: PodSpec, budget: SearchBudget | None = None) -> tuple[SufficientChange, ...]:
    """Return the nearest fits of a pod, as `nearest_fit`, each with the changed pods."""
    budget = budget or SearchBudget()
    if not pod.ready:
        return ()
    search: _FieldSearch = _FieldSearch(scheduler, pod, budget)
    if pod.gang is not None and scheduler.policy.permits_for(pod):
        group = scheduler.state.gangs.group_of(pod)
        if group is None:
            return ()
        search = _GangSearch(scheduler, pod, budget, list(group.members.values()))
    names = scheduler.state.columns.names
    answers: list[SufficientChange] = []
    found_fields: set[tuple[str, ...]] = set()
    for candidate in sorted(search.candidates(), key=lambda candidate: candidate.order):
        fields = tuple(step.field for step in candidate.steps)
        if fields not in found_fields and search.places(candidate):
            found_fields.add(fields)
            answers.append(SufficientChange(_answer(candidate, names), search.changed(candidate)))
        if len(answers) == MOST_ANSWERS:
            break
    return tuple(answers)


def _answer(candidate: _Candidate, names: list[str]) -> NearestFit:
    first, *others = candidate.steps
    return NearestFit(
        change=joined(" and ", [step.words for step in candidate.steps]),
        field=first.field,
        from_=first.from_,
        to=first.to,
        nodes=tuple(names[row] for row in candidate.rows[:MOST_NODES].tolist()),
        count=len(candidate.rows),
        also=FieldChange(others[0].field, others[0].from_, others[0].to) if others else None,
    )


class _FieldSearch:
    """Search for one request: relax its fields, and test the changed requests with the filters."""

    def __init__(self, scheduler: Scheduler, pod: PodSpec, budget: SearchBudget) -> None:
        state = scheduler.state
        self._scheduler, self._pod, self._budget = scheduler, pod, budget
        # The trial scheduler has its own waiting pods, so that trials do not affect those of the real scheduler.
        self._trial = type(scheduler)(state, scheduler.policy)
        self._trial.evaluator = scheduler.evaluator
        self._relaxations: list[Relaxation] = [
            *numbers(pod.shape, zoned=state.columns.layout.zones > 0, declared=basis_of(pod) == DECLARED),
            *instruction_sets(pod.shape, state),
            *rules(pod.shape, state),
        ]
        for plugin in scheduler.policy.gates:
            if plugin.relaxations is not None:
                self._relaxations += plugin.relaxations(pod.shape, state)

    def candidates(self) -> list[_Candidate]:
        """Return the sufficient changes of one field.

        If none of them is smaller than dropping a whole field, sufficient changes of two fields are added.
        """
        found: list[_Candidate] = []
        with suppress(_Exhausted):
            helping: set[int] = set()
            for position, candidate in self._singles():
                helping.add(position)
                found.append(candidate)
            if all(sum(step.size for step in candidate.steps) >= _WHOLE for candidate in found):
                remaining = [each for position, each in enumerate(self._relaxations) if position not in helping]
                for candidate in self._pairs(remaining):
                    found.append(candidate)
        return found

    def _singles(self) -> Iterator[tuple[int, _Candidate]]:
        shape = self._pod.shape
        for position, relaxation in enumerate(self._relaxations):
            for step in self._steps(relaxation, shape, relaxation.loosest(shape)):
                yield position, self._candidate(step)

    def _pairs(self, relaxations: list[Relaxation]) -> Iterator[_Candidate]:
        """Yield changes of two fields: minimise the first while the second is dropped, then minimise the second."""
        shape = self._pod.shape
        for relaxation, other in combinations(relaxations, 2):
            loosest = other.loosest(relaxation.loosest(shape))
            if not self.fits(loosest, None).size:
                continue
            for first, second in ((relaxation, other), (other, relaxation)):
                for step in self._steps(first, second.loosest(shape), loosest):
                    changed = step.apply(shape)
                    for further in self._steps(second, changed, second.loosest(changed)):
                        yield self._candidate(step, further)

    def _steps(self, relaxation: Relaxation, shape: Shape, loosest: Shape) -> Iterator[Step]:
        rows = self.fits(loosest, None)
        fits: Fits = self.fits
        yield from relaxation.steps(shape, fits, rows)

    def _candidate(self, *steps: Step) -> _Candidate:
        shape = self._pod.shape
        for step in steps:
            shape = step.apply(shape)
        return _Candidate(tuple(sorted(steps, key=lambda step: step.field)), shape, self.fits(shape, None))

    def places(self, candidate: _Candidate) -> bool:
        """Return whether the real cycle places the pod with the changed request; the placement is undone."""
        outcome = self._trial.schedule(msgspec.structs.replace(self._pod, shape=candidate.shape))
        placed = outcome.node is not None
        self._trial.undo(outcome)
        return placed

    def changed(self, candidate: _Candidate) -> tuple[PodSpec, ...]:
        """Return the pods to which the change applies, with their request changed."""
        return (msgspec.structs.replace(self._pod, shape=candidate.shape),)

    def fits(self, shape: Shape, rows: Rows | None) -> Rows:
        """Return the rows, among `rows` or all rows (None), on which every filter of the policy accepts the shape."""
        scheduler = self._scheduler
        state = scheduler.state
        request = state.compile(msgspec.structs.replace(self._pod, shape=shape))
        nodes = state.all_rows if rows is None else Window(state.columns, rows)
        self._budget.rows -= max(nodes.n, _LEAST_ROWS) * width(shape)
        if self._budget.rows < 0:
            raise _Exhausted
        remaining: Bools = np.ones(nodes.n, np.bool_)
        for plugin in scheduler.policy.gates:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if answer is SKIP:
                continue
            if isinstance(answer, Refusal):
                remaining[:] = False
            elif answer is not None:
                only: Bools = np.zeros(len(state.reports), np.bool_)
                only[answer] = True
                remaining &= nodes.pick(only)
            if not remaining.any():
                break
            if plugin.static and plugin.serves("filter"):
                remaining &= nodes.pick(scheduler.evaluator.static_filter(request, plugin))
            elif plugin.serves("filter"):
                remaining &= plugin.instance.filter(request, nodes)
        found: Rows = np.flatnonzero(remaining)
        return found if rows is None else rows[found]


class _GangSearch(_FieldSearch):
    """Search for a gang: a change fits if the filters place the minimum number of members.

    `places` then runs the whole cycle, gang plugin and quotas included.
    """

    def __init__(self, scheduler: Scheduler, pod: PodSpec, budget: SearchBudget, members: list[PodSpec]) -> None:
        super().__init__(scheduler, pod, budget)
        assert pod.gang is not None
        state = scheduler.state
        self._waiting = [member for member in members if member.key not in state.placed_pods]
        self._least, self._least_field = pod.gang.min_available, pod.gang.min_field
        self._placed = state.gangs.placed_members(f"{pod.namespace}/{pod.gang.name}")

    def candidates(self) -> list[_Candidate]:
        found = super().candidates()
        with suppress(_Exhausted):
            rows, count = self._try(self._pod.shape)
            fewer = count + self._placed
            if 0 < fewer < self._least:
                name = re.split("[./]", self._least_field)[-1]
                words = Message("{field} {was} -> {now}", field=name, was=self._least, now=fewer)
                size = 1 - fewer / self._least
                step = Step(self._least_field, str(self._least), str(fewer), words, size, lambda shape: shape)
                found.append(_Candidate((step,), self._pod.shape, rows))
        return found

    def places(self, candidate: _Candidate) -> bool:
        """Return whether the real cycle places the pending members as one gang; their placements are undone.

        The back-off of the gang is ignored because it expires without a change.
        """
        self._budget.rows -= self._cost() * width(candidate.shape)
        if self._budget.rows < 0:
            return False
        gangs, members = self._scheduler.state.gangs, self.changed(candidate)
        groups, domains, backoff_until = gangs.groups, gangs.domains, gangs.backoff_until
        gangs.backoff_until = {key: until for key, until in backoff_until.items() if key != gang_key(self._pod)}
        gangs.register_queue(members)
        outcomes = [self._trial.schedule(member, preempts=False) for member in members]
        self._trial.settle()
        placed = sum(outcome.node is not None for outcome in outcomes)
        for outcome in reversed(outcomes):
            self._trial.undo(outcome)
        gangs.groups, gangs.domains, gangs.backoff_until = groups, domains, backoff_until
        least = members[0].gang.min_available if members and members[0].gang is not None else 0
        return placed + self._placed >= least

    def changed(self, candidate: _Candidate) -> tuple[PodSpec, ...]:
        least = next((int(step.to) for step in candidate.steps if step.field == self._least_field), self._least)
        asked = self._pod.shape
        return tuple(
            msgspec.structs.replace(
                member,
                shape=candidate.shape if member.shape == asked else member.shape,
                gang=member.gang and msgspec.structs.replace(member.gang, min_available=least),
            )
            for member in self._waiting
        )

    def fits(self, shape: Shape, rows: Rows | None) -> Rows:
        used, count = self._try(shape)
        return used if count + self._placed >= self._least else used[:0]

    def _cost(self) -> int:
        return max(self._scheduler.state.all_rows.n, _LEAST_ROWS) + _MEMBER_ROWS * len(self._waiting)

    def _try(self, shape: Shape) -> tuple[Rows, int]:
        """Place the waiting members one by one, and undo all placements.

        Members with the same request as this pod are placed with `shape` instead.

        Returns the rows used and the number of members placed; placing stops at the gang's minimum.
        """
        self._budget.rows -= self._cost() * width(shape)
        if self._budget.rows < 0:
            raise _Exhausted
        placed: list[Outcome] = []
        for member in self._waiting:
            if len(placed) + self._placed == self._least:
                break
            own = shape if member.shape == self._pod.shape else member.shape
            outcome = self._trial.schedule(msgspec.structs.replace(member, shape=own, gang=None))
            if outcome.node is not None:
                placed.append(outcome)
        rows: Rows = np.unique(np.array([outcome.row for outcome in placed], np.intp))
        for outcome in reversed(placed):
            self._trial.undo(outcome)
        return rows, len(placed)
