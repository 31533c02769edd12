"""Why a pod is where it is, or nowhere, beyond what its latest decision says: over time, and as of now.

Rule: the ledger has one decision per time that the answer changed, so the time between two decisions belongs to what
the earlier one says; before the first it belongs to the queue. Of several reasons the one that left no node counts:
that of the last filter, for the most nodes. Next steps and blockers are worked out on a copy of the present state, by
the policy that would decide now, since what once would have helped may not help any more.
Invariants: the seconds of all spans are the time from submission to now, or to the end; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from hetsched.adapters.objects.pod_objects import pod_object
from hetsched.contracts.decision import Evicted, NearestFit, Reason, Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.times import rfc3339
from hetsched.engine.explain.blockers import blockers
from hetsched.engine.explain.diagnosis import Diagnosis, diagnose
from hetsched.engine.explain.nearest_fit import changes
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import IMPLIED, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.placement.lifecycle import FINISHED, HOLDING, QUEUED, State
from hetsched.placement.models import Decision, Pod
from hetsched.placement.snapshot import fork
from hetsched.policies.effective import Chooser, active_specs

MOST_DECISIONS = 500
QUEUED_CODE, PLACED_CODE = "Queued", "Placed"


class ReasonSpan(msgspec.Struct, frozen=True, rename="camel"):
    """A time in which one reason held; `until` is null while it lasts. A placed pod waits for nothing: `pending` no."""

    code: str
    plugin: str
    message: str
    pending: bool
    since: str
    until: str | None
    seconds: float
    decision: int | None


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """One reason in two attempts: on how many nodes it stood in each."""

    plugin: str
    code: str
    message: str
    before: int
    now: int


class Changed(msgspec.Struct, frozen=True, rename="camel"):
    """What is different between an attempt and the one before it.

    `revisions` is how many changes of what runs lie between; `inventory` says that facts of nodes changed too.
    """

    decision: int
    verdicts: tuple[str, str]
    policies: tuple[str, str]
    nodes: tuple[int | None, int | None]
    revisions: int
    inventory: bool
    reasons: tuple[Difference, ...]


class NextStep(msgspec.Struct, frozen=True, rename="camel"):
    """A change with which it would be placed now, and what would then be submitted."""

    fit: NearestFit
    manifest: dict[str, Any]


class Outlook(msgspec.Struct, frozen=True, rename="camel"):
    """How it stands now for a pod that waits; `blockers` are who would have to be gone, a node each."""

    evaluated_at: str
    revision: int
    policy: str
    verdict: str
    summary: str
    reasons: tuple[Reason, ...]
    next_steps: tuple[NextStep, ...]
    blockers: tuple[tuple[Evicted, ...], ...]


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """One member of a gang."""

    id: int
    pod: str
    state: str
    decision: int | None


class Gang(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's gang: how many members run or are placed, how many must, and what broke it first, in words."""

    name: str
    placed: int
    needed: int
    broken_by: str | None
    members: tuple[Member, ...]


def binding(reasons: Sequence[Reason]) -> Reason | None:
    """Return the reason that left no node: of the last filter, that for the most nodes."""
    if not reasons:
        return None
    last = reasons[-1].plugin
    return max((reason for reason in reasons if reason.plugin == last), key=lambda reason: reason.nodes)


def decisions_of(pod: Pod) -> list[Decision]:
    """Return the decisions about a pod that are kept, the first of them first."""
    lean = Decision.objects.filter(pod=pod).defer("top", "allocation", "waits_for", "evictions")
    return list(lean.order_by("-id")[:MOST_DECISIONS])[::-1]


def spans_of(pod: Pod, decisions: Sequence[Decision], now: datetime) -> list[ReasonSpan]:
    """Return how long each reason held the pod."""
    finished = pod.finished_at if State(pod.state) in FINISHED else None
    end = finished or now
    starts = [pod.created_at, *(decision.created_at for decision in decisions)]
    spans: list[ReasonSpan] = []
    for at, since in enumerate(starts):
        decision = decisions[at - 1] if at else None
        last = at + 1 == len(starts)
        until = max(starts[at + 1] if not last else end, since)
        code, plugin, message, pending = _told(decision)
        if last and decision is None and State(pod.state) in HOLDING | FINISHED:
            code, plugin, message, pending = PLACED_CODE, "", "", False  # it ran before anybody decided here
        open_ = last and finished is None
        told = None if open_ else rfc3339(until)
        seconds = round((until - since).total_seconds(), 3)
        pk = decision.pk if decision else None
        spans.append(ReasonSpan(code, plugin, message, pending, rfc3339(since), told, seconds, pk))
    return spans


