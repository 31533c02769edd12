"""Outcomes of extension points: a small closed set, the same type wherever something is refused."""

from __future__ import annotations

import enum

import msgspec

from hetsched.contracts.decision import Reason, Verdict


class Refusal(msgspec.Struct, frozen=True):
    """Why something was refused.

    `unknown`: the node might do, but nobody stated the fact. `resolvable`: removing other pods could help. `verdict`
    stands where the answer is about the pod as a whole, whatever the nodes say; `because` are another pod's reasons
    that led to it.
    """

    code: str
    message: str
    missing: tuple[str, ...] = ()
    field: str | None = None
    unknown: bool = False
    resolvable: bool = False
    verdict: Verdict | None = None
    because: tuple[Reason, ...] = ()


class Skip(enum.Enum):
    SKIP = "skip"


class Alone(enum.Enum):
    ALONE = "alone"


class Allow(enum.Enum):
    ALLOW = "allow"


SKIP = Skip.SKIP
ALONE = Alone.ALONE
ALLOW = Allow.ALLOW


class Wait(msgspec.Struct, frozen=True):
    """Hold the placement until someone allows it, at the latest `until_seconds` on the caller's clock.

    `late` is the answer once that time is over.
    """

    until_seconds: float
    late: Refusal | None = None


class Spared(msgspec.Struct, frozen=True):
    """Booked pods (keys) that nobody evicts for the time being; `foreign`: nor those that other schedulers placed."""

    keys: frozenset[str] = frozenset()
    foreign: bool = False


class Eviction(msgspec.Struct, frozen=True):
    """Pods (keys) that must leave so that the refused pod fits on `node`.

    `budgets` names, for each of them, the disruption budget that its leaving breaks, empty where it breaks none.
    """

    node: str
    victims: tuple[str, ...]
    budgets: tuple[str, ...] = ()
