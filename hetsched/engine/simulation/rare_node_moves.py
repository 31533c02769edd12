"""Search for the fewest moves of narrow pods off rare nodes that pending pods need.

A pod is narrow on a node if it needs none of the properties that make the node rare (`rarity`). Moves that place no
pending pod are not proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hetsched.contracts.api.advice import AdviceVerdict, Move, Nearest, Question
from hetsched.contracts.message import Message, format_pods, joined
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.framework.rarity import RareDemand, Rarity, needed_by, needs, rarity_of

from .movable_pods import Unit, Units
from .moves import AppliedMove, Board
from .room_search import Failure, RoomSearch, groups_of
from .search_results import NAMED, NO_PLAN, ROOM, SearchResult, move_count, node_names, place_names
from .what_if import placement


def free_rare_nodes(board: Board, units: Units, question: Question) -> SearchResult:
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
            stuck.append(Failure(group[0], Nearest("", Message("the search has tried the maximum number of moves"))))
            continue
        narrow = _narrow(board, units, wanted, rarity)
        failure = search.make_room(group, narrow, _keeps_free(rarity, wanted))
        if failure is None:
            helped |= keys
        else:
            stuck.append(failure)
            hopeless |= shapes
    if not helped and not stuck:
        return SearchResult(
            AdviceVerdict.NOTHING, Message("no pending pod requires a rare node that has too little free capacity"), []
        )
    search.drop_redundant()
    moves = [_rare_move(board, search, moved, rarity) for moved in search.moves]
    nearest = Nearest(stuck[0].nearest.node, _unplaced_message(stuck), stuck[0].nearest.pods) if stuck else None
    if not moves:
        assert nearest is not None
        return SearchResult(AdviceVerdict.NONE, Message(NO_PLAN, detail=nearest.message), [], nearest=nearest)
    places = [placement(outcome, board.state) for outcome in search.placed if outcome.pod.key in helped]
    verdict = AdviceVerdict.PARTLY if stuck else AdviceVerdict.PLAN
    pods = format_pods([place.pod for place in places], NAMED)
    text = Message(ROOM, moves=move_count(moves), pods=pods, names=place_names(places))
    if nearest is not None:
        text = joined("; ", [text, nearest.message])
    return SearchResult(verdict, text, moves, places, nearest=nearest)


def _wanted_rows(board: Board, group: Sequence[PodSpec], rarity: Rarity) -> dict[int, frozenset[str]]:
    """Return the rows of rare nodes on which a pod of the group could run, each with the rare properties it needs."""
    demands = _rare_demands(board, group)
    rows = sorted(frozenset().union(*rarity.rows.values()))
    found = {row: frozenset(needed_by(row, demands, rarity, board.state)) for row in rows}
    return {row: ways for row, ways in found.items() if ways}


def _narrow(board: Board, units: Units, wanted: Mapping[int, frozenset[str]], rarity: Rarity) -> dict[int, list[Unit]]:
    """Return, for each row of `wanted`, the units on it that need none of the node's rare properties."""
    shapes = board.state
    return {
        row: [unit for unit in units.on_row[row] if not any(needs(b.pod.shape, row, rarity, shapes) for b in unit)]
        for row in wanted
        if row in units.on_row
    }


def _keeps_free(rarity: Rarity, wanted: Mapping[int, frozenset[str]]) -> Callable[[AppliedMove], bool]:
    """Return a predicate that refuses moves to nodes with a rare property that pending pods need."""
    needed = frozenset().union(*wanted.values())
    kept_free = frozenset().union(*(rarity.rows[name] for name in needed))
    return lambda moved: not any(outcome.row in kept_free for outcome in moved.outcomes)


def _rare_move(board: Board, search: RoomSearch, moved: AppliedMove, rarity: Rarity) -> Move:
    pods = search.pods_enabled_by(moved)
    names = [name for placed in moved.unit for name in rarity.properties(placed.row)]
    properties = joined(", ", dict.fromkeys(_WORDS[name] for name in names))
    text = Message(
        "{names} is rare because of its {ways}; the move frees capacity for {pods}",
        names=node_names(board, moved), ways=properties, pods=format_pods(pods, NAMED),
    )  # fmt: skip
    return board.to_move(moved, text, pods)


def _unplaced_message(stuck: Sequence[Failure]) -> Message:
    pod, message = stuck[0].pod.key, stuck[0].nearest.message
    if len(stuck) == 1:
        return Message("{pod} still does not fit: {detail}", pod=pod, detail=message)
    return Message("{pod} and {n} more pods still do not fit: {detail}", pod=pod, n=len(stuck) - 1, detail=message)


def _rare_demands(board: Board, pods: Iterable[PodSpec]) -> list[RareDemand]:
    """Return one pod for each shape, with the nodes on which it could run in an empty cluster."""
    found: dict[Shape, RareDemand] = {}
    for pod in pods:
        if pod.shape not in found and pod.ready:
            scheduler = board.scheduler_of(pod)
            evaluation, _ = scheduler.evaluator.evaluate(board.state.compile(pod))
            can_run = np.zeros(len(board.state.reports), np.bool_) if evaluation.row_refusal else evaluation.static_mask
            found[pod.shape] = RareDemand(pod.key, pod.shape, can_run.copy())
    return list(found.values())


_WORDS = {"cards": Message("GPUs"), "isa": Message("instruction set"), "size": Message("size")}
