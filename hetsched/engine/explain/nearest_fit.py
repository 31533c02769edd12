"""Nearest fit: the smallest change of a request that would make it fit.

Problem: "no" is half an answer; the other half is "with 7 GiB instead of 8 it would run on gpu-3".
Rule: every field of the request that could ask for less is given up alone; where that opens a node, the smallest
change of the field that still does is an answer. Only where no single field helps, short of giving it up whole, pairs
of the fields that do not help alone are tried the same way. Every answer is applied to the request and goes through
the real cycle, Reserve included, before it is told. Answers are sorted by size (see `relaxations`), then by how many
nodes would do, then by field: at most five, and of each field the smallest. The search evaluates filters over windows
of nodes, and ends when it has looked at `Budget.rows` of them: what it found until then is told.
Invariants: the state is left as it was; same state, policy and pod give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.decision import FieldChange, NearestFit
from hetsched.contracts.wishes import GANG_MIN_AVAILABLE
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import Bools, Rows, Window
from hetsched.engine.cluster.expected_use import DECLARED, basis_of
from hetsched.engine.framework.status import SKIP, Refusal

from .isa_relaxations import instruction_sets
from .relaxations import Fits, Relaxation, Step, numbers
from .rule_relaxations import rules

if TYPE_CHECKING:
    from hetsched.engine.framework.cycle import Outcome, Scheduler

MOST_ANSWERS = 5
MOST_NODES = 10
_ROWS = 1_500_000
# What one evaluation costs at least, in rows: small clusters do not get endless searches either.
_LEAST_ROWS = 500
_WHOLE = 1.0
_MEMBER_ROWS = 600


class Budget:
    """How many rows may still be evaluated; one budget may serve several searches."""

    def __init__(self, rows: int = _ROWS) -> None:
        self.rows = rows


class _Exhausted(Exception):
    """The budget is used up; what was found so far stands."""


class _Candidate(NamedTuple):
    steps: tuple[Step, ...]
    shape: Shape
    rows: Rows

    @property
    def order(self) -> tuple[float, int, tuple[str, ...], tuple[str, ...]]:
        fields, values = tuple(step.field for step in self.steps), tuple(step.to for step in self.steps)
        return sum(step.size for step in self.steps), -len(self.rows), fields, values


def nearest_fit(scheduler: Scheduler, pod: PodSpec, budget: Budget | None = None) -> tuple[NearestFit, ...]:
    """Return the smallest changes with which `pod`, which fits nowhere, would be placed on the present state.

    Of a pod whose gang was announced, these are changes of all members that ask for the same; of one whose gang is
    not known none are told.
    """
    return tuple(change.fit for change in changes(scheduler, pod, budget))


class Change(NamedTuple):
    """A change that would do, and the pods as they would then ask: the pod itself, or all that wait of its gang."""

    fit: NearestFit
    pods: tuple[PodSpec, ...]


def changes(scheduler: Scheduler, pod: PodSpec, budget: Budget | None = None) -> tuple[Change, ...]:
    """Return the nearest fits with the changed requests."""
    budget = budget or Budget()
    if not pod.ready:
        return ()
    search: _Search = _Search(scheduler, pod, budget)
    if pod.gang is not None and scheduler.policy.permits_for(pod):
        roll = scheduler.state.gangs.roll_of(pod)
        if roll is None:
            return ()
        search = _GangSearch(scheduler, pod, budget, list(roll.members.values()))
    names = scheduler.state.columns.names
    answers: list[Change] = []
    told: set[tuple[str, ...]] = set()
    for candidate in sorted(search.candidates(), key=lambda candidate: candidate.order):
        fields = tuple(step.field for step in candidate.steps)
        if fields not in told and search.places(candidate):
            told.add(fields)
            answers.append(Change(_answer(candidate, names), search.changed(candidate)))
        if len(answers) == MOST_ANSWERS:
            break
    return tuple(answers)


def _answer(candidate: _Candidate, names: list[str]) -> NearestFit:
    first, *others = candidate.steps
    return NearestFit(
        change=" and ".join(step.words for step in candidate.steps),
        field=first.field,
        from_=first.from_,
        to=first.to,
        nodes=tuple(names[row] for row in candidate.rows[:MOST_NODES].tolist()),
        count=len(candidate.rows),
        also=FieldChange(others[0].field, others[0].from_, others[0].to) if others else None,
    )


class _Search:
    """One search: the fields of one request, and the filters they are tried on."""

    def __init__(self, scheduler: Scheduler, pod: PodSpec, budget: Budget) -> None:
        state = scheduler.state
        self._scheduler, self._pod, self._budget = scheduler, pod, budget
        # Its own permit room: nobody who waits in the other one may hear of a trial.
        self._trial = type(scheduler)(state, scheduler.policy)
        self._trial.evaluator = scheduler.evaluator
        self._relaxations: list[Relaxation] = [
            *numbers(pod.shape, zoned=state.columns.layout.zones > 0, declared=basis_of(pod) == DECLARED),
            *instruction_sets(pod.shape, state),
            *rules(pod.shape, state),
        ]

    def candidates(self) -> list[_Candidate]:
        """Return what fits: changes of one field, and of two where that takes less than giving one up whole."""
        found: list[_Candidate] = []
        with suppress(_Exhausted):
            helping: set[int] = set()
            for position, candidate in self._singles():
                helping.add(position)
                found.append(candidate)
            if all(sum(step.size for step in candidate.steps) >= _WHOLE for candidate in found):
                left = [each for position, each in enumerate(self._relaxations) if position not in helping]
                for candidate in self._pairs(left):
                    found.append(candidate)
        return found

    def _singles(self) -> Iterator[tuple[int, _Candidate]]:
        shape = self._pod.shape
        for position, relaxation in enumerate(self._relaxations):
            for step in self._steps(relaxation, shape, relaxation.loosest(shape)):
                yield position, self._candidate(step)

    def _pairs(self, relaxations: list[Relaxation]) -> Iterator[_Candidate]:
        """Yield changes of two fields: the first as small as the second given up allows, then the second."""
        shape = self._pod.shape
        for one, other in combinations(relaxations, 2):
            loosest = other.loosest(one.loosest(shape))
            if not self.fits(loosest, None).size:
                continue
            for first, second in ((one, other), (other, one)):
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
        """Run the real cycle with the changed request, and take the booking back."""
        outcome = self._trial.schedule(msgspec.structs.replace(self._pod, shape=candidate.shape))
        placed = outcome.node is not None
        self._trial.undo(outcome)
        return placed

    def changed(self, candidate: _Candidate) -> tuple[PodSpec, ...]:
        """Return who would then ask for what."""
        return (msgspec.structs.replace(self._pod, shape=candidate.shape),)

    def fits(self, shape: Shape, rows: Rows | None) -> Rows:
        """Return on which of some rows, or of all, every filter of the policy would let the shape in."""
        scheduler = self._scheduler
        state = scheduler.state
        request = state.compile(msgspec.structs.replace(self._pod, shape=shape))
        nodes = state.all_rows if rows is None else Window(state.columns, rows)
        self._budget.rows -= max(nodes.n, _LEAST_ROWS)
        if self._budget.rows < 0:
            raise _Exhausted
        left: Bools = np.ones(nodes.n, np.bool_)
        for plugin in scheduler.policy.gates:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if answer is SKIP:
                continue
            if isinstance(answer, Refusal):
                left[:] = False
            elif answer is not None:
                only: Bools = np.zeros(len(state.reports), np.bool_)
                only[answer] = True
                left &= nodes.pick(only)
            if not left.any():
                break
            if plugin.static and plugin.serves("filter"):
                left &= nodes.pick(scheduler.evaluator.static_filter(request, plugin))
            elif plugin.serves("filter"):
                left &= plugin.instance.filter(request, nodes)
        found: Rows = np.flatnonzero(left)
        return found if rows is None else rows[found]


class _GangSearch(_Search):
    """A search for a gang: a change fits if the real cycle places as many members as must run together."""

    def __init__(self, scheduler: Scheduler, pod: PodSpec, budget: Budget, members: list[PodSpec]) -> None:
        super().__init__(scheduler, pod, budget)
        assert pod.gang is not None
        state = scheduler.state
        self._waiting = [member for member in members if member.key not in state.bookings]
        self._least = pod.gang.min_available
        self._booked = state.gangs.members_booked(f"{pod.namespace}/{pod.gang.name}")

    def candidates(self) -> list[_Candidate]:
        found = super().candidates()
        with suppress(_Exhausted):
            rows, count = self._try(self._pod.shape)
            fewer = count + self._booked
            if 0 < fewer < self._least:
                words, size = f"min-available {self._least} -> {fewer}", 1 - fewer / self._least
                step = Step(GANG_MIN_AVAILABLE, str(self._least), str(fewer), words, size, lambda shape: shape)
                found.append(_Candidate((step,), self._pod.shape, rows))
        return found

    def places(self, candidate: _Candidate) -> bool:
        return True  # `fits` ran the real cycle

    def changed(self, candidate: _Candidate) -> tuple[PodSpec, ...]:
        least = next((int(step.to) for step in candidate.steps if step.field == GANG_MIN_AVAILABLE), self._least)
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
        return used if count + self._booked >= self._least else used[:0]

    def _try(self, shape: Shape) -> tuple[Rows, int]:
        """Place members one by one, those that ask as this pod does with `shape`, and take all back.

        Returns the rows they came to, and how many there were, no more than must be.
        """
        self._budget.rows -= max(self._scheduler.state.all_rows.n, _LEAST_ROWS) + _MEMBER_ROWS * len(self._waiting)
        if self._budget.rows < 0:
            raise _Exhausted
        placed: list[Outcome] = []
        for member in self._waiting:
            if len(placed) + self._booked == self._least:
                break
            own = shape if member.shape == self._pod.shape else member.shape
            outcome = self._trial.schedule(msgspec.structs.replace(member, shape=own, gang=None))
            if outcome.node is not None:
                placed.append(outcome)
        rows: Rows = np.unique(np.array([outcome.row for outcome in placed], np.intp))
        for outcome in reversed(placed):
            self._trial.undo(outcome)
        return rows, len(placed)
