"""Advice: the fewest moves of running pods for a goal, what each gains and costs, or why there are none.

Rule: camelCase JSON, the same by page, REST and command line; add, never rename. A move is a unit: one pod, or all
members of a gang. Moves are to be made one after the other, in this order; each was tried on what the earlier ones
leave. `token` names the question and the moves: the same token means the same plan.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from .allocation import CardGrant
from .decision import Balance, Placement, PolicyRef, ZonePlacement
from .workload import PodSpec


class Goal(enum.StrEnum):
    """What the moves are for: an even cluster, room for pods that do not fit, rare nodes for those who need them."""

    BALANCE = "balance"
    ROOM = "room"
    RARE = "rare"


class Question(msgspec.Struct, frozen=True):
    """What is asked; `target` is the balance to reach, 0-1, `pods` are those to find room for or that wait.

    At most `most_moves` moves are proposed, and `most_tries` are tried to find them.
    """

    goal: Goal
    pods: tuple[PodSpec, ...] = ()
    target: float = 0.95
    most_moves: int = 10
    most_tries: int = 2000


class AdviceVerdict(enum.StrEnum):
    """`partly`: the moves bring it nearer, but not about."""

    PLAN = "plan"
    PARTLY = "partly"
    NOTHING = "nothing-to-do"
    NONE = "no-plan"


class BudgetLeft(msgspec.Struct, frozen=True, rename="camel"):
    """How many more pods a disruption budget lets go while this move is on its way."""

    budget: str
    left: int


def _named(field: str) -> str:
    """Write a field's name as JSON has it; `from` is a word of this language."""
    first, *more = field.strip("_").split("_")
    return first + "".join(word.capitalize() for word in more)


class MovedPod(msgspec.Struct, frozen=True, rename=_named):
    """One pod that restarts elsewhere, with what it is then granted.

    `comesBack` false: nobody makes it again. `exclusiveCpus`: it holds CPUs of its own and warms up anew. `startedAt`
    is empty and `ageSeconds` null where nobody dated it.
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
    """One step; `frees` is what leaves the nodes that its pods leave, as quantities."""

    pods: tuple[MovedPod, ...]
    why: str
    balance: Balance
    frees: dict[str, str]
    budgets: tuple[BudgetLeft, ...]


class Stays(msgspec.Struct, frozen=True, rename="camel"):
    """Why `pods` pods were never considered; `example` is the first of them by name."""

    code: str
    message: str
    pods: int
    example: str


class Cost(msgspec.Struct, frozen=True, rename="camel"):
    """What all moves together cost."""

    restarts: int
    not_coming_back: int
    exclusive: int
    lost_seconds: int


class Search(msgspec.Struct, frozen=True, rename="camel"):
    """How far was looked: no plan has fewer than `atLeast` moves; `fewest` says that this one has just as many."""

    tried: int
    most_tries: int
    most_moves: int
    at_least: int
    fewest: bool


class Nearest(msgspec.Struct, frozen=True, rename="camel"):
    """Where there is no plan: the node that comes nearest, and what is in the way there."""

    node: str
    message: str
    pods: tuple[str, ...] = ()


class Advice(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer; `places` is where the pods come to that room is found for."""

    goal: Goal
    verdict: AdviceVerdict
    summary: str
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
        """Return what a command says: 0 a plan or nothing to do, 1 only a part of the way, 10 none."""
        return {"plan": 0, "nothing-to-do": 0, "partly": 1, "no-plan": 10}[self.verdict.value]

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON document."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
