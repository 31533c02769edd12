"""Explanation of a pod's placement or wait beyond its latest decision: its history and its current outlook.

A decision is stored for each change of the result, so the time between two decisions is attributed to the earlier
decision, and the time before the first decision to the queue. If a decision has several reasons, the time is attributed
to the reason that excluded the node on which the pod was placed later. A reason is temporary if at least one node that
it excludes would accept the pod when empty. While the pod still waits, the time is attributed to a temporary reason or,
if there is none, to the reason of the last filter. Among several candidates, the reason that excludes the most nodes is
used.
Next steps and blockers are computed on a copy of the current state, with the pod's current policy, because a remedy for
an earlier decision may not help any more.
Invariants: the seconds of all spans add up to the time from submission to now, or until the pod finished; nothing
is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hetsched.adapters.objects.export.pods import pod_object
from hetsched.contracts.api.decision import Evicted, Reason, Verdict
from hetsched.contracts.api.explanation import Changed, Difference, Gang, Member, NextStep
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.times import rfc3339
from hetsched.engine.explain.blockers import blockers
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.explain.nearest_fit import changes
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.placement.lifecycle import FINISHED, HOLDING, QUEUED, State
from hetsched.placement.models import Decision, Pod, Preemption
from hetsched.placement.scheduler_cache import fork
from hetsched.policies.effective import Chooser, active_specs

MOST_DECISIONS = 500
MOST_PREEMPTIONS = 10
QUEUED_CODE, PLACED_CODE = "Queued", "Placed"


class ReasonSpan(msgspec.Struct, frozen=True, rename="camel"):
    """A time span attributed to one reason; `until` is None while it lasts, and `pending` is False for a placed pod."""

    code: str
    plugin: str
    message: str
    pending: bool
    since: str
    until: str | None
    seconds: float
    decision: int | None


class Outlook(msgspec.Struct, frozen=True, rename="camel"):
    """Current outlook of a pending pod; each item of `blockers` lists the pods that would have to leave one node."""

    evaluated_at: str
    revision: int
    policy: str
    verdict: str
    summary: str
    reasons: tuple[Reason, ...]
    next_steps: tuple[NextStep, ...]
    blockers: tuple[tuple[Evicted, ...], ...]


class PreemptedBy(msgspec.Struct, frozen=True, rename="camel"):
    """The preemption of a pod: preemptor, decision, node and time; ids are null if their rows have been deleted."""

    victim: str
    pod: str
    pod_id: int | None
    node: str
    decision: int | None
    at: str


def binding_reason(reasons: Sequence[Reason], placed_on: str = "") -> Reason | None:
    """Return the reason that kept a pod waiting; `placed_on` is the node of a later placement, if any."""
    if not reasons:
        return None
    last = reasons[-1].plugin
    lifted = [reason for reason in reasons if placed_on in reason.candidates]
    open_ = [reason for reason in reasons if reason.candidates]
    return max(
        lifted or open_ or [reason for reason in reasons if reason.plugin == last], key=lambda reason: reason.nodes
    )


def decisions_of(pod: Pod) -> list[Decision]:
    """Return the stored decisions about a pod, the earliest first."""
    lean = Decision.objects.filter(pod=pod).defer("top", "allocation", "waits_for", "evictions")
    return list(lean.order_by("-id")[:MOST_DECISIONS])[::-1]


def spans_of(pod: Pod, decisions: Sequence[Decision], now: datetime) -> list[ReasonSpan]:
    """Return the time spans of a pod, each with the reason that kept it waiting."""
    finished = pod.finished_at if State(pod.state) in FINISHED else None
    end = finished or now
    starts = [pod.created_at, *(decision.created_at for decision in decisions)]
    spans: list[ReasonSpan] = []
    placed_on = _placed_on(decisions)
    for at, since in enumerate(starts):
        decision = decisions[at - 1] if at else None
        last = at + 1 == len(starts)
        until = max(starts[at + 1] if not last else end, since)
        code, plugin, message, pending = _cause(decision, placed_on[at - 1] if at else "")
        if last and decision is None and State(pod.state) in HOLDING | FINISHED:
            # a pod that ran without a decision by hetsched did not wait
            code, plugin, message, pending = PLACED_CODE, "", "", False
        open_ = last and finished is None
        ended_at = None if open_ else rfc3339(until)
        seconds = round((until - since).total_seconds(), 3)
        pk = decision.pk if decision else None
        spans.append(ReasonSpan(code, plugin, message, pending, rfc3339(since), ended_at, seconds, pk))
    return spans


def _placed_on(decisions: Sequence[Decision]) -> list[str]:
    """Return for each decision the node of the first placement at or after it, or "" if there is none."""
    found: list[str] = []
    for decision in reversed(decisions):
        node = decision.node_name if decision.verdict == Verdict.PLACED else ""
        found.append(node or (found[-1] if found else ""))
    return found[::-1]


def _cause(decision: Decision | None, placed_on: str) -> tuple[str, str, str, bool]:
    if decision is None:
        return QUEUED_CODE, "", "", True
    if decision.verdict == Verdict.PLACED:
        return PLACED_CODE, "", decision.node_name, False
    reason = binding_reason(decision.reasons, placed_on)
    return (reason.code, reason.plugin, reason.message, True) if reason else (decision.verdict, "", "", True)


def changes_between(before: Decision, now: Decision) -> Changed:
    """Return the difference between two decisions about one pod."""
    counted: dict[tuple[str, str, str], list[int]] = {}
    # A placement does not list rejections although some nodes still reject the pod, so there is nothing to compare.
    for at, decision in enumerate((before, now) if Verdict.PLACED not in (before.verdict, now.verdict) else ()):
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


def preemptions_of(pods: Iterable[Pod]) -> list[PreemptedBy]:
    """Return the preemptions of these pods, the latest first."""
    rows = Preemption.objects.filter(victim__in=[pod.pk for pod in pods]).select_related("victim")
    return [
        PreemptedBy(row.victim.key, row.key, row.preemptor_id, row.node_name, row.decision_id, rfc3339(row.created_at))
        for row in rows.defer("victim__spec", "victim__allocation").order_by("-id")[:MOST_PREEMPTIONS]
    ]


def gang_of(pod: Pod) -> Gang | None:
    """Return a pod's gang with all members that are not cancelled, members that hold no resources first."""
    member = pod.spec.gang
    if member is None:
        return None
    rows = Pod.objects.filter(cluster_id=pod.cluster_id, namespace=pod.namespace, gang=member.name)
    found = list(
        rows.defer("spec", "allocation").exclude(state=State.CANCELLED).select_related("decision").order_by("id")
    )
    found.sort(key=lambda one: State(one.state) in HOLDING)
    reasons = (reason for one in found if one.decision for reason in one.decision.reasons)
    said = (reason.message for reason in reasons if reason.plugin in load_registry().gang_plugins)
    return Gang(
        name=f"{pod.namespace}/{member.name}",
        placed=sum(State(one.state) in HOLDING for one in found),
        needed=member.min_available,
        broken_by=next(said, None),
        members=tuple(Member(one.pk, one.key, one.state, one.decision_id) for one in found),
    )


