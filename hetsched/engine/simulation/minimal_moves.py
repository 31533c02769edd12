"""Minimal moves: the fewest moves of running pods that make room for a pod that fits nowhere.

A plan is a sequence of different units, each moved to the node that the policy selects. Plans of one move are tried
first, then plans of two moves, and so on, so the first successful length is the minimum. Among the first few plans of
that length, the cheapest is returned. If the pod's fit depends on the node alone, two bounds shorten the search without
losing a plan. First, the last unit of a plan leaves a node on which the pod would fit if all movable pods were removed.
The sizes of the largest pods on this node give b, the least number of pods that have to leave it. A plan of k moves
needs b <= k for this node. Second, at most k - b of its moves are on other nodes. After `most_tries` moves the search
stops. Each promising node is then emptied greedily, the cheapest pod first, until the pod fits. Moves that are not
needed are then dropped, with at most `PRUNING_TRIES` tries per node. Such a plan is not reported as minimal.
Invariant: the board is unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetsched.contracts.api.advice import Nearest
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Ints, Rows
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.preemption.victims import PreemptiblePods

from .movable_pods import Unit
from .moves import AppliedMove, Board

BEST_OF = 8
PRUNING_TRIES = 200
_NODES = 12  # maximum number of nodes that are emptied greedily
_NAMED = 5


class _TriesExhausted(Exception):
    """The limit on tries is reached."""


class MinimalMoves:
    """Result: the units to move, in order, or None if no plan was found within the limits."""

    def __init__(self, units: list[Unit] | None, *, fewest: bool, at_least: int) -> None:
        self.units = units
        self.fewest = fewest
        self.at_least = at_least


class MoveSearch:
    """Search for the moves that make room for one pod on a board; `accepts` decides which moves a plan may contain."""

    def __init__(
        self,
        board: Board,
        pod: PodSpec,
        on_row: dict[int, list[Unit]],
        most_moves: int,
        tries: int,
        accepts: Callable[[AppliedMove], bool] | None = None,
    ) -> None:
        self.board = board
        self._accepts = accepts
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

    def search(self) -> MinimalMoves:
        """Search for the fewest moves after which the pod fits."""
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
                    return MinimalMoves(self._cheapest(self._found), fewest=True, at_least=length)
        except _TriesExhausted:
            if self._found:
                return MinimalMoves(self._cheapest(self._found), fewest=True, at_least=length)
            plans = [plan for row, _ in self.rows[:_NODES] if (plan := self._emptied(row)) is not None]
            shortest = min(map(len, plans), default=0)
            best = [plan for plan in plans if len(plan) == shortest]
            return MinimalMoves(self._cheapest(best) if best else None, fewest=shortest == length, at_least=length)
        return MinimalMoves(None, fewest=False, at_least=length + 1)

    # -- exact search ------------------------------------------------------------------------------------------------

    def _deepen(self, path: list[Unit], length: int, row: int, spare: int) -> None:
        """Try all plans of `length` moves that start with `path`.

        `row` is the node that the last unit leaves (-1: any node), `spare` the number of moves allowed on other nodes.
        """
        last = len(path) + 1 == length
        near = self.on_row.get(row, ()) if row >= 0 else self._units
        candidates = near if last or (row >= 0 and not spare) else [*near, *(u for u in self._units if u not in near)]
        for unit in candidates:
            if unit in path:
                continue
            if self.board.tries >= self.last_try:
                raise _TriesExhausted
            moved = self._move(unit)
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
                self.board.undo(moved)
            if len(self._found) >= BEST_OF:
                return

    def _move(self, unit: Unit) -> AppliedMove | None:
        """Move a unit if `accepts` allows it."""
        moved = self.board.move(unit)
        if moved is not None and self._accepts is not None and not self._accepts(moved):
            self.board.undo(moved)
            return None
        return moved

    def _fits(self) -> bool:
        outcome = self._scheduler.schedule(self.pod, preempts=False)
        found = outcome.node is not None
        self._scheduler.undo(outcome)
        return found

    # -- greedy search -----------------------------------------------------------------------------------------------

    def _emptied(self, row: int) -> list[Unit] | None:
        """Move pods off a row until the pod fits, then drop the moves that are not needed."""
        applied: list[AppliedMove] = []
        try:
            for unit in sorted(self.on_row.get(row, ()), key=self._size, reverse=True):
                moved = self._move(unit)
                if moved is None:
                    continue
                applied.append(moved)
                if self._fits() or len(applied) >= 4 * self.most_moves:
                    break
            plan = [moved.unit for moved in applied] if applied and self._fits() else None
        finally:
            self._undo_moves(applied)
        last_try = self.board.tries + PRUNING_TRIES
        for unit in list(plan or ()):
            if self.board.tries >= last_try:
                break
            fewer = [other for other in plan or () if other is not unit]
            if self._works(fewer):
                plan = fewer
        return plan if plan and len(plan) <= self.most_moves else None

    def _size(self, unit: Unit) -> float:
        """Return the size of a unit as a share of the pod's request."""
        needs = dict(self.pod.shape.requests)
        held = dict(unit[0].pod.shape.requests)
        share = sum(min(held.get(name, 0) / amount, 1.0) for name, amount in needs.items() if amount)
        return share + sum(card.milli for card in unit[0].allocation.gpus) / 1000

    def _works(self, plan: Sequence[Unit]) -> bool:
        applied = self._made(plan)
        try:
            return applied is not None and self._fits()
        finally:
            self._undo_moves(applied or [])

    def _made(self, plan: Sequence[Unit]) -> list[AppliedMove] | None:
        applied: list[AppliedMove] = []
        for unit in plan:
            moved = self._move(unit)
            if moved is None:
                self._undo_moves(applied)
                return None
            applied.append(moved)
        return applied

    def _undo_moves(self, applied: list[AppliedMove]) -> None:
        for moved in reversed(applied):
            self.board.undo(moved)

    def _cheapest(self, plans: list[list[Unit]]) -> list[Unit]:
        return min(plans, key=self._price)

    def _price(self, plan: list[Unit]) -> tuple[int, int, int, int, float]:
        applied = self._made(plan)
        assert applied is not None  # the search tried the same moves on this board successfully
        try:
            return self.board.price(applied)
        finally:
            self._undo_moves(applied)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[int, int]]:
        """Return the rows on which the pod fits without the movable pods, with the least number of pods to move."""
        state = self.board.state
        movable = {placed.pod.key for unit in self._units for placed in unit}
        relieved = PreemptiblePods(state, lambda placed: placed.pod.key in movable).relieved
        rows = self._attempt.possible(relieved, np.array(sorted(self.on_row), np.intp))
        if not rows.size:
            return []
        resources, short = self._short(rows)
        found = [(row, self._least(row, resources, short[:, at].tolist())) for at, row in enumerate(rows.tolist())]
        return sorted(found, key=lambda item: (item[1], item[0]))

    def _least(self, row: int, resources: Rows, short: Sequence[int]) -> int:
        """Return a lower bound on the number of pods that must leave a row to free `short` amounts of `resources`."""
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
        """Return the requested resources except GPUs, (k,), and how much the rows lack of them, (k, n)."""
        compiled, state = self._request.compiled, self.board.state
        counted = self._scheduler.policy.counts_resources
        names = state.resources.values
        kept = [i for i, at in enumerate(compiled.needs_rows.tolist()) if counted and not names[at].endswith("/gpu")]
        resources, needs = compiled.needs_rows[kept], compiled.needs[kept]
        cells = np.ix_(resources, rows)
        field = state.columns.field
        return resources, needs[:, None] - field("allocatable")[cells] + field("requested")[cells]

    def nearest(self) -> Nearest:
        """Return the node that could be freed with the fewest further moves, and the pods that block it."""
        names = self.board.state.columns.names
        if not self.rows:
            return Nearest("", diagnose(self._scheduler, self.pod).summary)
        blocked = {row: self._immovable(row) for row, _ in self.rows[:_NODES]}
        row = min(blocked, key=lambda row: (len(blocked[row]), dict(self.rows)[row], row))
        pods = tuple(placed.pod.key for placed in blocked[row])
        if pods:
            one, several = (
                "the pod would fit if one more pod could be moved off {node}",
                "the pod would fit if {n} more pods could be moved off {node}",
            )
            message = Message(several if pods[1:] else one, n=len(pods), node=names[row])
        else:
            message = Message(
                "more than {n} pods would have to be moved off {node}", n=self.most_moves, node=names[row]
            )
        return Nearest(names[row], message, pods[:_NAMED])

    def _immovable(self, row: int) -> list[PlacedPod]:
        """Try to move each unit off a row; return the pods that cannot be moved. All moves are undone."""
        applied: list[AppliedMove] = []
        stuck: list[PlacedPod] = []
        try:
            for unit in self.on_row.get(row, ()):
                moved = self._move(unit)
                if moved is None:
                    stuck += unit
                else:
                    applied.append(moved)
        finally:
            self._undo_moves(applied)
        return stuck
