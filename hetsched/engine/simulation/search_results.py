"""Results of the searches for rebalancing moves, and the texts that they share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hetsched.contracts.api.advice import AdviceVerdict, Move, Nearest
from hetsched.contracts.api.decision import Placement
from hetsched.contracts.message import Message, joined

from .moves import AppliedMove, Board

NAMED = 3  # maximum number of pods that a text names
NO_PLAN = "no useful plan: {detail}"
ROOM = "after {moves}, there is enough capacity for {pods} on {names}"


class SearchResult(msgspec.Struct):
    """Result of a search; `moves` are applied to the board and reported in this order."""

    verdict: AdviceVerdict
    summary: Message
    moves: list[Move]
    places: list[Placement] = []
    nearest: Nearest | None = None
    at_least: int = 0
    fewest: bool = False


def move_count(moves: Sequence[object]) -> Message:
    return Message("1 move") if len(moves) == 1 else Message("{n} moves", n=len(moves))


def node_names(board: Board, moved: AppliedMove) -> Message:
    names = board.state.columns.names
    return joined(", ", dict.fromkeys(names[placed.row] for placed in moved.unit))


def place_names(places: Sequence[Placement]) -> Message:
    return joined(", ", dict.fromkeys(place.node for place in places))


def four_digits(value: float) -> str:
    return f"{value:.4f}"
