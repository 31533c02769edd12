"""Outcomes of extension points: a small closed set, the same type wherever something is refused."""

from __future__ import annotations

import enum

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """Why something was refused.

    `unknown`: the node might do, but nobody stated the fact. `resolvable`: removing other pods could help.
    """

    code: str
    message: str
    missing: tuple[str, ...] = ()
    field: str | None = None
    unknown: bool = False
    resolvable: bool = False


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
    """Hold the placement until someone allows it, at the latest `until_seconds` on the caller's clock."""

    until_seconds: float


class Eviction(msgspec.Struct, frozen=True):
    """Pods (keys) that must leave `node` so that the refused pod fits there."""

    node: str
    victims: tuple[str, ...]
