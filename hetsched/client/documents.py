"""The answers of a server, typed.

Rule: an answer has the fields that are named here and may have more: a newer server adds some. The whole document, as
the server sent it, is kept beside them in `document`. Names are those of REST in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hetsched.contracts.allocation import Allocation, CardGrant, IsaGrant, ZoneGrant
from hetsched.contracts.decision import (
    Evicted,
    ExpectedUse,
    NearestFit,
    NodeOutcome,
    PolicyRef,
    Reason,
    Tipping,
    Verdict,
)
from hetsched.contracts.errors import InputError
from hetsched.contracts.waits import WaitsFor

# States of a pod that was looked at and found no node.
REFUSED: frozenset[str] = frozenset({"not-now", "never-fits", "misconfigured"})


class Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of what stands inside an answer."""


class Answer(Part, frozen=True, kw_only=True):
    """Base of an answer; `document` is all of it as the server sent it."""

    document: dict[str, Any] = {}


class PodState(Part, frozen=True):
    pod: str
    state: str


class Accepted(Answer, frozen=True):
    """The answer to a submission; `replayed` says that the same key and manifest had been submitted before."""

    id: str
    state: str
    pods: tuple[PodState, ...]
    replayed: bool = False


class Span(Part, frozen=True):
    """A state and how long it lasted; `seconds` is None while it lasts."""

    state: str
    since: datetime
    seconds: float | None


class PodRow(Part, frozen=True):
    """One pod of a workload and what it holds; a refused one waits for something, since it was tried last."""

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


class ObjectRow(Part, frozen=True):
    """One object that a submission brings to a live cluster, and how far it is."""

    kind: str
    namespace: str
    name: str
    state: str
    message: str


class WorkloadRow(Answer, frozen=True):
    """A workload in a list."""

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
    """A workload with its first pods; `pods_next` is where the others are."""

    callback_url: str = ""
    states: tuple[Span, ...] = ()
    objects: tuple[ObjectRow, ...] = ()
    pods: tuple[PodRow, ...] = ()
    pods_next: str | None = None


class DecisionRow(Answer, frozen=True):
    """One line of the ledger."""

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
    """A decision with everything it rests on; `pod_id` is what `why` takes."""

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
    """A time in which one reason held; `until` is None while it lasts. A placed pod waits for nothing."""

    code: str
    plugin: str
    message: str
    pending: bool
    since: datetime
    until: datetime | None
    seconds: float
    decision: int | None


class Difference(Part, frozen=True):
    """One reason in two attempts: on how many nodes it stood in each."""

    plugin: str
    code: str
    message: str
    before: int
    now: int


class Changed(Part, frozen=True):
    """What is different between the latest attempt and the one before it."""

    decision: int
    verdicts: tuple[str, str]
    policies: tuple[str, str]
    nodes: tuple[int | None, int | None]
    revisions: int
    inventory: bool
    reasons: tuple[Difference, ...]


class NextStep(Part, frozen=True):
    """A change with which a pod would be placed now, and what would then be submitted."""

    fit: NearestFit
    manifest: dict[str, Any]


class Outlook(Part, frozen=True):
    """How it stands now for a pod that waits; `blockers` are who would have to be gone, a node each."""

    evaluated_at: datetime
    verdict: str
    summary: str
    reasons: tuple[Reason, ...]
    next_steps: tuple[NextStep, ...]
    blockers: tuple[tuple[Evicted, ...], ...]


class Member(Part, frozen=True):
    """One member of a gang."""

    id: int
    pod: str
    state: str
    decision: int | None


class Gang(Part, frozen=True):
    """A pod's gang: how many members have a place, how many must, and what broke it first, in words."""

    name: str
    placed: int
    needed: int
    broken_by: str | None
    members: tuple[Member, ...]


class PodWhy(Answer, frozen=True):
    """Why a pod is where it is, over time; `outlook` is None unless it was asked for and the pod waits."""

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
    gang: Gang | None = None
    outlook: Outlook | None = None


class NodeRow(Answer, frozen=True):
    """A node in a list; `cpu`, `memory` and `gpu` are ratios 0-1 of requested to allocatable, None without any."""

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
    """A cluster and its totals; `cpu`, `memory` and `gpu` are ratios 0-1 of requested to capacity."""

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
    """A pod that waits for a decision; `position` 1 is decided next, None stands for a pod that is not due."""

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


class ItemProblem(Part, frozen=True):
    """What is wrong with one item of a batch."""

    index: int
    status: int
    code: str
    detail: str
    place: str = ""
    hint: str = ""


class ItemAnswer(Part, frozen=True):
    """What became of one item of a batch: its workload, or the problem."""

    index: int
    status: int
    key: str = ""
    id: str = ""
    state: str = ""
    pods: tuple[PodState, ...] = ()
    replayed: bool = False
    problem: ItemProblem | None = None


class BatchAnswer(Answer, frozen=True):
    """What became of every item, in the order given."""

    accepted: int
    refused: int
    items: tuple[ItemAnswer, ...]


class HeldPod(Part, frozen=True):
    """What is held for one pod; not `held` any more: a pod has it, or the hold ended."""

    pod: str
    node: str
    held: bool
    cpus: tuple[str, ...] = ()
    gpus: tuple[CardGrant, ...] = ()


class HoldRow(Answer, frozen=True):
    """Room that is kept for pods that do not exist yet: held, claimed, used, expired, cancelled or lost."""

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
    """A hold and what it keeps of which nodes."""

    policy_version: int
    pods: tuple[HeldPod, ...]


class DeliveryRow(Answer, frozen=True):
    """What was told to a webhook or to a submission's address: due, delivered or dead; the latest attempt's answer."""

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
    """Return an answer as its type.

    Raises: InputError `AnswerUnreadable`: what answered is no hetsched, or one of another contract.
    """
    try:
        return msgspec.convert({**document, "document": document}, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError("AnswerUnreadable", f"the server's answer is not as agreed: {error}") from None