def _told(decision: Decision | None) -> tuple[str, str, str, bool]:
    if decision is None:
        return QUEUED_CODE, "", "", True
    if decision.verdict == Verdict.PLACED:
        return PLACED_CODE, "", decision.node_name, False
    reason = binding(decision.reasons)
    return (reason.code, reason.plugin, reason.message, True) if reason else (decision.verdict, "", "", True)


def changed(before: Decision, now: Decision) -> Changed:
    """Say what is different between two decisions about one pod."""
    counted: dict[tuple[str, str, str], list[int]] = {}
    for at, decision in enumerate((before, now)):
        for reason in decision.reasons:
            counted.setdefault((reason.plugin, reason.code, reason.message), [0, 0])[at] += reason.nodes
    return Changed(
        decision=before.pk,
        verdicts=(before.verdict, now.verdict),
        policies=(before.policy_words, now.policy_words),
        nodes=(_nodes(before), _nodes(now)),
        revisions=now.cluster_revision - before.cluster_revision,
        inventory=now.inventory_revision != before.inventory_revision,
        reasons=tuple(Difference(*key, *nodes) for key, nodes in counted.items() if nodes[0] != nodes[1]),
    )


def _nodes(decision: Decision) -> int | None:
    return decision.reasons[0].before or None if decision.reasons else None


def gang_of(pod: Pod) -> Gang | None:
    """Return a pod's gang with all its live members, those that wait first."""
    member = pod.spec.gang
    if member is None:
        return None
    rows = Pod.objects.filter(cluster_id=pod.cluster_id, namespace=pod.namespace, gang=member.name)
    found = list(
        rows.defer("spec", "allocation").exclude(state=State.CANCELLED).select_related("decision").order_by("id")
    )
    found.sort(key=lambda one: State(one.state) in HOLDING)
    said = (
        reason.message for one in found if one.decision for reason in one.decision.reasons if reason.plugin == "gang"
    )
    return Gang(
        name=f"{pod.namespace}/{member.name}",
        placed=sum(State(one.state) in HOLDING for one in found),
        needed=member.min_available,
        broken_by=next(said, None),
        members=tuple(Member(one.pk, one.key, one.state, one.decision_id) for one in found),
    )


def outlook(pod: Pod, now: datetime) -> Outlook | None:
    """Work out how it stands now for a pod that waits, None for any other."""
    if State(pod.state) not in QUEUED:
        return None
    spec = _policy_now(pod)
    if spec is None:
        return None
    state, revision = fork(pod.cluster_id)
    state.forget(pod.spec.key)  # it may be nominated
    compiled = compile_policy(spec, load_registry(), implied=IMPLIED)
    if compiled.wants_mix:
        state.use_mix(state.booked_mix())
    if pod.spec.gang is not None:
        members = Pod.objects.filter(cluster_id=pod.cluster_id, namespace=pod.namespace, gang=pod.gang)
        live = members.exclude(state__in=FINISHED).order_by("id").values_list("spec", flat=True)
        state.gangs.announce([one for one in live if one.key not in state.bookings])
    scheduler = Scheduler(state, compiled)
    placed = scheduler.schedule(pod.spec, preempts=False)
    if placed.node is not None:
        summary = f"{pod.key} fits on {placed.node} by now"
        return Outlook(rfc3339(now), revision, spec.name, Verdict.PLACED, summary, (), (), ())
    found: Diagnosis = diagnose(scheduler, pod.spec)
    steps = tuple(
        NextStep(change.fit, listed([pod_object(spec_, compact=True) for spec_ in change.pods]))
        for change in changes(scheduler, pod.spec)
    )
    blocking = blockers(scheduler, pod.spec) if found.verdict == Verdict.NOT_NOW else ()
    return Outlook(rfc3339(now), revision, spec.name, found.verdict, found.summary, found.reasons, steps, blocking)


def _policy_now(pod: Pod) -> PolicySpec | None:
    try:
        chosen, _ = Chooser(pod.cluster).choose(pod.spec, pod.policy if pod.policy_rule == "request" else "")
    except InputError:  # it was taken away since
        return None
    return active_specs({chosen.name}).get(chosen.name)


def listed(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several objects as one: a `List`, or the only one itself."""
    return objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
