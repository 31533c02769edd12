"""Search for the fewest moves that make room for pods that fit nowhere; `minimal_moves` proves the number minimal."""

from __future__ import annotations

from hetsched.contracts.api.advice import AdviceVerdict, Move, Nearest, Question
from hetsched.contracts.message import Message, format_pods, joined
from hetsched.engine.explain.diagnosis import diagnose

from .movable_pods import Units
from .moves import AppliedMove, Board
from .room_search import RoomSearch, groups_of
from .search_results import NAMED, ROOM, SearchResult, move_count, node_names, place_names
from .what_if import placement


def make_room(board: Board, units: Units, question: Question) -> SearchResult:
    pods = list(board.scheduler.policy.queue(question.pods, board.state))
    wrong = next((pod for pod in pods if not pod.ready), None)
    if wrong is not None:
        text = diagnose(board.scheduler_of(wrong), wrong).summary
        return SearchResult(AdviceVerdict.NONE, text, [], nearest=Nearest("", text))
    search = RoomSearch(board, question)
    for group in groups_of(pods):
        failure = search.make_room(group, units.on_row)
        if failure is not None:
            text = Message(
                "no useful plan: {pod} does not fit even after {n} moves: {detail}",
                pod=failure.pod.key, n=question.most_moves, detail=failure.nearest.message,
            )  # fmt: skip
            search.undo_all()
            return SearchResult(AdviceVerdict.NONE, text, [], nearest=failure.nearest, at_least=search.at_least)
    search.drop_redundant()
    places = [placement(outcome, board.state) for outcome in search.placed]
    moves = [_room_move(board, search, moved) for moved in search.moves]
    if not moves:
        shown = joined(", ", [Message("{pod} on {node}", pod=place.pod, node=place.node) for place in places[:3]])
        text = Message("there is already enough capacity: {names}", names=shown)
        return SearchResult(AdviceVerdict.NOTHING, text, [], places, fewest=True)
    asked = (
        format_pods([question.pods[0].key]) if len(question.pods) == 1 else Message("{n} pods", n=len(question.pods))
    )
    text = Message(ROOM, moves=move_count(moves), pods=asked, names=place_names(places))
    return SearchResult(AdviceVerdict.PLAN, text, moves, places, at_least=search.at_least, fewest=search.fewest)


def _room_move(board: Board, search: RoomSearch, moved: AppliedMove) -> Move:
    pods = search.pods_enabled_by(moved)
    text = Message(
        "frees capacity for {pods} on {names}", pods=format_pods(pods, NAMED), names=node_names(board, moved)
    )
    return board.to_move(moved, text, pods)
