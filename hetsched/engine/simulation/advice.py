"""Which running pods to move, and what for: the fewest moves that even the cluster out, make room, or free rare nodes.

Rule, by goal; every move is one of `moving`, so each target is what the policy itself chooses at that moment:
    balance  until the mean balance degree reaches the target: of the least even nodes, the move that gains most; then
             moves without which the target is reached too are left out. A move has to lift the degrees of all nodes
             together by `LEAST_GAIN`, else it is not worth a restart, and takes no rare place in vain.
    room     pods are taken in queue order; for each that fits nowhere, `freeing` finds the fewest moves.
    rare     every narrow pod (`rarity`) whose new node is not rare in that way, most wanted nodes first.
`balance` is a bounded greedy search: it looks at the `WORST` least even nodes and `CANDIDATES` pods of theirs at each
step, so its number of moves is small, not proved least; `room` proves it within its tries.
Nothing is moved here, and nothing is written: an operator confirms a plan, and each step is checked again then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from hetsched.contracts.advice import Advice, AdviceVerdict, Goal, Move, MovedPod, Nearest, Question, Search
from hetsched.contracts.decision import Balance, Placement, PolicyRef
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.balance import node_balance
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework import nash
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.rarity import Asker, Rarity, needed_by, needs, rarity_of, wasted_on

from .minimal_moves import Freeing
from .movable_pods import Unit, Units, units_of
from .moves import Board, Moved, cost_of
from .what_if import placement

WORST = 24
CANDIDATES = 48
LEAST_GAIN = 0.01
_DIGITS = 6
_TRIFLE = 1e-9


class _Found(msgspec.Struct):
    """What a search came to; `moves` are made on the board and told in their order."""

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

    `state` is left as it was unless the caller lets it be `consume`d. `own` are the policies of pods (keys) that are
    decided by another one.

    `kept` maps pods (keys) that the caller keeps where they are to a code of `movable.MESSAGES`. `returns`: evicted
    pods without a controller come back by themselves. `evaluated_at` is RFC 3339.
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
        stays=units.told(),
        search=Search(board.tries, question.most_tries, question.most_moves, found.at_least, found.fewest),
        nearest=found.nearest,
    )


def token_of(question: Question, policy: Policy, pods: Sequence[MovedPod]) -> str:
    """Name a plan by its question, its policy and where which pods go; what else happened changes nothing."""
    asked = (question.goal, question.target, question.most_moves, question.pods)
    moves = [(pod.pod, pod.uid, pod.from_, pod.to) for pod in pods]
    parts = msgspec.json.encode((asked, policy.spec.name, policy.spec.version, moves), order="sorted")
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
    made: list[Moved] = []
    while board.balance < goal - _TRIFLE and len(made) < question.most_moves and board.tries < question.most_tries:
        best = _best_for_balance(board, left, rarity, question.most_tries)
        if best is None:
            break
        moved = board.move(best)
        assert moved is not None  # it was made a moment ago, on the same board
        made.append(moved)
        left.remove(best)
    made = _without_needless(board, made, goal)
    moves = [board.told(moved, _evens(board, moved)) for moved in made]
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
        return _Found(AdviceVerdict.NONE, f"nothing helps: {nearest.message}", [], nearest=nearest)
    text = f"by {_moves(made)} the balance rises from {began:.4f} to {board.balance:.4f} of {goal:g}; {why}"
    return _Found(AdviceVerdict.PARTLY, text, moves, nearest=nearest)


def _best_for_balance(board: Board, left: Sequence[Unit], rarity: Rarity, most_tries: int) -> Unit | None:
    """Return the unit whose move gains most, the cheapest of equals; none that would take a rare place in vain."""
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
    """Return units on the least even nodes, those first whose leaving evens their node out most."""
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


def _without_needless(board: Board, made: list[Moved], goal: float) -> list[Moved]:
    """Leave moves out without which the goal is reached all the same; the board then has the others made."""
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


def _gain_of(made: Sequence[Moved], unit: Unit) -> float:
    return next((moved.after - moved.before for moved in made if moved.unit is unit), 0.0)


def _make(board: Board, plan: Sequence[Unit]) -> list[Moved] | None:
    made: list[Moved] = []
    for unit in plan:
        moved = board.move(unit)
        if moved is None:
            _take_back(board, made)
            return None
        moved.unit = unit
        made.append(moved)
    return made


def _take_back(board: Board, made: Sequence[Moved]) -> None:
    for moved in reversed(made):
        board.take_back(moved)


def _evens(board: Board, moved: Moved) -> str:
    return f"evens out {_nodes(board, moved)}: balance {moved.before:.4f} -> {moved.after:.4f}"


# -- room --------------------------------------------------------------------------------------------------------------


def _room(board: Board, units: Units, question: Question) -> _Found:
    moves: list[Move] = []
    places: list[Placement] = []
    at_least, fewest = 0, True
    gone: set[str] = set()
    for pod in board.scheduler.policy.queue(question.pods, board.state):
        scheduler = board.scheduler_of(pod)
        outcome = scheduler.schedule(pod, preempts=False)
        if outcome.node is None:
            if not pod.ready:
                text = diagnose(scheduler, pod).summary
                return _Found(AdviceVerdict.NONE, text, [], nearest=Nearest("", text))
            on_row = {
                row: kept for row, found in units.on_row.items() if (kept := [u for u in found if _still(u, gone, row)])
            }
            tries = max(question.most_tries - board.tries, 0)  # they are of the whole question
            search = Freeing(board, pod, on_row, question.most_moves - len(moves), tries)
            freed = search.search()
            at_least, fewest = at_least + freed.at_least, fewest and freed.fewest and not moves
            if freed.units is None:
                nearest = search.nearest()
                head = f"{pod.key} finds no room by {question.most_moves} moves or fewer"
                return _Found(AdviceVerdict.NONE, f"{head}: {nearest.message}", [], nearest=nearest, at_least=at_least)
            made = _make(board, freed.units) or []
            gone |= {booking.pod.key for unit in freed.units for booking in unit}
            moves += [board.told(moved, f"makes room for {pod.key} on {_nodes(board, moved)}") for moved in made]
            outcome = scheduler.schedule(pod, preempts=False)
        if outcome.node is not None and not outcome.held:
            places.append(placement(outcome, board.state))
    if not moves:
        where = ", ".join(f"{place.pod} on {place.node}" for place in places[:3])
        return _Found(AdviceVerdict.NOTHING, f"there is room already: {where}", [], places, fewest=True)
    where = ", ".join(dict.fromkeys(place.node for place in places))
    text = f"by {_moves(moves)} there is room for {_pods(question)} on {where}"
    return _Found(AdviceVerdict.PLAN, text, moves, places, at_least=at_least, fewest=fewest)


def _still(unit: Unit, gone: set[str], row: int) -> bool:
    return not any(booking.pod.key in gone for booking in unit)


def _pods(question: Question) -> str:
    return question.pods[0].key if len(question.pods) == 1 else f"{len(question.pods)} pods"


# -- rare --------------------------------------------------------------------------------------------------------------


def _rare(board: Board, units: Units, question: Question) -> _Found:
    state = board.state
    rarity = rarity_of(state)
    waiting = _askers(board, question.pods)
    running = _askers(board, [booking.pod for _, booking in sorted(state.bookings.items())])
    narrow: list[tuple[int, Unit, str, str]] = []
    for row, found in units.on_row.items():
        ways = rarity.ways(row)
        if not ways:
            continue
        wanted = needed_by(row, waiting, rarity, state)
        others = wanted or needed_by(row, running, rarity, state)
        for unit in found:
            if not others or any(needs(booking.pod.shape, row, rarity, state) for booking in unit):
                continue
            way = next(way for way in ways if way in others)
            narrow.append((0 if way in wanted else 1, unit, way, others[way]))
    if not narrow:
        return _Found(AdviceVerdict.NOTHING, "no pod sits on a rare node that others need without needing it", [])
    narrow.sort(key=lambda item: item[0])
    moves: list[Move] = []
    stuck: list[Unit] = []
    done: set[str] = set()
    for _, unit, way, wants in narrow:
        if len(moves) >= question.most_moves or board.tries >= question.most_tries:
            break
        if not _still(unit, done, 0):
            continue
        moved = board.move(unit)
        if moved is None or any(outcome.row in rarity.rows[way] for outcome in moved.outcomes):
            if moved is not None:
                board.take_back(moved)
            stuck.append(unit)
            continue
        done |= {booking.pod.key for booking in unit}
        moves.append(board.told(moved, f"{_nodes(board, moved)} is rare by its {_WORDS[way]}, which {wants} needs"))
    nearest = None
    if stuck:
        named = tuple(booking.pod.key for unit in stuck for booking in unit)
        count = f"{len(named)} narrow pod stays" if len(named) == 1 else f"{len(named)} narrow pods stay"
        message = f"{count}: no other place, or only on a node that is as rare"
        nearest = Nearest(state.columns.names[stuck[0][0].row], message, named[:5])
    if not moves:
        assert nearest is not None
        return _Found(AdviceVerdict.NONE, nearest.message, [], nearest=nearest)
    missing = len(narrow) - len(moves)
    verdict = AdviceVerdict.PARTLY if missing else AdviceVerdict.PLAN
    rest = f"; {missing} more {'stays' if missing == 1 else 'stay'}" if missing else ""
    text = f"by {_moves(moves)} rare nodes are free for those who need them{rest}"
    return _Found(verdict, text, moves, nearest=nearest, at_least=len(moves), fewest=not missing)


def _askers(board: Board, pods: Iterable[PodSpec]) -> list[Asker]:
    """Return one pod for each shape, with the nodes on which it could run whatever is booked."""
    found: dict[Shape, Asker] = {}
    for pod in pods:
        if pod.shape not in found and pod.ready:
            scheduler = board.scheduler_of(pod)
            evaluation, _ = scheduler.evaluator.evaluate(board.state.compile(pod))
            could = np.zeros(len(board.state.reports), np.bool_) if evaluation.row_refusal else evaluation.static_mask
            found[pod.shape] = Asker(pod.key, pod.shape, could.copy())
    return list(found.values())


_WORDS = {"cards": "cards", "isa": "instruction set", "size": "size"}


# -- words -------------------------------------------------------------------------------------------------------------


def _moves(moves: Sequence[object]) -> str:
    return "1 move" if len(moves) == 1 else f"{len(moves)} moves"


def _nodes(board: Board, moved: Moved) -> str:
    names = board.state.columns.names
    return ", ".join(dict.fromkeys(names[booking.row] for booking in moved.unit))


_SEARCHES = {Goal.BALANCE: _balance, Goal.ROOM: _room, Goal.RARE: _rare}
