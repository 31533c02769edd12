"""Typed responses of a server.

A response of a newer server may have more fields than these types. `document` contains the whole document as the server
sent it. Field names are those of the REST API in snake case.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hetsched.contracts.api.decision import (
    Evicted,
    ExpectedUse,
    NearestFit,
    NodeOutcome,
    PolicyRef,
    Reason,
    Tipping,
    Verdict,
)
from hetsched.contracts.api.explanation import Changed, Gang, NextStep
from hetsched.contracts.api.workload import HeldPod, ItemAnswer, ObjectRow, PodState
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_parts
from hetsched.contracts.objects.allocation import Allocation, CardGrant, IsaGrant, ZoneGrant
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.contracts.waits import WaitsFor

# States of a pod that was tried but not placed.
REFUSED: frozenset[str] = frozenset({"not-now", "never-fits", "misconfigured"})


class Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base class of responses and of the objects that they contain."""


class Answer(Part, frozen=True, kw_only=True):
    """Base class of responses; `document` is the whole document as the server sent it."""

    document: dict[str, Any] = {}


class Accepted(Answer, frozen=True):
    """Response to a submission; `replayed` means that the same key and manifest were already submitted before."""

    id: str
    state: str
    pods: tuple[PodState, ...]
    replayed: bool = False
    warnings: tuple[ManifestWarning, ...] = ()


class Span(Part, frozen=True):
    """Period that a workload spent in one state; `seconds` is None for the current state."""

    state: str
    since: datetime
    seconds: float | None


class PodRow(Part, frozen=True):
    """Pod of a workload with its resources; `waits_for` and `tried_at` refer to the last attempt."""

    pod: str
    state: str
    id: int | None = None
    node: str | None = None
    policy: str | None = None
    decision: int | None = None
    message: str | None = None
    waits_for: str | None = None
    tried_at: datetime | None = None
    isa: IsaGrant | None = None
    gpus: tuple[CardGrant, ...] | None = None
    zones: tuple[ZoneGrant, ...] | None = None
    decided_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class WorkloadRow(Answer, frozen=True):
    """Workload in a list."""

    id: str
    cluster: str
    namespace: str
    name: str
    state: str
    policy: str
    priority: int
    pod_count: int
    submitted_by: str
    created_at: datetime
    decided_at: datetime | None = None
    finished_at: datetime | None = None


class Workload(WorkloadRow, frozen=True):
    """Workload with its first pods; `pods_next` is the URL of the other pods."""

    callback_url: str = ""
    states: tuple[Span, ...] = ()
    objects: tuple[ObjectRow, ...] = ()
    pods: tuple[PodRow, ...] = ()
    pods_next: str | None = None


class DecisionRow(Answer, frozen=True):
    """Decision in a list."""

    id: int
    cluster: str
    workload: str | None
    pod: str
    verdict: Verdict
    node: str | None
    policy: PolicyRef
    score: float | None
    summary: str
    created_at: datetime


class Decision(DecisionRow, frozen=True):
    """Decision with all its details; `pod_id` is the argument of `why`."""

    pod_id: int | None = None
    policy_rule: str = ""
    reasons: tuple[Reason, ...] = ()
    nearest_fit: tuple[NearestFit, ...] | None = None
    tipping: Tipping | None = None
    expected_use: ExpectedUse | None = None
    nodes: tuple[NodeOutcome, ...] = ()
    evictions: tuple[Evicted, ...] = ()
    nominated_node: str | None = None
    waits_for: tuple[WaitsFor, ...] = ()
    tried_at: datetime | None = None
    allocation: Allocation | None = None
    snapshot: str = ""


class ReasonSpan(Part, frozen=True):
    """Period in which one reason applied to a pod; `until` is None for the current period."""

    code: str
    plugin: str
    message: str
    pending: bool
    since: datetime
    until: datetime | None
    seconds: float
    decision: int | None


