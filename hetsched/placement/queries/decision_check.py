"""Re-run of a decision on its original state, to compare the result or to try another policy.

The state is loaded as for `explain`, and its digest is compared, so every difference is due to the policy. Under the
original policy revision the result must be the same; differences are reported.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.api.decision import PolicyRef, Reason, Verdict
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.placement.models import Decision
from hetsched.policies.models import PolicyRevision

from .decision_matrix import register_gang, scheduler_before

_DIGITS = 4


class DecisionDifference(msgspec.Struct, frozen=True, rename="camel"):
    """One field in which the re-run differs from the recorded decision."""

    what: Message
    was: str
    now: str


class RerunResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a re-run; `same` is True if nothing differs, and `policy` is the policy revision of the re-run."""

    decision: int
    same: bool
    same_policy: bool
    policy: PolicyRef
    verdict: str
    node: str | None
    score: float | None
    summary: Message
    reasons: tuple[Reason, ...]
    allocation: Allocation | None
    differences: tuple[DecisionDifference, ...]


def rerun(decision: Decision, policy: str = "", version: int = 0) -> RerunResult:
    """Run a decision again under its original policy revision, or under `version` (default: active) of `policy`.

    Raises: InputError `DecisionExpired`, `PolicyUnknown`.
    """
    spec = _spec(policy, version) if policy else _spec(decision.policy_name, decision.policy_version)
    scheduler = scheduler_before(decision, spec)
    pod = decision.pod_spec
    if pod.gang is not None and decision.node_name:
        # Without the minimum: the other members were placed after this pod. The gang is only needed for its domain.
        alone = None if pod.gang.topology is None else msgspec.structs.replace(pod.gang, min_available=1)
        pod = msgspec.structs.replace(pod, gang=alone)
    elif pod.gang is not None:
        register_gang(scheduler.state, decision)
    row = scheduler.state.row_of.get(decision.node_name, -1) if decision.used_reservation else -1
    outcome = scheduler.schedule(pod) if row < 0 else scheduler.place_on(pod, row, decision.allocation)
    if outcome.node is None:
        found = diagnose(scheduler, pod)
        verdict, summary, reasons = found.verdict, found.summary, found.reasons
    else:
        template = "{pod} is placed on {node} with score {score}"
        summary = Message(template, pod=pod.key, node=outcome.node, score=f"{outcome.score:.1f}")
        verdict, reasons = Verdict.PLACED, ()
    allocation = outcome.allocation if outcome.node else None
    differences = _differences(decision, verdict, outcome.node or "", outcome.score, allocation, reasons)
    same_policy = (spec.name, spec.version) == (decision.policy_name, decision.policy_version)
    return RerunResult(
        decision=decision.pk,
        same=not differences,
        same_policy=same_policy,
        policy=PolicyRef(spec.name, spec.version),
        verdict=verdict,
        node=outcome.node,
        score=round(outcome.score, _DIGITS) if outcome.node else None,
        summary=summary,
        reasons=reasons,
        allocation=allocation,
        differences=differences,
    )


def _spec(name: str, version: int) -> PolicySpec:
    rows = PolicyRevision.objects.filter(policy__name=name, version__gt=0).order_by("-version")
    found = rows.filter(version=version).first() if version else rows.filter(state="active").first()
    if found is None:
        text = "policy {name} has no version {version}" if version else "unknown policy {name}"
        raise InputError("PolicyUnknown", Message(text, name=repr(name[:80]), version=version), place="policy")
    return msgspec.structs.replace(found.spec, version=found.version)


def _differences(
    decision: Decision,
    verdict: str,
    node: str,
    score: float,
    allocation: Allocation | None,
    reasons: tuple[Reason, ...],
) -> tuple[DecisionDifference, ...]:
    found = []
    if verdict != decision.verdict:
        found.append(DecisionDifference(Message("verdict"), decision.verdict, verdict))
    if node != decision.node_name:
        found.append(DecisionDifference(Message("node"), decision.node_name, node))
    elif node:
        if decision.score is not None and abs(decision.score - score) > 10**-_DIGITS:
            found.append(DecisionDifference(Message("score"), f"{decision.score:.4f}", f"{score:.4f}"))
        if allocation != decision.allocation:
            found.append(DecisionDifference(Message("allocation"), _text(decision.allocation), _text(allocation)))
    elif verdict == decision.verdict:
        was, now = _counts(decision.reasons), _counts(reasons)
        found += [
            DecisionDifference(key, str(was.get(key, 0)), str(now.get(key, 0)))
            for key in {**was, **now}
            if was.get(key) != now.get(key)
        ]
    return tuple(found)


def _text(allocation: Allocation | None) -> str:
    return "" if allocation is None else encode(allocation).decode()


def _counts(reasons: tuple[Reason, ...]) -> dict[Message, int]:
    counts: dict[Message, int] = {}
    for reason in reasons:
        key = Message("{name}: {detail}", name=reason.plugin, detail=reason.message)
        counts[key] = counts.get(key, 0) + reason.nodes
    return counts
