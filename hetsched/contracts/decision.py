"""The answer to "where should these pods run?": one document for the command line, REST and the ledger.

Rule: field names and verdicts are the public contract (camelCase JSON); add, never rename. Every refusal carries a
stable code, the plugin that gave it and the number of nodes it covers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from .allocation import CardGrant, IsaGrant, ZoneGrant


class Verdict(enum.StrEnum):
    """How one pod, or a whole request, came out; `exit_code` is what a command returns for it."""

    PLACED = "placed"
    NOT_NOW = "not-now"
    NEVER_FITS = "never-fits"
    MISCONFIGURED = "misconfigured"

    @property
    def exit_code(self) -> int:
        return {"placed": 0, "not-now": 10, "never-fits": 11, "misconfigured": 12}[self.value]

    @staticmethod
    def worst(verdicts: list[Verdict]) -> Verdict:
        """Return the verdict that decides for several pods; no pods at all are placed."""
        return max(verdicts, key=lambda verdict: verdict.exit_code, default=Verdict.PLACED)


class PolicyRef(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    version: int


class ZonePlacement(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    cpus: str | None

    @staticmethod
    def of(grant: ZoneGrant) -> ZonePlacement:
        return ZonePlacement(grant.name, grant.cpus)


class ExpectedUse(msgspec.Struct, frozen=True):
    """What a pod is expected to use really, as quantities, and what that rests on."""

    basis: str
    amounts: dict[str, str]


class Placement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One placed pod; `score` is the weighted total divided by the sum of score weights.

    `pairings` says who else runs on the cores of its pinned CPUs, where anyone does. `expected_use` is left out where
    nothing better than the requests is known.
    """

    pod: str
    node: str
    isa: IsaGrant
    zones: tuple[ZonePlacement, ...]
    gpus: tuple[CardGrant, ...]
    score: float
    pairings: tuple[str, ...] = ()
    expected_use: ExpectedUse | None = None


class Reason(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Why `nodes` nodes were refused by one plugin; `missing` names what they lack, `field` the pod's own error.

    A plugin may refuse one node for several reasons, so counts may add up to more nodes than there are; `before` and
    `after` are how many nodes the plugin was given and how many it left.
    """

    code: str
    plugin: str
    nodes: int
    message: str
    missing: tuple[str, ...] = ()
    field: str | None = None
    before: int = 0
    after: int = 0


def funnel(reasons: Iterable[Reason]) -> list[tuple[str, int]]:
    """Return (plugin, nodes left after it) in the order of the filters, all nodes first under the name ""."""
    steps: dict[str, int] = {}
    for reason in reasons:
        if not steps:
            steps[""] = reason.before
        steps[reason.plugin] = reason.after
    return list(steps.items()) if steps.get("") else []


class FieldChange(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """One field of a request and its two values; an empty one is not stated there."""

    field: str
    from_: str
    to: str


class NearestFit(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """The smallest change of the request that would make it fit, checked by the real filters.

    `count` nodes would do, the first of them by name are `nodes`; `also` is the second field of a change of two.
    """

    change: str
    field: str
    from_: str
    to: str
    nodes: tuple[str, ...]
    count: int = 0
    also: FieldChange | None = None


class Unplaced(msgspec.Struct, frozen=True, rename="camel"):
    pod: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    nearest_fit: tuple[NearestFit, ...] = ()


class PluginScore(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    plugin: str
    raw: float
    normalized: float
    weight: float
    weighted: float


class NodeOutcome(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One cell row of the node x plugin matrix; `refused` is the first reason, rank 1 is the winner."""

    name: str
    pod: str
    feasible: bool
    refused: Reason | None
    scores: tuple[PluginScore, ...]
    total: float | None
    rank: int | None


class Displaced(msgspec.Struct, frozen=True, rename={"from_": "from", "blocked_by": "blockedBy"}):
    """A running pod that would have to move, and where it would go."""

    pod: str
    from_: str
    to: str | None
    verdict: Verdict
    blocked_by: str | None = None


class Evicted(msgspec.Struct, frozen=True, rename="camel"):
    pod: str
    node: str
    priority: int
    pdb: str | None = None


class Balance(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Mean over Ready nodes of 1 - population variance of the node's utilisations.

    `stale_samples` are nodes whose measured use is too old to count, so that requests stand for it.
    """

    before: float
    after: float
    stale_samples: tuple[str, ...] = ()


class TippingPoint(msgspec.Struct, frozen=True, rename="camel"):
    """The weight `at` which `node` would win instead, on one side of the present weight of one plugin."""

    plugin: str
    weight: float
    at: float
    side: Literal["above", "below"]
    node: str


class Tipping(msgspec.Struct, frozen=True, rename="camel"):
    """By how much a placed pod's node won, over whom, and at which weights another would have won."""

    pod: str
    node: str
    runner_up: str | None
    margin: float | None
    points: tuple[TippingPoint, ...]


class DoubtfulFact(msgspec.Struct, frozen=True, rename="camel"):
    """A fact of a node that is used here though its kubelet contradicted it, and why that was."""

    node: str
    fact: str
    since: str
    reason: str


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """An answer that can be submitted as it is: what to name in the submission, and until when."""

    token: str
    expires_at: str


class WhatIfAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The whole answer; `nodes` and `tipping` are null and not in the JSON unless an explanation was asked for.

    Nor is `doubts`, unless a node that is placed on has facts in doubt, nor `replaced`, pods that run and were taken to
    be gone, nor `plan`, unless one was asked for and all pods are placed without anybody having to leave.
    """

    verdict: Verdict
    summary: str
    policy: PolicyRef
    evaluated_at: str
    snapshot: str
    placements: tuple[Placement, ...]
    unplaced: tuple[Unplaced, ...]
    nodes: tuple[NodeOutcome, ...] | None = None
    displaced: tuple[Displaced, ...]
    evictions: tuple[Evicted, ...]
    balance: Balance
    tipping: tuple[Tipping, ...] | None = None
    doubts: tuple[DoubtfulFact, ...] | None = None
    replaced: tuple[str, ...] | None = None
    plan: Plan | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the contract, as plain values."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built