class Outlook(Part, frozen=True):
    """Current outlook for a pending pod; `blockers` contains the pods that would have to be evicted, by node."""

    evaluated_at: datetime
    verdict: str
    summary: str
    reasons: tuple[Reason, ...]
    next_steps: tuple[NextStep, ...]
    blockers: tuple[tuple[Evicted, ...], ...]


class PreemptedBy(Part, frozen=True):
    """Pod that preempted another pod on a node; `pod_id` and `decision` are None once their rows are deleted."""

    victim: str
    pod: str
    node: str
    at: datetime
    pod_id: int | None = None
    decision: int | None = None


class PodWhy(Answer, frozen=True):
    """Reasons for a pod's state over time; `outlook` is None unless it was requested and the pod is pending."""

    id: int
    pod: str
    cluster: str
    workload: str | None
    state: str
    node: str | None
    decision: int | None
    summary: str
    message: str
    pending_seconds: float
    spans: tuple[ReasonSpan, ...]
    changed: Changed | None = None
    preempted_by: tuple[PreemptedBy, ...] = ()
    gang: Gang | None = None
    outlook: Outlook | None = None


class NodeRow(Answer, frozen=True):
    """Node in a list; `cpu`, `memory` and `gpu` are ratios 0-1 of requested to allocatable (or None)."""

    name: str
    family: str
    isa: str | None
    pool: str
    ready: bool
    cordoned: bool
    cpu: float | None
    memory: float | None
    gpu: float | None
    cards: int
    pods: int


class ClusterRow(Answer, frozen=True):
    """Cluster with its totals; `cpu`, `memory` and `gpu` are ratios 0-1 of requested to capacity."""

    name: str
    kind: str
    policy: str
    node_count: int
    ready_count: int
    card_count: int
    cpu: float | None
    memory: float | None
    gpu: float | None
    capacity: dict[str, str]
    requested: dict[str, str]
    created_at: datetime


class QueuedPod(Answer, frozen=True):
    """Pending pod; the pod with `position` 1 is scheduled next, and None means that the pod cannot be tried now."""

    position: int | None
    standing: str
    pod: str
    workload: str | None
    policy: str
    priority: int
    gang: str | None
    state: str
    attempts: int
    waits_for: str | None = None
    tried_at: datetime | None = None
    again_at: datetime | None = None
    created_at: datetime | None = None


class BatchAnswer(Answer, frozen=True):
    """Results of all items, in the given order."""

    accepted: int
    refused: int
    items: tuple[ItemAnswer, ...]


class HoldRow(Answer, frozen=True):
    """Hold in a list; `state` is held, claimed, used, expired, cancelled or lost."""

    id: str
    cluster: str
    namespace: str
    state: str
    policy: str
    pod_count: int
    held_by: str
    note: str
    workload: str | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    end_reason: str = ""


class Hold(HoldRow, frozen=True, kw_only=True):
    """Hold with its reserved capacity by node."""

    policy_version: int
    pods: tuple[HeldPod, ...]


class DeliveryRow(Answer, frozen=True):
    """Delivery to a webhook or a callback URL; `state` is due, delivered or dead.

    `status`, `code` and `message` describe the latest attempt.
    """

    id: str
    event: str
    webhook: str | None
    workload: str | None
    url: str
    state: str
    attempts: int
    created_at: datetime
    next_at: datetime | None = None
    ended_at: datetime | None = None
    status: int | None = None
    code: str = ""
    message: str = ""


Read = TypeVar("Read", bound=Answer)


def read(document: Mapping[str, Any], kind: type[Read]) -> Read:
    """Convert a response to a typed document.

    Raises: InputError `AnswerUnreadable` if the document is not that of a hetsched server of a compatible version.
    """
    try:
        return msgspec.convert({**document, "document": document}, kind, dec_hook=from_parts)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError("AnswerUnreadable", f"the server's response does not match the API: {error}") from None