def outlook(pod: Pod, now: datetime) -> Outlook | None:
    """Compute the current outlook of a pending pod; return None for any other pod."""
    if State(pod.state) not in QUEUED:
        return None
    spec = _policy_now(pod)
    if spec is None:
        return None
    state, revision = fork(pod.cluster_id)
    state.forget(pod.spec.key)  # a nominated pod is assumed on its node
    compiled = compile_policy(spec, load_registry(), implied=True)
    if compiled.wants_mix:
        state.use_mix(state.placed_mix())
    if pod.spec.gang is not None:
        members = Pod.objects.filter(cluster_id=pod.cluster_id, namespace=pod.namespace, gang=pod.gang)
        live = members.exclude(state__in=FINISHED).order_by("id").values_list("spec", flat=True)
        state.gangs.register_queue([item for item in live if item.key not in state.placed_pods])
    scheduler = Scheduler(state, compiled)
    placed = scheduler.schedule(pod.spec, preempts=False)
    if placed.node is not None:
        summary = Message("{pod} now fits on {node}", pod=pod.key, node=placed.node)
        return Outlook(rfc3339(now), revision, spec.name, Verdict.PLACED, summary, (), (), ())
    found: Diagnosis = diagnose(scheduler, pod.spec)
    steps = tuple(
        NextStep(change.fit, as_list([pod_object(spec_, compact=True) for spec_ in change.pods]))
        for change in changes(scheduler, pod.spec)
    )
    blocking = blockers(scheduler, pod.spec) if found.verdict == Verdict.NOT_NOW else ()
    return Outlook(rfc3339(now), revision, spec.name, found.verdict, found.summary, found.reasons, steps, blocking)


def _policy_now(pod: Pod) -> PolicySpec | None:
    try:
        chosen, _ = Chooser(pod.cluster).choose(pod.spec, pod.policy if pod.policy_rule == "request" else "")
    except InputError:  # the policy is not permitted any more: there is no outlook
        return None
    return active_specs({chosen.name}).get(chosen.name)


def as_list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several objects as one `List`, or a single object unchanged."""
    return objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
