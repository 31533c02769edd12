"""Recommended moves of running pods: the fewest that balance the cluster, make room, or free rare nodes.

Every move is made by the module `moves`, so each target is the node that the policy selects at that moment. By goal:
    balance  until the mean balance degree reaches the target, the search takes the move with the greatest gain among
             the least balanced nodes; then it drops moves that the target does not need. A move has to raise the sum
             of the nodes' degrees by `LEAST_GAIN` to justify a restart, and must not use a rare node without need.
    room     for each pod (in queue order) that fits nowhere, `minimal_moves` finds the fewest moves.
    rare     for each pending pod that needs a rare node and fits nowhere, the search finds the fewest moves of narrow
             pods (`rarity`) off such nodes after which the cycle places the pod. Moves that place no pending pod are
             not proposed.
`balance` is a bounded greedy search: each step examines the `WORST` least balanced nodes and `CANDIDATES` of their
pods. Its number of moves is small but not proven minimal; `room` proves minimality within its tries. This module only
proposes moves. An operator confirms a plan, and each step is checked again before it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from hetsched.contracts.api.advice import Advice, AdviceVerdict, Goal, Move, MovedPod, Nearest, Question, Search
from hetsched.contracts.api.decision import Balance, Placement, PolicyRef
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message, format_pods, joined
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
_NAMED = 3
_NO_PLAN = "no useful plan: {said}"
_NO_GAIN = "no further move of a pod that may move gains {value} over its two nodes"
_ROOM = "by {moves} there is room for {pods} on {names}"


class _Found(msgspec.Struct):
    """Result of a search; `moves` are applied to the board and reported in this order."""

    verdict: AdviceVerdict
    summary: Message
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
    """Return the moves for a question, or the reason why no moves were found.

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
        text = Message(
            "the balance is {value}, at least the {goal} that is asked", value=_four(board.balance), goal=f"{goal:g}"
        )
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
    moves = [board.to_move(moved, _evens(board, moved)) for moved in made]
    if board.balance >= goal - _TRIFLE:
        text = Message(
            "by {moves} the balance rises from {was} to {now}",
            moves=_moves(made), was=_four(began), now=_four(board.balance),
        )  # fmt: skip
        return _Found(AdviceVerdict.PLAN, text, moves, at_least=1)
    why = (
        Message("{n} moves are as many as are asked for", n=question.most_moves)
        if len(made) >= question.most_moves
        else Message(_NO_GAIN, value=f"{LEAST_GAIN:g}")
    )
    now, aim = _four(board.balance), f"{goal:g}"
    stays = Message("the balance stays at {value} of {goal}: {said}", value=now, goal=aim, said=why)
    nearest = Nearest("", stays)
    if not made:
        return _Found(AdviceVerdict.NONE, Message(_NO_PLAN, said=stays), [], nearest=nearest)
    text = Message(
        "by {moves} the balance rises from {was} to {now} of {goal}; {said}",
        moves=_moves(made), was=_four(began), now=now, goal=aim, said=why,
    )  # fmt: skip
    return _Found(AdviceVerdict.PARTLY, text, moves, nearest=nearest)


def _best_for_balance(board: Board, left: Sequence[Unit], rarity: Rarity, most_tries: int) -> Unit | None:
    """Return the unit whose move gains most, the cheapest of equals; moves that waste a rare node are excluded."""
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
        board.undo(moved)
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
    """Drop moves that the goal does not need; afterwards the board has only the other moves applied."""
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
        board.undo(moved)


def _evens(board: Board, moved: AppliedMove) -> Message:
    return Message(
        "evens out {names}: balance {was} -> {now}",
        names=_nodes(board, moved), was=_four(moved.before), now=_four(moved.after),
    )  # fmt: skip


# -- room --------------------------------------------------------------------------------------------------------------


