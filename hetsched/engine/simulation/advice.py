"""Recommended moves of running pods: the fewest that balance the cluster, make room, or free rare nodes.

Every move is one of `moves`, so each target is the node that the policy itself selects at that moment. By goal:
    balance  until the mean balance degree reaches the target: among the least balanced nodes, the move that gains
             most; then moves that are not needed for the target are dropped. A move has to raise the sum of the
             nodes' degrees by `LEAST_GAIN`, else it does not justify a restart, and it takes no rare place that the
             pod does not need.
    room     pods are taken in queue order; for each that fits nowhere, `minimal_moves` finds the fewest moves.
    rare     for each pending pod that needs a rare node and fits nowhere, the fewest moves of narrow pods (`rarity`)
             off such nodes after which the cycle places it. Moves that place no pending pod are not proposed.
`balance` is a bounded greedy search: each step examines the `WORST` least balanced nodes and `CANDIDATES` of their
pods, so its number of moves is small but not proven minimal; `room` proves it within its tries. This module moves and
writes nothing: an operator confirms a plan, and each step is checked again then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from hetsched.contracts.api.advice import Advice, AdviceVerdict, Goal, Move, MovedPod, Nearest, Question, Search
from hetsched.contracts.api.decision import Balance, Placement, PolicyRef
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.balance import node_balance
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework import nash
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.rarity import RareDemand, Rarity, needed_by, needs, rarity_of, wasted_on

from .movable_pods import Unit, Units, units_of
from .moves import AppliedMove, Board, cost_of
from .room_search import Failure, RoomSearch, groups_of
from .what_if import placement

WORST = 24
CANDIDATES = 48
LEAST_GAIN = 0.01
_DIGITS = 6
_TRIFLE = 1e-9


class _Found(msgspec.Struct):
    """Result of a search; `moves` are made on the board and reported in their order."""

    verdict: AdviceVerdict
    summary: str
    moves: list[Move]
    places: list[Placement] = []
    nearest: Nearest | None = None
    at_least: int = 0
    fewest: bool = False


def advise(
    state: ClusterState,
    policy: Policy,
    question: Question,
    *,
    evaluated_at: str,
    kept: Mapping[str, str] | None = None,
    returns: bool = False,
    own: Mapping[str, Policy] | None = None,
    consume: bool = False,
) -> Advice:
    """Return the moves that answer a question, or why there are none.

    `state` is unchanged unless the caller sets `consume`. `own` maps pods (keys) to the policies that decide for them,
    if not `policy`.

    `kept` maps pods (keys) that must stay on their node to a code of `movable.MESSAGES`. `returns`: evicted pods
    without a controller are recreated. `evaluated_at` is RFC 3339.
    """
    snapshot, stale = state.digest(), tuple(state.stale())
    given = state if consume else state.fork()
    board = Board(given, policy, evaluated_at=evaluated_at, returns=returns, own=own)
    units = units_of(board.state, kept or {})
    before = board.balance
    found = _SEARCHES[question.goal](board, units, question)
    return Advice(
        goal=question.goal,
        verdict=found.verdict,
        summary=found.summary,
        policy=PolicyRef(policy.spec.name, policy.spec.version),
        evaluated_at=evaluated_at,
        snapshot=snapshot,
        token=token_of(question, policy, [pod for move in found.moves for pod in move.pods]),
        balance=Balance(round(before, _DIGITS), round(board.balance, _DIGITS), stale),
        moves=tuple(found.moves),
        cost=cost_of(found.moves),
        places=tuple(found.places),
        stays=units.reasons(),
        search=Search(board.tries, question.most_tries, question.most_moves, found.at_least, found.fewest),
        nearest=found.nearest,
    )


def token_of(question: Question, policy: Policy, pods: Sequence[MovedPod]) -> str:
    """Return a token of a plan: its question, its policy, and the source and target of its pods."""
    asked = (question.goal, question.target, question.most_moves, question.pods)
    moves = [(pod.pod, pod.uid, pod.from_, pod.to) for pod in pods]
    parts = encode((asked, policy.spec.name, policy.spec.version, moves), order="sorted")
    return blake2b(parts, digest_size=12).hexdigest()


# -- balance -----------------------------------------------------------------------------------------------------------


def _balance(board: Board, units: Units, question: Question) -> _Found:
    goal = question.target
    if board.balance >= goal - _TRIFLE:
        text = f"the balance is {board.balance:.4f}, at least the {goal:g} that is asked"
        return _Found(AdviceVerdict.NOTHING, text, [], fewest=True)
    began = board.balance
    left = list(dict.fromkeys(units.all))
    rarity = rarity_of(board.state)
    made: list[AppliedMove] = []
    while board.balance < goal - _TRIFLE and len(made) < question.most_moves and board.tries < question.most_tries:
        best = _best_for_balance(board, left, rarity, question.most_tries)
        if best is None:
            break
        moved = board.move(best)
        assert moved is not None  # just made on the same board
        made.append(moved)
        left.remove(best)
    made = _without_needless(board, made, goal)
    moves = [board.as_move(moved, _evens(board, moved)) for moved in made]
    if board.balance >= goal - _TRIFLE:
        text = f"by {_moves(made)} the balance rises from {began:.4f} to {board.balance:.4f}"
        return _Found(AdviceVerdict.PLAN, text, moves, at_least=1)
    why = (
        f"{question.most_moves} moves are as many as are asked for"
        if len(made) >= question.most_moves
        else f"no further move of a pod that may move gains {LEAST_GAIN:g} over its two nodes"
    )
    nearest = Nearest("", f"the balance stays at {board.balance:.4f} of {goal:g}: {why}")
    if not made:
        return _Found(AdviceVerdict.NONE, f"no useful plan: {nearest.message}", [], nearest=nearest)
    text = f"by {_moves(made)} the balance rises from {began:.4f} to {board.balance:.4f} of {goal:g}; {why}"
    return _Found(AdviceVerdict.PARTLY, text, moves, nearest=nearest)


def _best_for_balance(board: Board, left: Sequence[Unit], rarity: Rarity, most_tries: int) -> Unit | None:
    """Return the unit whose move gains most, the cheapest of equals; moves that waste a rare place are excluded."""
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
            wasted_on(booking.pod.shape, outcome.row, booking.row, rarity, board.state)
            for booking, outcome in zip(moved.unit, moved.outcomes, strict=True)
        )
        board.take_back(moved)
        if gain >= least and not wasted and (best is None or (-gain, price) < best):
            best, chosen = (-gain, price), unit
    return chosen


def _promising(board: Board, left: Sequence[Unit]) -> list[Unit]:
    """Return units on the least balanced nodes, first those whose removal balances their node most."""
    state = board.state
    degrees = node_balance(state)
    order = np.argsort(degrees, kind="stable")
    worst = set(order[state.all_rows.static("ready")[order] != 0][:WORST].tolist())
    resources = nash.resources_of(state)
    used, room = nash.used(state.all_rows, resources), nash.capacity(state.all_rows, resources)
    own = state.columns.layout.load["used"]
    gains: list[tuple[float, int, Unit]] = []
    for position, unit in enumerate(left):
        rows = {booking.row for booking in unit}
        if not rows & worst:
            continue
        gain = 0.0
        for row in rows:
            taken = sum(booking.compiled.delta[own][resources.used] for booking in unit if booking.row == row)
            rest, _ = nash.utility(np.maximum(used[:, [row]] - np.reshape(taken, (-1, 1)), 0), room[:, [row]])
            gain += float(rest[0] - degrees[row])
        gains.append((-gain, position, unit))
    return [unit for _, _, unit in sorted(gains, key=lambda item: item[:2])[:CANDIDATES]]


def _without_needless(board: Board, made: list[AppliedMove], goal: float) -> list[AppliedMove]:
    """Drop moves that the goal does not need; the board then has the others made."""
    if board.balance < goal - _TRIFLE:
        return made
    plan = [moved.unit for moved in made]
    for unit in sorted(plan, key=lambda unit: _gain_of(made, unit)):
        fewer = [other for other in plan if other is not unit]
        _take_back(board, made)
        tried = _make(board, fewer)
        if tried is not None and board.balance >= goal - _TRIFLE:
            plan, made = fewer, tried
        else:
            _take_back(board, tried or [])
            made = _make(board, plan) or []
    return made


def _gain_of(made: Sequence[AppliedMove], unit: Unit) -> float:
    return next((moved.after - moved.before for moved in made if moved.unit is unit), 0.0)


def _make(board: Board, plan: Sequence[Unit]) -> list[AppliedMove] | None:
    made: list[AppliedMove] = []
    for unit in plan:
        moved = board.move(unit)
        if moved is None:
            _take_back(board, made)
            return None
        moved.unit = unit
        made.append(moved)
    return made


def _take_back(board: Board, made: Sequence[AppliedMove]) -> None:
    for moved in reversed(made):
        board.take_back(moved)


def _evens(board: Board, moved: AppliedMove) -> str:
    return f"evens out {_nodes(board, moved)}: balance {moved.before:.4f} -> {moved.after:.4f}"


# -- room --------------------------------------------------------------------------------------------------------------


def _room(board: Board, units: Units, question: Question) -> _Found:
    pods = list(board.scheduler.policy.queue(question.pods, board.state))
    wrong = next((pod for pod in pods if not pod.ready), None)
    if wrong is not None:
        text: str = diagnose(board.scheduler_of(wrong), wrong).summary
        return _Found(AdviceVerdict.NONE, text, [], nearest=Nearest("", text))
    search = RoomSearch(board, question)
    for group in groups_of(pods):
        failure = search.make_room(group, units.on_row)
        if failure is not None:
            head = f"no useful plan: {failure.pod.key} finds no room by {question.most_moves} moves or fewer"
            text = f"{head}: {failure.nearest.message}"
            search.take_back()
            return _Found(AdviceVerdict.NONE, text, [], nearest=failure.nearest, at_least=search.at_least)
    search.drop_needless()
    places = [placement(outcome, board.state) for outcome in search.placed]
    moves = [_room_move(board, search, moved) for moved in search.moves]
    if not moves:
        where = ", ".join(f"{place.pod} on {place.node}" for place in places[:3])
        return _Found(AdviceVerdict.NOTHING, f"there is room already: {where}", [], places, fewest=True)
    where = ", ".join(dict.fromkeys(place.node for place in places))
    text = f"by {_moves(moves)} there is room for {_pods(question)} on {where}"
    return _Found(AdviceVerdict.PLAN, text, moves, places, at_least=search.at_least, fewest=search.fewest)


def _room_move(board: Board, search: RoomSearch, moved: AppliedMove) -> Move:
    pods = search.helped_by(moved)
    return board.as_move(moved, f"makes room for {_some(pods)} on {_nodes(board, moved)}", pods)


def _pods(question: Question) -> str:
    return question.pods[0].key if len(question.pods) == 1 else f"{len(question.pods)} pods"


# -- rare --------------------------------------------------------------------------------------------------------------


def _rare(board: Board, units: Units, question: Question) -> _Found:
    """Find moves of narrow pods off rare nodes for the pending pods that need these nodes and do not fit now."""
    rarity = rarity_of(board.state)
    search = RoomSearch(board, question)
    helped: set[str] = set()
    stuck: list[Failure] = []
    hopeless: set[Shape] = set()
    for group in groups_of(list(board.scheduler.policy.queue(question.pods, board.state))):
        if not all(pod.ready for pod in group) or search.fits(group):
            continue
        wanted = _wanted_rows(board, group, rarity)
        if not wanted:
            continue
        keys, shapes = {pod.key for pod in group}, {pod.shape for pod in group}
        if shapes & hopeless or board.tries >= question.most_tries:
            stuck.append(Failure(group[0], Nearest("", Message("the search has come to its limit of tries"))))
            continue
        narrow = _narrow(board, units, wanted, rarity)
        failure = search.make_room(group, narrow, _keeps_free(rarity, wanted))
        if failure is None:
            helped |= keys
        else:
            stuck.append(failure)
            hopeless |= shapes
    if not helped and not stuck:
        return _Found(AdviceVerdict.NOTHING, "no waiting pod needs a rare node on which there is no room", [])
    search.drop_needless()
    moves = [_rare_move(board, search, moved, rarity) for moved in search.moves]
    nearest = Nearest(stuck[0].nearest.node, _stuck(stuck), stuck[0].nearest.pods) if stuck else None
    if not moves:
        assert nearest is not None
        return _Found(AdviceVerdict.NONE, f"no useful plan: {nearest.message}", [], nearest=nearest)
    places = [placement(outcome, board.state) for outcome in search.placed if outcome.pod.key in helped]
    verdict = AdviceVerdict.PARTLY if stuck else AdviceVerdict.PLAN
    where = ", ".join(dict.fromkeys(place.node for place in places))
    rest = f"; {nearest.message}" if nearest is not None else ""
    text = f"by {_moves(moves)} there is room for {_some([place.pod for place in places])} on {where}{rest}"
    return _Found(verdict, text, moves, places, nearest=nearest)


def _wanted_rows(board: Board, group: Sequence[PodSpec], rarity: Rarity) -> dict[int, frozenset[str]]:
    """Return the rare nodes (rows) on which a pod of a group could run, with the rare ways in which it needs them."""
    askers = _askers(board, group)
    rows = sorted(frozenset().union(*rarity.rows.values()))
    found = {row: frozenset(needed_by(row, askers, rarity, board.state)) for row in rows}
    return {row: ways for row, ways in found.items() if ways}


def _narrow(board: Board, units: Units, wanted: Mapping[int, frozenset[str]], rarity: Rarity) -> dict[int, list[Unit]]:
    """Return, by row, the units on these rare nodes that need none of the ways in which the node is rare."""
    shapes = board.state
    return {
        row: [unit for unit in units.on_row[row] if not any(needs(b.pod.shape, row, rarity, shapes) for b in unit)]
        for row in wanted
        if row in units.on_row
    }


def _keeps_free(rarity: Rarity, wanted: Mapping[int, frozenset[str]]) -> Callable[[AppliedMove], bool]:
    """Return a predicate that refuses moves to nodes that are rare in a requested way."""
    ways = frozenset().union(*wanted.values())
    taken = frozenset().union(*(rarity.rows[way] for way in ways))
    return lambda moved: not any(outcome.row in taken for outcome in moved.outcomes)


def _rare_move(board: Board, search: RoomSearch, moved: AppliedMove, rarity: Rarity) -> Move:
    pods = search.helped_by(moved)
    ways = dict.fromkeys(_WORDS[way] for booking in moved.unit for way in rarity.ways(booking.row))
    text = f"{_nodes(board, moved)} is rare by its {' and '.join(ways)}; makes room for {_some(pods)}"
    return board.as_move(moved, text, pods)


def _stuck(stuck: Sequence[Failure]) -> str:
    first = stuck[0]
    who = f"{first.pod.key} and {len(stuck) - 1} more still find" if len(stuck) > 1 else f"{first.pod.key} still finds"
    return f"{who} no room: {first.nearest.message}"


def _askers(board: Board, pods: Iterable[PodSpec]) -> list[RareDemand]:
    """Return one pod for each shape, with the nodes on which it could run in an empty cluster."""
    found: dict[Shape, RareDemand] = {}
    for pod in pods:
        if pod.shape not in found and pod.ready:
            scheduler = board.scheduler_of(pod)
            evaluation, _ = scheduler.evaluator.evaluate(board.state.compile(pod))
            could = np.zeros(len(board.state.reports), np.bool_) if evaluation.row_refusal else evaluation.static_mask
            found[pod.shape] = RareDemand(pod.key, pod.shape, could.copy())
    return list(found.values())


_WORDS = {"cards": "cards", "isa": "instruction set", "size": "size"}


# -- messages
# ----------------------------------------------------------------------------------------------------------


def _moves(moves: Sequence[object]) -> str:
    return "1 move" if len(moves) == 1 else f"{len(moves)} moves"


def _some(pods: Sequence[str]) -> str:
    return ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")


def _nodes(board: Board, moved: AppliedMove) -> str:
    names = board.state.columns.names
    return ", ".join(dict.fromkeys(names[booking.row] for booking in moved.unit))


_SEARCHES = {Goal.BALANCE: _balance, Goal.ROOM: _room, Goal.RARE: _rare}
