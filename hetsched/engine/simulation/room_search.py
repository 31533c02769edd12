"""Search for moves of running pods after which pending pods fit, verified by the scheduling cycle.

Pending pods are scheduled in groups: the members of one gang, or a single pod. A group that fits without a move is
placed, as the scheduler would do. For the other groups, `MoveSearch` finds moves, member by member. The real cycle,
permits included, then has to place the whole group; otherwise the group's moves are dropped. At the end, every move
that is not needed to place all groups is dropped.
Invariant: exactly `steps` are applied to the board, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hetsched.contracts.api.advice import Nearest, Question
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.outcome import Outcome

from .minimal_moves import MoveSearch
from .movable_pods import Unit
from .moves import AppliedMove, Board

Candidates = dict[int, list[Unit]]
Accepts = Callable[[AppliedMove], bool]

PRUNING_STEPS = 3000  # bounds the time spent on dropping moves


class Failure(msgspec.Struct, frozen=True):
    """Reason why no moves help a group: its first pod that does not fit, and the nearest node."""

    pod: PodSpec
    nearest: Nearest


class RoomSearch:
    """Search for moves, one group of pending pods at a time; `accepts` rejects harmful moves."""

    def __init__(self, board: Board, question: Question) -> None:
        self.board = board
        self.at_least = 0
        self.fewest = True
        self._question = question
        self._steps: list[Unit | PodSpec] = []
        self._done: list[AppliedMove | Outcome] = []
        self._wanted: dict[int, str] = {}  # id of a unit -> the pod that it was moved for

    @property
    def moves(self) -> list[AppliedMove]:
        """Return the applied moves, in order."""
        return [done for done in self._done if isinstance(done, AppliedMove)]

    @property
    def placed(self) -> list[Outcome]:
        """Return the pending pods that are placed, in order."""
        return [done for done in self._done if isinstance(done, Outcome)]

    def fits(self, group: Sequence[PodSpec]) -> bool:
        """Place a group if it fits without a move."""
        return self._extend([*group])

    def make_room(
        self, group: Sequence[PodSpec], candidates: Candidates, accepts: Accepts | None = None
    ) -> Failure | None:
        """Find and apply moves of `candidates` after which the whole group fits; otherwise return the reason."""
        mark = len(self._steps)
        steps: list[Unit | PodSpec] = []
        for pod in group:
            # Permit plugins make members wait for the last one, so search for each member without its gang.
            single = msgspec.structs.replace(pod, gang=None)
            if self._extend([single]):
                steps.append(pod)
                continue
            moved_keys = {placed.pod.key for moved in self.moves for placed in moved.unit}
            on_row = {
                row: kept
                for row, units in candidates.items()
                if (kept := [u for u in units if _is_untouched(u, moved_keys)])
            }
            tries = max(self._question.most_tries - self.board.tries, 0)  # the limit applies to the whole question
            search = MoveSearch(self.board, single, on_row, self._question.most_moves - len(self.moves), tries, accepts)
            freed = search.search()
            self.at_least += freed.at_least
            self.fewest = self.fewest and freed.fewest and not self.moves
            if freed.units is None or not self._extend([*freed.units, single]):
                failure = Failure(pod, search.nearest())
                self._undo_to(mark)
                return failure
            self._wanted |= {id(unit): pod.key for unit in freed.units}
            steps += [*freed.units, pod]
        self._undo_to(mark)
        if self._extend(steps):
            return None
        return Failure(group[0], Nearest("", diagnose(self.board.scheduler_of(group[0]), group[0]).summary))

    def drop_redundant(self) -> None:
        """Drop every move that is not needed to place all groups; with a single group, all moves are needed."""
        if len(set(self._wanted.values())) < 2:
            return
        remaining = PRUNING_STEPS
        for unit in [step for step in self._steps if not isinstance(step, PodSpec)]:
            remaining -= 2 * len(self._steps)
            if remaining < 0:
                return
            before = self._steps
            moves = [step for step in before if not isinstance(step, PodSpec) and step is not unit]
            fewer: list[Unit | PodSpec] = [*moves, *(step for step in before if isinstance(step, PodSpec))]
            self._undo_to(0)
            if not self._extend(fewer):
                made = self._extend(before)
                assert made  # the same steps were applied to this board before

    def undo_all(self) -> None:
        """Undo all moves and placements of the search."""
        self._undo_to(0)

    def pods_enabled_by(self, moved: AppliedMove) -> tuple[str, ...]:
        """Return the keys of the pending pods that a move makes room for."""
        rows = {placed.row for placed in moved.unit}
        direct = tuple(outcome.pod.key for outcome in self.placed if outcome.row in rows)
        return direct or tuple(filter(None, [self._wanted.get(id(moved.unit), "")]))

    # -- steps -------------------------------------------------------------------------------------------------------

    def _extend(self, steps: list[Unit | PodSpec]) -> bool:
        """Apply further steps (moves of units, placements of pods); if a step fails, undo all of them."""
        state = self.board.state
        mark, backoff_until = len(self._steps), dict(state.gangs.backoff_until)
        state.gangs.register_queue([step for step in steps if isinstance(step, PodSpec)])
        for step in steps:
            done = self._pod(step) if isinstance(step, PodSpec) else self.board.move(step)
            if done is None:
                break
            if isinstance(done, AppliedMove) and not isinstance(step, PodSpec):
                done.unit = step
            self._steps = [*self._steps, step]
            self._done.append(done)
        else:
            if all(outcome.node is not None and not outcome.is_waiting for outcome in self.placed[-len(steps) :]):
                return True
        self._undo_to(mark)
        state.gangs.backoff_until = backoff_until
        return False

    def _pod(self, pod: PodSpec) -> Outcome | None:
        outcome = self.board.scheduler_of(pod).schedule(pod, preempts=False)
        return None if outcome.node is None else outcome

    def _undo_to(self, mark: int) -> None:
        while len(self._steps) > mark:
            done = self._done.pop()
            if isinstance(done, AppliedMove):
                self.board.undo(done)
            else:
                self.board.scheduler_of(done.pod).undo(done)
            self._steps = self._steps[:-1]


def groups_of(pods: Sequence[PodSpec]) -> list[list[PodSpec]]:
    """Group pending pods in their order; the members of a gang form one group."""
    groups: dict[str, list[PodSpec]] = {}
    for pod in pods:
        groups.setdefault(gang_key(pod) or f"pod {pod.key}", []).append(pod)
    return list(groups.values())


def _is_untouched(unit: Unit, moved_keys: set[str]) -> bool:
    return not any(placed.pod.key in moved_keys for placed in unit)
