"""Search for the fewest moves after which the mean balance degree reaches a target.

A bounded greedy search: each step examines the `WORST` least balanced nodes and `CANDIDATES` of their pods, and takes
the move with the greatest gain. Moves that the target does not need are dropped at the end. The number of moves is
small but not proven minimal. A move has to raise the sum of the nodes' balance degrees by `LEAST_GAIN` to justify a
restart, and must not use a rare node without need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsched.contracts.api.advice import AdviceVerdict, Nearest, Question
from hetsched.contracts.message import Message
from hetsched.engine.cluster.balance import node_balance
from hetsched.engine.framework import nash
from hetsched.engine.framework.rarity import Rarity, rarity_of, wastes_rarity

from .movable_pods import Unit, Units
from .moves import AppliedMove, Board
from .search_results import NO_PLAN, SearchResult, four_digits, move_count, node_names

WORST = 24
CANDIDATES = 48
LEAST_GAIN = 0.01
_TRIFLE = 1e-9
_NO_GAIN = "no further permitted move improves the balance of its source and target nodes by at least {value}"


def balance_nodes(board: Board, units: Units, question: Question) -> SearchResult:
    goal = question.target
    if board.balance >= goal - _TRIFLE:
        text = Message(
            "the balance is {value}, which meets the target of {goal}",
            value=four_digits(board.balance),
            goal=f"{goal:g}",
        )
        return SearchResult(AdviceVerdict.NOTHING, text, [], fewest=True)
    began = board.balance
    remaining = list(dict.fromkeys(units.all))
    rarity = rarity_of(board.state)
    applied: list[AppliedMove] = []
    while board.balance < goal - _TRIFLE and len(applied) < question.most_moves and board.tries < question.most_tries:
        best = _best_for_balance(board, remaining, rarity, question.most_tries)
        if best is None:
            break
        moved = board.move(best)
        assert moved is not None  # the search tried the same move on this board successfully
        applied.append(moved)
        remaining.remove(best)
    applied = _without_needless(board, applied, goal)
    moves = [board.to_move(moved, _balance_message(board, moved)) for moved in applied]
    if board.balance >= goal - _TRIFLE:
        text = Message(
            "after {moves}, the balance rises from {was} to {now}",
            moves=move_count(applied), was=four_digits(began), now=four_digits(board.balance),
        )  # fmt: skip
        return SearchResult(AdviceVerdict.PLAN, text, moves, at_least=1)
    why = (
        Message("the maximum of {n} moves is reached", n=question.most_moves)
        if len(applied) >= question.most_moves
        else Message(_NO_GAIN, value=f"{LEAST_GAIN:g}")
    )
    now, aim = four_digits(board.balance), f"{goal:g}"
    stays = Message(
        "the balance remains at {value}, below the target {goal}: {detail}", value=now, goal=aim, detail=why
    )
    nearest = Nearest("", stays)
    if not applied:
        return SearchResult(AdviceVerdict.NONE, Message(NO_PLAN, detail=stays), [], nearest=nearest)
    text = Message(
        "after {moves}, the balance rises from {was} to {now}, below the target {goal}; {detail}",
        moves=move_count(applied), was=four_digits(began), now=now, goal=aim, detail=why,
    )  # fmt: skip
    return SearchResult(AdviceVerdict.PARTLY, text, moves, nearest=nearest)


def _best_for_balance(board: Board, left: Sequence[Unit], rarity: Rarity, most_tries: int) -> Unit | None:
    """Return the unit whose move improves the balance most (ties: the cheapest), or None if no move is worth it.

    Moves that gain too little or waste a rare node are excluded.
    """
    least = LEAST_GAIN / max(int((board.state.all_rows.static("ready") != 0).sum()), 1)
    best: tuple[float, tuple[int, int, int, int, float]] | None = None
    chosen: Unit | None = None
    for unit in _promising(board, left):
        if board.tries >= most_tries:
            break
        moved = board.move(unit)
        if moved is None:
            continue
        gain, price = round(moved.after - moved.before, 9), board.price([moved])
        wasted = any(
            wastes_rarity(placed.pod.shape, outcome.row, placed.row, rarity, board.state)
            for placed, outcome in zip(moved.unit, moved.outcomes, strict=True)
        )
        board.undo(moved)
        if gain >= least and not wasted and (best is None or (-gain, price) < best):
            best, chosen = (-gain, price), unit
    return chosen


def _promising(board: Board, left: Sequence[Unit]) -> list[Unit]:
    """Return units on the least balanced nodes, sorted by how much their removal balances their nodes."""
    state = board.state
    degrees = node_balance(state)
    order = np.argsort(degrees, kind="stable")
    worst = set(order[state.all_rows.static("ready")[order] != 0][:WORST].tolist())
    resources = nash.resources_of(state)
    used, room = nash.used(state.all_rows, resources), nash.capacity(state.all_rows, resources)
    own = state.columns.layout.load["used"]
    gains: list[tuple[float, int, Unit]] = []
    for position, unit in enumerate(left):
        rows = {placed.row for placed in unit}
        if not rows & worst:
            continue
        gain = 0.0
        for row in rows:
            taken = sum(placed.compiled.delta[own][resources.used] for placed in unit if placed.row == row)
            rest, _ = nash.utility(np.maximum(used[:, [row]] - np.reshape(taken, (-1, 1)), 0), room[:, [row]])
            gain += float(rest[0] - degrees[row])
        gains.append((-gain, position, unit))
    return [unit for _, _, unit in sorted(gains, key=lambda item: item[:2])[:CANDIDATES]]


def _without_needless(board: Board, applied: list[AppliedMove], goal: float) -> list[AppliedMove]:
    """Return the moves without those that the goal does not need; only the returned moves stay applied to the board."""
    if board.balance < goal - _TRIFLE:
        return applied
    plan = [moved.unit for moved in applied]
    for unit in sorted(plan, key=lambda unit: _gain_of(applied, unit)):
        fewer = [other for other in plan if other is not unit]
        _undo_moves(board, applied)
        tried = _make(board, fewer)
        if tried is not None and board.balance >= goal - _TRIFLE:
            plan, applied = fewer, tried
        else:
            _undo_moves(board, tried or [])
            applied = _make(board, plan) or []
    return applied


def _gain_of(applied: Sequence[AppliedMove], unit: Unit) -> float:
    return next((moved.after - moved.before for moved in applied if moved.unit is unit), 0.0)


def _make(board: Board, plan: Sequence[Unit]) -> list[AppliedMove] | None:
    applied: list[AppliedMove] = []
    for unit in plan:
        moved = board.move(unit)
        if moved is None:
            _undo_moves(board, applied)
            return None
        moved.unit = unit
        applied.append(moved)
    return applied


def _undo_moves(board: Board, applied: Sequence[AppliedMove]) -> None:
    for moved in reversed(applied):
        board.undo(moved)


def _balance_message(board: Board, moved: AppliedMove) -> Message:
    return Message(
        "improves the balance of {names}: cluster balance {was} -> {now}",
        names=node_names(board, moved), was=four_digits(moved.before), now=four_digits(moved.after),
    )  # fmt: skip
