"""Results of pods that a batch does not place: rejected, nominated, or not tried in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hetsched.contracts.api.decision import (
    GANG_SOURCE,
    PREEMPTION_PENDING,
    PREEMPTION_SOURCE,
    Evicted,
    Reason,
    Verdict,
)
from hetsched.contracts.message import Message, format_pods, joined
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.queueing_hints import for_anything
from hetsched.engine.framework.status import Refusal
from hetsched.placement.models.holds import MARK
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import NominatedNode, Result

from ..nominations import waits_for
from .messages import held_by


def rejected_result(
    pending: PendingPod, spec: PolicySpec, verdict: Verdict, summary: Message, reasons: tuple[Reason, ...]
) -> Result:
    return Result(pending, verdict, summary, spec.name, spec.version, reasons=reasons)


def unknown_policy_result(pending: PendingPod) -> Result:
    message = Message("policy {policy} has no active version", policy=repr(pending.policy))
    reason = Reason("PolicyUnknown", "policy", 0, message)
    return Result(pending, Verdict.NOT_NOW, message, pending.policy, 0, reasons=(reason,))


def failed_result(pending: PendingPod, spec: PolicySpec, error: Exception) -> Result:
    """Return the result of a pod on which the engine failed."""
    name = type(error).__name__
    reason = Reason("EngineError", "engine", 0, Message("the decision failed: {name}", name=name))
    summary = Message("{pod} could not be scheduled: {name}", pod=pending.spec.key, name=name)
    return rejected_result(pending, spec, Verdict.NOT_NOW, summary, (reason,))


def mixed_gangs(pending: Sequence[PendingPod]) -> set[str]:
    """Return the gangs whose members name different policies; such members cannot wait for each other."""
    policies: dict[str, set[str]] = defaultdict(set)
    for pod in pending:
        key = gang_key(pod.spec)
        if key is not None:
            policies[key].add(pod.policy)
    return {key for key, names in policies.items() if len(names) > 1}


def mixed_gang_result(pending: PendingPod, spec: PolicySpec) -> Result:
    message = Message("gang {key}: its members name different policies", key=gang_key(pending.spec) or "")
    reason = Reason("GangMixed", GANG_SOURCE, 0, message)
    return rejected_result(pending, spec, Verdict.MISCONFIGURED, message, (reason,))


def nominated_result(
    pending: PendingPod,
    spec: PolicySpec,
    found: NominatedNode,
    diagnosis: Diagnosis,
    victims: Sequence[PlacedPod],
    evicted: tuple[Evicted, ...],
) -> Result:
    """Return the result of a pod that waits for the deletion of `victims`; `evicted` lists evictions to request."""
    reason = waits_for(found.node_name, victims)
    summary = Message("{pod} waits: {detail}", pod=pending.spec.key, detail=reason.message)
    summary = joined("; ", [summary, *held_by(diagnosis)])
    result = rejected_result(pending, spec, Verdict.NOT_NOW, summary, (reason, *diagnosis.recorded))
    victims_wait = WaitsFor(
        PREEMPTION_SOURCE,
        (Event.POD_RELEASED,),
        Message("the deletion of the victims on {node}", node=found.node_name),
    )
    waits = (victims_wait, *diagnosis.waits_for)
    return msgspec.structs.replace(result, evicted=evicted, nominated=found, waits_for=waits)


def waiting_gang_result(
    pending: PendingPod,
    spec: PolicySpec,
    found: NominatedNode | None,
    victims: Sequence[PlacedPod],
    evicted: tuple[Evicted, ...] = (),
) -> Result:
    """Return the result of a gang member that waits for the deletion of the `victims` of all members of its gang.

    `found` is None if the member itself is not nominated; `evicted` lists evictions to request for it.
    """
    pods = format_pods([placed.pod.key.partition(MARK)[0] for placed in victims])
    message = Message("gang {key} can start after the deletion of {pods}", key=gang_key(pending.spec) or "", pods=pods)
    if found is not None:
        message = Message("{detail}; {node} is nominated for the pod", detail=message, node=found.node_name)
    summary = Message("{pod} waits: {detail}", pod=pending.spec.key, detail=message)
    reason = Reason(PREEMPTION_PENDING, PREEMPTION_SOURCE, 1, message)
    result = rejected_result(pending, spec, Verdict.NOT_NOW, summary, (reason,))
    waits = for_anything(PREEMPTION_SOURCE, Message("the deletion of the victims of the gang"))
    return msgspec.structs.replace(result, evicted=evicted, nominated=found, waits_for=waits)


def refused_result(pending: PendingPod, spec: PolicySpec, plugin: str, refusal: Refusal) -> Result:
    """Return the result of a pod whose placement a plugin refused after the pod was assumed."""
    reason = Reason(refusal.code, plugin, 0, refusal.message)
    summary = Message("{pod} waits: {detail}", pod=pending.spec.key, detail=reason.message)
    return rejected_result(pending, spec, Verdict.NOT_NOW, summary, (reason,))


def timed_out_result(pending: PendingPod, spec: PolicySpec | None) -> Result:
    """Return the result of a gang member that was not tried within the time of the batch."""
    message = Message(
        "gang {key}: the scheduler iteration reached its time limit before all members were tried",
        key=gang_key(pending.spec) or "",
    )
    reason = Reason("GangTooSlow", GANG_SOURCE, 0, message)
    version = 0 if spec is None else spec.version
    return Result(pending, Verdict.NOT_NOW, message, pending.policy, version, reasons=(reason,))


def with_requeue(result: Result) -> Result:
    """Register a rejected pod for any event, because a pod whose resources blocked it may have been undone."""
    if result.verdict is not Verdict.NOT_NOW:
        return result
    return msgspec.structs.replace(result, waits_for=(*result.waits_for, *for_anything(GANG_SOURCE, Message(""))))
