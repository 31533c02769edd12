"""Status values of the extension points: a small closed set, with one type for every refusal."""

from __future__ import annotations

import enum

import msgspec

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message


class Refusal(msgspec.Struct, frozen=True):
    """Reason why a plugin refuses a pod or a node.

    `unknown` is true if the required fact is unknown, so that the node might fit; `resolvable` is true if preemption
    could help. `verdict` is set if the refusal concerns the pod as a whole, independent of nodes. `because` holds the
    reasons of another pod that caused the refusal.
    """

    code: str
    message: Message
    missing: tuple[str, ...] = ()
    field: str | None = None
    unknown: bool = False
    resolvable: bool = False
    verdict: Verdict | None = None
    because: tuple[Reason, ...] = ()


class Skip(enum.Enum):
    SKIP = "skip"


class NoScore(enum.Enum):
    ALONE = "alone"


class Allow(enum.Enum):
    ALLOW = "allow"


SKIP = Skip.SKIP
ALONE = NoScore.ALONE
ALLOW = Allow.ALLOW


class Wait(msgspec.Struct, frozen=True):
    """Permit result: the placement waits for a later approval, at most until `until_seconds` on the caller's clock.

    `late` is the refusal to report after a timeout, if any.
    """

    until_seconds: float
    late: Refusal | None = None


class ProtectedPods(msgspec.Struct, frozen=True):
    """Keys of placed pods that may not be evicted now; if `foreign`, pods of other schedulers may not be evicted."""

    keys: frozenset[str] = frozenset()
    foreign: bool = False


class Eviction(msgspec.Struct, frozen=True):
    """Victims (pod keys) to evict so that the refused pod fits on `node`.

    Without victims, the pod fits a node as soon as its gang may preempt for its other members; `node` is then "".
    `budgets` names, for each victim, the disruption budget that its eviction violates, "" if none.
    """

    node: str
    victims: tuple[str, ...]
    budgets: tuple[str, ...] = ()
