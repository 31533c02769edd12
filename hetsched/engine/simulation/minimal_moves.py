"""Room for a pod that fits nowhere: the fewest running pods that have to move for it.

Rule: plans of one move are tried, then of two, and so on; a plan is a sequence of different units, each of which goes
where the policy itself puts it. Before k moves are tried all shorter plans have failed, so the first length at which
one is found is the fewest; of the first few found of that length the cheapest is taken. Two bounds keep this short
without losing a plan. Where nothing but the node itself decides, the last unit leaves a node on which the pod fits once
all who may move have left, and the largest amounts alone tell how many, b, have to leave it at least: at most k. And a
plan of k moves spends k - b elsewhere.
When `most_tries` moves were tried, the search stops and every promising node is emptied greedily instead: pod by pod,
the cheapest first, until it fits, and then whoever need not have moved stays, as far as `PRUNING_TRIES` a node tell.
Such a plan is not called the fewest.
Invariant: the board is left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsched.contracts.advice import Nearest
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.cluster.columns import Ints, Rows
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.framework.victims import Removable

from .movable_pods import Unit
from .moves import Board, Moved

BEST_OF = 8
PRUNING_TRIES = 200
_NODES = 12  # that are emptied greedily
_NAMED = 5


class _Spent(Exception):
    """No more tries."""


class Freed:
    """What was found: the units to move, in order; None where there is no such plan within the bounds."""

    def __init__(self, units: list[Unit] | None, *, fewest: bool, at_least: int) -> None:
        self.units = units
        self.fewest = fewest
        self.at_least = at_least


class Freeing:
    """Looks for the moves that make room for one pod on a board."""

    def __init__(self, board: Board, pod: PodSpec, on_row: dict[int, list[Unit]], most_moves: int, tries: int) -> None:
        self.board = board
        self.pod = pod
        self.on_row = on_row
        self.most_moves = most_moves
        self.last_try = board.tries + tries
        self._request = board.state.compile(pod)
        self._scheduler = board.scheduler_of(pod)
        self._attempt = Attempt(self._scheduler, self._request)
        self._units = list(dict.fromkeys(unit for units in on_row.values() for unit in units))
        self._found: list[list[Unit]] = []
        self.rows = self._rows()

    def search(self) -> Freed:
        """Return the fewest moves that were found."""
        local = self._attempt.local() and all(len(unit) == 1 for unit in self._units)
        length = 0
        try:
            for length in range(1, self.most_moves + 1):
                self._found = []
                targets = [row for row, least in self.rows if least <= length] if local else [-1]
                for row in targets:
                    least = dict(self.rows)[row] if local else 0
                    self._deepen([], length, row, length - least)
                    if len(self._found) >= BEST_OF:
                        break
                if self._found:
                    return Freed(self._cheapest(self._found), fewest=True, at_least=length)
        except _Spent:
            if self._found:
                return Freed(self._cheapest(self._found), fewest=True, at_least=length)
            plans = [plan for row, _ in self.rows[:_NODES] if (plan := self._emptied(row)) is not None]
            shortest = min(map(len, plans), default=0)
            best = [plan for plan in plans if len(plan) == shortest]
            return Freed(self._cheapest(best) if best else None, fewest=shortest == length, at_least=length)
        return Freed(None, fewest=False, at_least=length + 1)

    # -- exactly -----------------------------------------------------------------------------------------------------

    def _deepen(self, path: list[Unit], length: int, row: int, spare: int) -> None:
        """Try all ways to go on; `row` is the node that the last one leaves, -1 any; `spare` moves may be elsewhere."""
        last = len(path) + 1 == length
        near = self.on_row.get(row, ()) if row >= 0 else self._units
        candidates = near if last or (row >= 0 and not spare) else [*near, *(u for u in self._units if u not in near)]
        for unit in candidates:
            if unit in path:
                continue
            if self.board.tries >= self.last_try:
                raise _Spent
            moved = self.board.move(unit)
            if moved is None:
                continue
            try:
                path.append(unit)
                if not last:
                    self._deepen(path, length, row, spare - (row >= 0 and unit not in near))
                elif self._fits():
                    self._found.append(list(path))
            finally:
                path.pop()
                self.board.take_back(moved)
            if len(self._found) >= BEST_OF:
                return

    def _fits(self) -> bool:
        outcome = self._scheduler.schedule(self.pod, preempts=False)
        found = outcome.node is not None
        self._scheduler.undo(outcome)
        return found

    # -- greedily ----------------------------------------------------------------------------------------------------

    def _emptied(self, row: int) -> list[Unit] | None:
        """Move pods off a row until the pod fits, and leave those alone that need not have moved."""
        made: list[Moved] = []
        try:
            for unit in sorted(self.on_row.get(row, ()), key=self._size, reverse=True):
                moved = self.board.move(unit)
                if moved is None:
                    continue
                made.append(moved)
                if self._fits() or len(made) >= 4 * self.most_moves:
                    break
            plan = [moved.unit for moved in made] if made and self._fits() else None
        finally:
            self._take_back(made)
        last_try = self.board.tries + PRUNING_TRIES
        for unit in list(plan or ()):
            if self.board.tries >= last_try:
                break
            fewer = [other for other in plan or () if other is not unit]
            if self._works(fewer):
                plan = fewer
        return plan if plan and len(plan) <= self.most_moves else None

    def _size(self, unit: Unit) -> float:
        """Return how much of what the pod asks for a unit holds."""
        needs = dict(self.pod.shape.requests)
        held = dict(unit[0].pod.shape.requests)
        share = sum(min(held.get(name, 0) / amount, 1.0) for name, amount in needs.items() if amount)
        return share + sum(card.milli for card in unit[0].allocation.gpus) / 1000

    def _works(self, plan: Sequence[Unit]) -> bool:
        made = self._made(plan)
        try:
            return made is not None and self._fits()
        finally:
            self._take_back(made or [])

    def _made(self, plan: Sequence[Unit]) -> list[Moved] | None:
        made: list[Moved] = []
        for unit in plan:
            moved = self.board.move(unit)
            if moved is None:
                self._take_back(made)
                return None
            made.append(moved)
        return made

    def _take_back(self, made: list[Moved]) -> None:
        for moved in reversed(made):
            self.board.take_back(moved)

    def _cheapest(self, plans: list[list[Unit]]) -> list[Unit]:
        return min(plans, key=self._price)

    def _price(self, plan: list[Unit]) -> tuple[int, int, int, int, float]:
        made = self._made(plan)
        assert made is not None  # it was made a moment ago, on the same board
        try:
            return self.board.price(made)
        finally:
            self._take_back(made)

    # -- which nodes -------------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[int, int]]:
        """Return the rows that would do without all who may move, and how many of these have to leave at least."""
        state = self.board.state
        movable = {booking.pod.key for unit in self._units for booking in unit}
        relieved = Removable(state, lambda booking: booking.pod.key in movable).relieved
        rows = self._attempt.possible(relieved, np.array(sorted(self.on_row), np.intp))
        if not rows.size:
            return []
        resources, short = self._short(rows)
        found = [(row, self._least(row, resources, short[:, at].tolist())) for at, row in enumerate(rows.tolist())]
        return sorted(found, key=lambda item: (item[1], item[0]))

    def _least(self, row: int, resources: Rows, short: Sequence[int]) -> int:
        """Return how many pods have to leave a row at least: those with the largest amounts of what is short."""
        requested = self.board.state.columns.layout.load["requested"]
        here = [b for unit in self.on_row[row] for b in unit if b.row == row]
        least = 1
        for resource, lacking in zip(resources.tolist(), short, strict=True):
            held = sorted((int(b.compiled.delta[requested][resource]) for b in here), reverse=True)
            count = 0
            while lacking > 0 and count < len(held):
                lacking -= held[count]
                count += 1
            least = max(least, count)
        return least

    def _short(self, rows: Rows) -> tuple[Rows, Ints]:
        """Return the resources (k,) that the pod asks for, but for cards, and what the rows lack of them (k, n)."""
        compiled, state = self._request.compiled, self.board.state
        counted = "resource-fit" in {plugin.name for plugin in self._scheduler.policy.filters}
        names = state.resources.values
        kept = [i for i, at in enumerate(compiled.needs_rows.tolist()) if counted and not names[at].endswith("/gpu")]
        resources, needs = compiled.needs_rows[kept], compiled.needs[kept]
        cells = np.ix_(resources, rows)
        field = state.columns.field
        return resources, needs[:, None] - field("allocatable")[cells] + field("requested")[cells]

    def nearest(self) -> Nearest:
        """Say where it comes nearest, and what is in the way."""
        names = self.board.state.columns.names
        if not self.rows:
            return Nearest("", diagnose(self._scheduler, self.pod).summary)
        blocked = {row: self._staying(row) for row, _ in self.rows[:_NODES]}
        row = min(blocked, key=lambda row: (len(blocked[row]), dict(self.rows)[row], row))
        pods = tuple(booking.pod.key for booking in blocked[row])
        if pods:
            more = "one more pod" if len(pods) == 1 else f"{len(pods)} more pods"
            message = f"it would fit if {more} could leave {names[row]}"
        else:
            message = f"more than {self.most_moves} pods would have to leave {names[row]}"
        return Nearest(names[row], message, pods[:_NAMED])

    def _staying(self, row: int) -> list[Booking]:
        """Return those on a row for whom there is no other place, tried one by one after all others left."""
        made: list[Moved] = []
        stuck: list[Booking] = []
        try:
            for unit in self.on_row.get(row, ()):
                moved = self.board.move(unit)
                if moved is None:
                    stuck += unit
                else:
                    made.append(moved)
        finally:
            self._take_back(made)
        return stuck
