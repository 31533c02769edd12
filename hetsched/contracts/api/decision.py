"""Result of a placement request: one document for the command line, REST and the stored decision.

Field names and verdicts are a public contract (camelCase JSON): fields may be added but not renamed. Every reason has a
stable code, the plugin that reported it and the number of nodes that it applies to.
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
    """Verdict on one pod or on a whole request; `exit_code` is the exit code that a command returns for it."""

    PLACED = "placed"
    NOT_NOW = "not-now"
    NEVER_FITS = "never-fits"
    MISCONFIGURED = "misconfigured"

    @property
    def exit_code(self) -> int:
        return {"placed": 0, "not-now": 10, "never-fits": 11, "misconfigured": 12}[self.value]

    @staticmethod
    def worst(verdicts: list[Verdict]) -> Verdict:
        """Return the worst of several verdicts, or placed for an empty list."""
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
    """Expected actual usage of a pod, as quantities, and the basis of the estimate."""

    basis: str
    amounts: dict[str, str]


class Placement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One placed pod; `score` is the weighted total of the scores divided by the sum of the weights.

    `pairings` names other pods that share cores with its pinned CPUs, if any. `alignments` states, for each of its
    resource claims, whether the devices are in the NUMA zones of its CPUs. `expected_use` is omitted if only the
    requests are known.
    """

    pod: str
    node: str
    isa: IsaGrant
    zones: tuple[ZonePlacement, ...]
    gpus: tuple[CardGrant, ...]
    score: float
    pairings: tuple[Message, ...] = ()
    alignments: tuple[Message, ...] = ()
    expected_use: ExpectedUse | None = None


# Plugin names in the reasons and waits that the scheduler itself, not a plugin, reports for gangs and preemption. They
# are part of the public contract and equal the names of the built-in plugins.
GANG_SOURCE, PREEMPTION_SOURCE = "gang", "preemption"
PREEMPTION_PENDING = "PreemptionPending"  # code of the reason of a nominated pod that waits for its victims


class Reason(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Reason why one plugin refused `nodes` nodes; `missing` lists what the nodes lack.

    `field` names the invalid field if the pod itself is invalid. A plugin may refuse one node for several reasons, so
    the sum of the counts may exceed the number of nodes. `before` and `after` are the numbers of nodes before and after
    the plugin. In stored decisions, `candidates` lists the first of the refused nodes that would accept the pod if they
    were empty. On these nodes the reason may disappear when pods end.
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
    """Return (plugin, number of nodes left after it) in filter order; the first entry is ("", number of all nodes)."""
    steps: dict[str, int] = {}
    for reason in reasons:
        if not steps:
            steps[""] = reason.before
        steps[reason.plugin] = reason.after
    return list(steps.items()) if steps.get("") else []


class FieldChange(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Field of a request with its values before and after; an empty value means that the field is not set."""

    field: str
    from_: str
    to: str


class NearestFit(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """The smallest change to the request that would make the pod fit, verified with the real filters.

    `count` nodes would then fit, and `nodes` lists the first of these by name. `also` is the second field if two fields
    change.
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
    """One row of the node x plugin matrix. `refused` is the first reason for refusal; rank 1 is the selected node."""

    name: str
    pod: str
    feasible: bool
    refused: Reason | None
    scores: tuple[PluginScore, ...]
    total: float | None
    rank: int | None


class Displaced(msgspec.Struct, frozen=True, rename={"from_": "from", "blocked_by": "blockedBy"}):
    """Running pod that would have to move, and its target; `message` is the reason if no node fits it."""

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
    """Balance of a cluster: mean over Ready nodes of 1 - population variance of the node's utilisations.

    `stale_samples` lists the nodes whose measured usage is too old; their requests are used instead.
    """

    before: float
    after: float
    stale_samples: tuple[str, ...] = ()


class TippingPoint(msgspec.Struct, frozen=True, rename="camel"):
    """Weight of one plugin from which another node would be selected.

    At the weight `at`, which is above or below (`side`) the current `weight`, the selection changes to `node`.
    """

    plugin: str
    weight: float
    at: float
    side: Literal["above", "below"]
    node: str


class Tipping(msgspec.Struct, frozen=True, rename="camel"):
    """Score margin of a placed pod's node over the runner-up, and weights that would select another node."""

    pod: str
    node: str
    runner_up: str | None
    margin: float | None
    points: tuple[TippingPoint, ...]


class DoubtfulFact(msgspec.Struct, frozen=True, rename="camel"):
    """Fact that the scheduler used although the node's kubelet contradicted it, and the reason for the conflict."""

    node: str
    fact: str
    since: str
    reason: str


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """Plan that can be submitted unchanged: the token to include in the submission, and its expiry."""

    token: str
    expires_at: str


class WhatIfAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Result of a what-if request.

    Optional fields are null and omitted from the JSON. `nodes` and `tipping` are set if an explanation was requested.
    `doubts` is set if a node of a placement has facts in conflict. `replaced` lists the running pods that were assumed
    to be deleted, if there are any. `plan` is set if a plan was requested and all pods are placed without an eviction.
    `warnings` is set if the manifest probably contains a misspelling.
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
        """Return the result as a JSON document of dicts, lists and scalars."""
        built: dict[str, Any] = to_plain(self)
        return built
