"""Result of a placement request: one document for the command line, REST and the decision ledger.

Field names and verdicts are the public contract (camelCase JSON); fields may be added, never renamed. Every reason
carries a stable code, the plugin that gave it and the number of nodes it covers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from hetsched.contracts.documents import to_plain

from ..message import Message
from ..objects.allocation import CardGrant, IsaGrant, ZoneGrant
from ..objects.warnings import ManifestWarning


class Verdict(enum.StrEnum):
    """Verdict on one pod, or on a whole request; `exit_code` is the exit code of a command."""

    PLACED = "placed"
    NOT_NOW = "not-now"
    NEVER_FITS = "never-fits"
    MISCONFIGURED = "misconfigured"

    @property
    def exit_code(self) -> int:
        return {"placed": 0, "not-now": 10, "never-fits": 11, "misconfigured": 12}[self.value]

    @staticmethod
    def worst(verdicts: list[Verdict]) -> Verdict:
        """Return the verdict of several pods together; an empty list counts as placed."""
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
    """Expected real use of a pod, as quantities, and its basis."""

    basis: str
    amounts: dict[str, str]


class Placement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One placed pod; `score` is the weighted total divided by the sum of score weights.

    `pairings` names other pods on the cores of its pinned CPUs, if any. `expected_use` is left out if only the requests
    are known.
    """

    pod: str
    node: str
    isa: IsaGrant
    zones: tuple[ZonePlacement, ...]
    gpus: tuple[CardGrant, ...]
    score: float
    pairings: tuple[Message, ...] = ()
    expected_use: ExpectedUse | None = None


# Sources of the reasons and waits that the scheduler itself gives about gangs and preemption. They are public
# and equal the names of the built-in plugins for these.
GANG_SOURCE, PREEMPTION_SOURCE = "gang", "preemption"


class Reason(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Reason why one plugin refused `nodes` nodes; `missing` names what they lack, `field` the pod's own error.

    A plugin may refuse one node for several reasons, so counts may add up to more nodes than there are; `before` and
    `after` are the numbers of nodes before and after the plugin. In the ledger, `candidates` are the first of these
    nodes that would take the pod when empty: there the condition can be resolved.
    """

    code: str
    plugin: str
    nodes: int
    message: Message
    missing: tuple[str, ...] = ()
    field: str | None = None
    before: int = 0
    after: int = 0
    candidates: tuple[str, ...] = ()


def funnel(reasons: Iterable[Reason]) -> list[tuple[str, int]]:
    """Return (plugin, remaining nodes) in the order of the filters; the first entry has the name "" and all nodes."""
    steps: dict[str, int] = {}
    for reason in reasons:
        if not steps:
            steps[""] = reason.before
        steps[reason.plugin] = reason.after
    return list(steps.items()) if steps.get("") else []


class FieldChange(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """One field of a request and its two values; an empty value means that the field is not set."""

    field: str
    from_: str
    to: str


class NearestFit(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """The smallest change of the request that would make it fit, checked by the real filters.

    `count` nodes would then fit, the first of them by name are `nodes`; `also` is the second field of a change of two.
    """

    change: Message
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
    """One row of the node x plugin matrix; `refused` is the first reason, rank 1 is the winner."""

    name: str
    pod: str
    feasible: bool
    refused: Reason | None
    scores: tuple[PluginScore, ...]
    total: float | None
    rank: int | None


class Displaced(msgspec.Struct, frozen=True, rename={"from_": "from", "blocked_by": "blockedBy"}):
    """Running pod that would have to move, and its target; `message` is the reason why it finds no node."""

    pod: str
    from_: str
    to: str | None
    verdict: Verdict
    blocked_by: str | None = None
    message: Message | msgspec.UnsetType = msgspec.UNSET


class Evicted(msgspec.Struct, frozen=True, rename="camel"):
    pod: str
    node: str
    priority: int
    pdb: str | None = None


class Balance(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Mean over Ready nodes of 1 - population variance of the node's utilisations.

    `stale_samples` are nodes whose measured use is too old, so that requests are used instead.
    """

    before: float
    after: float
    stale_samples: tuple[str, ...] = ()


class TippingPoint(msgspec.Struct, frozen=True, rename="camel"):
    """The weight `at` which `node` would win instead, above or below the present weight of one plugin."""

    plugin: str
    weight: float
    at: float
    side: Literal["above", "below"]
    node: str


class Tipping(msgspec.Struct, frozen=True, rename="camel"):
    """Margin of a placed pod's node over the runner-up, and the weights at which another node would have won."""

    pod: str
    node: str
    runner_up: str | None
    margin: float | None
    points: tuple[TippingPoint, ...]


class DoubtfulFact(msgspec.Struct, frozen=True, rename="camel"):
    """Fact of a node that is used here although its kubelet contradicted it, with the reason of the contradiction."""

    node: str
    fact: str
    since: str
    reason: str


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """Plan that can be submitted unchanged: the token to name in the submission, and its expiry."""

    token: str
    expires_at: str


class WhatIfAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Complete answer; `nodes` and `tipping` are null and not in the JSON unless an explanation was requested.

    These fields are omitted as well: `doubts`, unless a node of a placement has facts in conflict; `replaced`, running
    pods that were assumed deleted, unless there are any; `plan`, unless one was requested and all pods are placed
    without an eviction; `warnings`, unless the manifest probably contains a misspelling.
    """

    verdict: Verdict
    summary: Message
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
    warnings: tuple[ManifestWarning, ...] | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the contract, as plain values."""
        built: dict[str, Any] = to_plain(self)
        return built
