"""Recommended moves of running pods: the fewest that balance the cluster, make room, or free rare nodes.

Each goal has its own search: `balance_moves`, `room_moves` and `rare_node_moves`. The module `moves` tries each move,
and its target is the node that the policy selects in the trial. This module only proposes moves. An operator confirms a
plan, and each step is checked again before it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from hetsched.contracts.api.advice import Advice, Goal, MovedPod, Question, Search
from hetsched.contracts.api.decision import Balance, PolicyRef
from hetsched.contracts.documents import encode
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import Policy

from .balance_moves import balance_nodes
from .movable_pods import units_of
from .moves import Board, cost_of
from .rare_node_moves import free_rare_nodes
from .room_moves import make_room

_DIGITS = 6
_SEARCHES = {Goal.BALANCE: balance_nodes, Goal.ROOM: make_room, Goal.RARE: free_rare_nodes}


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

    `state` is unchanged unless the caller sets `consume`. `own` maps pods (keys) to the policies that decide for them;
    `policy` decides for all other pods.

    `kept` maps pods (keys) that must remain on their node to a code of `movable_pods.MESSAGES`. With `returns`, evicted
    pods without a controller are recreated. `evaluated_at` is RFC 3339.
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
