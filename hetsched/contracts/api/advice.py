"""Advice: the fewest moves of running pods that reach a goal, with gain and cost, or the reason why no moves reach it.

The camelCase JSON is the same for pages, REST and command line; fields may be added but not renamed. A move consists of
one pod or all members of a gang. Moves are executed one after the other, in the listed order; each was evaluated on the
result of the earlier moves. `token` identifies the question and the moves: the same token means the same plan.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from hetsched.contracts.documents import to_plain

from ..message import Message
from ..objects.allocation import CardGrant
from ..objects.workload import PodSpec
from .decision import Balance, Placement, PolicyRef, ZonePlacement


class Goal(enum.StrEnum):
    """Goal of the moves: balance the load, make room for pods that do not fit, or free rare nodes."""

    BALANCE = "balance"
    ROOM = "room"
    RARE = "rare"


class Question(msgspec.Struct, frozen=True):
    """Request for advice.

    `target` is the balance to reach (0-1). `pods` are the pods to make room for; if empty, room is made for the pending
    pods. At most `most_moves` moves are proposed, and at most `most_tries` moves are evaluated.
    """

    goal: Goal
    pods: tuple[PodSpec, ...] = ()
    target: float = 0.95
    most_moves: int = 10
    most_tries: int = 2000


class AdviceVerdict(enum.StrEnum):
    """Verdict on a request for advice; `partly` means that the moves improve the cluster but do not reach the goal."""

    PLAN = "plan"
    PARTLY = "partly"
    NOTHING = "nothing-to-do"
    NONE = "no-plan"


class BudgetLeft(msgspec.Struct, frozen=True, rename="camel"):
    """Number of pods that a disruption budget allows to be evicted in addition to the pods of this move."""

    budget: str
    left: int


def _named(field: str) -> str:
    """Return a field's name in JSON. A trailing underscore, which avoids the Python keyword `from`, is removed."""
    first, *more = field.strip("_").split("_")
    return first + "".join(word.capitalize() for word in more)


class MovedPod(msgspec.Struct, frozen=True, rename=_named):
    """Pod that restarts on another node, with its allocation on that node.

    `comesBack` is false if no controller recreates the pod. `exclusiveCpus` is true if the pod has exclusive CPUs,
    whose caches are cold after the move. `startedAt` is empty and `ageSeconds` null if the start time is unknown.
    """

    pod: str
    uid: str
    from_: str
    to: str
    zones: tuple[ZonePlacement, ...]
    gpus: tuple[CardGrant, ...]
    priority: int
    controller: str
    comes_back: bool
    exclusive_cpus: bool
    started_at: str
    age_seconds: int | None


class Move(msgspec.Struct, frozen=True, rename="camel"):
    """One move of a plan; `frees` contains the resources freed on the source nodes, as quantities.

    `makesRoomFor` lists the keys of pending pods that are placed because of this move.
    """

    pods: tuple[MovedPod, ...]
    why: Message
    balance: Balance
    frees: dict[str, str]
    budgets: tuple[BudgetLeft, ...]
    makes_room_for: tuple[str, ...] = ()


class Stays(msgspec.Struct, frozen=True, rename="camel"):
    """Reason why the search does not move some pods; `pods` is their number and `example` the first of them by name."""

    code: str
    message: Message
    pods: int
    example: str


class Cost(msgspec.Struct, frozen=True, rename="camel"):
    """Cost of all moves together."""

    restarts: int
    not_coming_back: int
    exclusive: int
    lost_seconds: int


class Search(msgspec.Struct, frozen=True, rename="camel"):
    """Extent of the search for a plan: the number of moves tried, the limits, and a lower bound on the moves of a plan.

    No plan has fewer than `atLeast` moves. `fewest` means that the plan found has exactly `atLeast` moves.
    """

    tried: int
    most_tries: int
    most_moves: int
    at_least: int
    fewest: bool


class Nearest(msgspec.Struct, frozen=True, rename="camel"):
    """Node that comes closest to the goal if no plan exists, and the obstacle on that node."""

    node: str
    message: Message
    pods: tuple[str, ...] = ()


class Advice(msgspec.Struct, frozen=True, rename="camel"):
    """Complete advice; `places` contains the placements of the pods for which the moves make room."""

    goal: Goal
    verdict: AdviceVerdict
    summary: Message
    policy: PolicyRef
    evaluated_at: str
    snapshot: str
    token: str
    balance: Balance
    moves: tuple[Move, ...] = ()
    cost: Cost = Cost(0, 0, 0, 0)
    places: tuple[Placement, ...] = ()
    stays: tuple[Stays, ...] = ()
    search: Search = Search(0, 0, 0, 0, False)
    nearest: Nearest | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 for a plan or if there is nothing to do, 1 for a partial plan, 10 for no plan."""
        return {"plan": 0, "nothing-to-do": 0, "partly": 1, "no-plan": 10}[self.verdict.value]

    def document(self) -> dict[str, Any]:
        """Return the advice as a JSON document of dicts, lists and scalars."""
        plain: dict[str, Any] = to_plain(self)
        return plain