def _room(board: Board, units: Units, question: Question) -> _Found:
    pods = list(board.scheduler.policy.queue(question.pods, board.state))
    wrong = next((pod for pod in pods if not pod.ready), None)
    if wrong is not None:
        text = diagnose(board.scheduler_of(wrong), wrong).summary
        return _Found(AdviceVerdict.NONE, text, [], nearest=Nearest("", text))
    search = RoomSearch(board, question)
    for group in groups_of(pods):
        failure = search.make_room(group, units.on_row)
        if failure is not None:
            text = Message(
                "no useful plan: {pod} finds no room by {n} moves or fewer: {said}",
                pod=failure.pod.key, n=question.most_moves, said=failure.nearest.message,
            )  # fmt: skip
            search.take_back()
            return _Found(AdviceVerdict.NONE, text, [], nearest=failure.nearest, at_least=search.at_least)
    search.drop_needless()
    places = [placement(outcome, board.state) for outcome in search.placed]
    moves = [_room_move(board, search, moved) for moved in search.moves]
    if not moves:
        shown = joined(", ", [Message("{pod} on {node}", pod=place.pod, node=place.node) for place in places[:3]])
        text = Message("there is room already: {names}", names=shown)
        return _Found(AdviceVerdict.NOTHING, text, [], places, fewest=True)
    asked = (
        format_pods([question.pods[0].key]) if len(question.pods) == 1 else Message("{n} pods", n=len(question.pods))
    )
    text = Message(_ROOM, moves=_moves(moves), pods=asked, names=_places(places))
    return _Found(AdviceVerdict.PLAN, text, moves, places, at_least=search.at_least, fewest=search.fewest)


def _room_move(board: Board, search: RoomSearch, moved: AppliedMove) -> Move:
    pods = search.helped_by(moved)
    text = Message("makes room for {pods} on {names}", pods=format_pods(pods, _NAMED), names=_nodes(board, moved))
    return board.to_move(moved, text, pods)


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
        return _Found(AdviceVerdict.NOTHING, Message("no waiting pod needs a rare node on which there is no room"), [])
    search.drop_needless()
    moves = [_rare_move(board, search, moved, rarity) for moved in search.moves]
    nearest = Nearest(stuck[0].nearest.node, _stuck(stuck), stuck[0].nearest.pods) if stuck else None
    if not moves:
        assert nearest is not None
        return _Found(AdviceVerdict.NONE, Message(_NO_PLAN, said=nearest.message), [], nearest=nearest)
    places = [placement(outcome, board.state) for outcome in search.placed if outcome.pod.key in helped]
    verdict = AdviceVerdict.PARTLY if stuck else AdviceVerdict.PLAN
    pods = format_pods([place.pod for place in places], _NAMED)
    text = Message(_ROOM, moves=_moves(moves), pods=pods, names=_places(places))
    if nearest is not None:
        text = joined("; ", [text, nearest.message])
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
    ways = joined(", ", dict.fromkeys(_WORDS[way] for booking in moved.unit for way in rarity.ways(booking.row)))
    text = Message(
        "{names} is rare by its {ways}; makes room for {pods}",
        names=_nodes(board, moved), ways=ways, pods=format_pods(pods, _NAMED),
    )  # fmt: skip
    return board.to_move(moved, text, pods)


def _stuck(stuck: Sequence[Failure]) -> Message:
    pod, said = stuck[0].pod.key, stuck[0].nearest.message
    if len(stuck) == 1:
        return Message("{pod} still finds no room: {said}", pod=pod, said=said)
    return Message("{pod} and {n} more still find no room: {said}", pod=pod, n=len(stuck) - 1, said=said)


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


_WORDS = {"cards": Message("cards"), "isa": Message("instruction set"), "size": Message("size")}


# -- messages
# ----------------------------------------------------------------------------------------------------------


def _moves(moves: Sequence[object]) -> Message:
    return Message("1 move") if len(moves) == 1 else Message("{n} moves", n=len(moves))


def _nodes(board: Board, moved: AppliedMove) -> Message:
    names = board.state.columns.names
    return joined(", ", dict.fromkeys(names[booking.row] for booking in moved.unit))


def _places(places: Sequence[Placement]) -> Message:
    return joined(", ", dict.fromkeys(place.node for place in places))


def _four(value: float) -> str:
    return f"{value:.4f}"


_SEARCHES = {Goal.BALANCE: _balance, Goal.ROOM: _room, Goal.RARE: _rare}
