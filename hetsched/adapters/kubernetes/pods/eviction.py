"""Evict a pod through the API server in favour of a preemptor, and report the reason on the pod.

The request is `pods/eviction` with the victim's uid as precondition and without a grace period, so the victim's own
grace period applies. Repeating the request has no further effect. Results by response:
    2xx                            asked: the pod is deleted when its containers have terminated
    404, 409 with another uid      gone
    429 because of a budget        refused, with the server's message; also 400, 403, 422, and 500 for a pod with
                                   two budgets
    other 429, 5xx, no response    unknown: retried, no earlier than Retry-After; this includes 429 for a budget that
                                   the disruption controller has not processed yet, which carries Retry-After
Afterwards the victim gets one event and the condition `DisruptionTarget` as kube-scheduler writes it; write errors of
both are ignored.

A dry run leaves the budgets unchanged, so the dry runs of two pods can both pass where the API server rejects the
second eviction. Pods that are evicted together are therefore charged to the budgets that select them. Only ready pods
are charged, because others need no allowed disruption.
Source: Kubernetes policy/v1 Eviction and PodDisruptionBudget; "API-initiated eviction"; "Pod disruption conditions";
pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.quotas_and_budgets import disruption_budget
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.labels import selects

from ..api import Api, ApiFailure
from ..resources import BUDGETS, PODS
from .pod_events import LONGEST_NOTE, create_event, patch_status

_REFUSED = frozenset({400, 403, 422})
_BUDGET = "DisruptionBudget"
_TWO_BUDGETS = "more than one PodDisruptionBudget"


class EvictionResult(enum.StrEnum):
    """Result of an eviction request."""

    ASKED = "asked"
    GONE = "gone"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class EvictionTarget(msgspec.Struct, frozen=True):
    """A pod to evict. `sentence` names the preemptor and the reason; `eviction_id` is part of the name of the event."""

    eviction_id: int
    namespace: str
    name: str
    uid: str
    sentence: str


class EvictionResponse(msgspec.Struct, frozen=True):
    """Response to one eviction request; `message` is the server's text."""

    result: EvictionResult
    message: str = ""
    retry_after_seconds: float = 0.0


def evict(api: Api, target: EvictionTarget, *, only_ask: bool = False) -> EvictionResponse:
    """Request an eviction; `only_ask` sends it as a dry run."""
    options: dict[str, Any] = {"preconditions": {"uid": target.uid}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": target.name, "namespace": target.namespace},
        "deleteOptions": options | ({"dryRun": ["All"]} if only_ask else {}),
    }
    path = PODS.path(namespace=target.namespace, name=target.name, part="eviction")
    try:
        api.send("POST", path, json.dumps(body).encode())
    except ApiFailure as failure:
        return EvictionResponse(_result(failure), failure.message or str(failure), failure.retry_after_seconds)
    return EvictionResponse(EvictionResult.ASKED)


def _result(failure: ApiFailure) -> EvictionResult:
    if failure.status == 404 or (failure.status == 409 and "uid" in failure.message.lower()):
        return EvictionResult.GONE
    budget = failure.status == 429 and _BUDGET in failure.causes and not failure.retry_after_seconds
    if budget or failure.status in _REFUSED or (failure.status == 500 and _TWO_BUDGETS in failure.message):
        return EvictionResult.REFUSED
    return EvictionResult.UNKNOWN


def mark_victim(api: Api, target: EvictionTarget, *, now: str, instance: str) -> None:
    """Write the condition and the event of one victim. `now` is RFC 3339 with microseconds, UTC."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"hetsched: {target.sentence}"[:LONGEST_NOTE],
        "lastTransitionTime": now[:19] + "Z",
    }
    with suppress(ApiFailure):
        patch_status(api, target, {"conditions": [condition]})
    with suppress(ApiFailure):
        create_event(
            api, target, suffix=f"{target.uid[:8]}.{target.eviction_id:x}.p", action="Preempting", reason="Preempted",
            note=target.sentence, now=now, instance=instance,
        )  # fmt: skip


# -- disruption budgets ------------------------------------------------------------------------------------------------


class _ChargedBudget(msgspec.Struct):
    """A budget with the disruptions that it allows and the ready pods charged to it."""

    budget: DisruptionBudget
    allowed: int
    pods: int = 0


def charge_budgets(api: Api, groups: Sequence[Sequence[EvictionTarget]]) -> list[list[EvictionResponse]]:
    """Return for each victim of each group whether the budgets allow its eviction.

    The victims before it in its group are charged too, and those of earlier groups without a refused victim: the other
    groups are not evicted. If the budgets or a pod cannot be read, all responses are `UNKNOWN`.
    """
    try:
        budgets = _budgets(api, {target.namespace for group in groups for target in group})
        labels = [[_ready_labels(api, target) if budgets else None for target in group] for group in groups]
    except ApiFailure as failure:
        unknown = EvictionResponse(EvictionResult.UNKNOWN, str(failure), failure.retry_after_seconds)
        return [[unknown] * len(group) for group in groups]
    return [_charge_group(budgets, group, of_group) for group, of_group in zip(groups, labels, strict=True)]


def _charge_group(
    budgets: Sequence[_ChargedBudget], group: Sequence[EvictionTarget], labels: Sequence[Mapping[str, str] | None]
) -> list[EvictionResponse]:
    """Charge the ready victims of a group to the budgets; undo the charges if a victim is refused."""
    before = [charged.pods for charged in budgets]
    allowed = EvictionResponse(EvictionResult.ASKED)
    responses = [
        allowed if ready is None else _charge(budgets, target.namespace, ready)
        for target, ready in zip(group, labels, strict=True)
    ]
    if any(response.result is EvictionResult.REFUSED for response in responses):
        for charged, pods in zip(budgets, before, strict=True):
            charged.pods = pods
    return responses


def _charge(budgets: Sequence[_ChargedBudget], namespace: str, labels: Mapping[str, str]) -> EvictionResponse:
    for charged in budgets:
        if charged.budget.namespace == namespace and selects(charged.budget.selector, labels):
            charged.pods += 1
            if charged.pods > charged.allowed:
                name = f"{namespace}/{charged.budget.name}"
                message = f"the disruption budget {name} allows only {charged.allowed} of the planned evictions"
                return EvictionResponse(EvictionResult.REFUSED, message)
    return EvictionResponse(EvictionResult.ASKED)


def _budgets(api: Api, namespaces: Collection[str]) -> list[_ChargedBudget]:
    found = []
    for item in api.list_all(BUDGETS)[0]:
        root = FieldView(json.loads(item))
        with suppress(InputError):  # the informer reports unreadable budgets
            budget = disruption_budget(root, ())
            if budget.namespace in namespaces:
                found.append(_ChargedBudget(budget, root.view("status").integer("disruptionsAllowed")))
    return found


def _ready_labels(api: Api, victim: EvictionTarget) -> Mapping[str, str] | None:
    """Return the labels of a victim, or None if it is not ready or no longer exists."""
    try:
        pod = _pod.decode(api.get(PODS.path(namespace=victim.namespace, name=victim.name)))
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ())
    running = ready and pod.status.phase == "Running" and not pod.metadata.deletion
    return (pod.metadata.labels or {}) if running and pod.metadata.uid == victim.uid else None


class _EvictedMetadata(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None
    deletion: str | None = msgspec.field(name="deletionTimestamp", default=None)


class _EvictedCondition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _EvictedStatus(msgspec.Struct):
    phase: str = ""
    conditions: list[_EvictedCondition] | None = None


class _EvictedPod(msgspec.Struct):
    metadata: _EvictedMetadata
    status: _EvictedStatus = msgspec.field(default_factory=_EvictedStatus)


_pod = msgspec.json.Decoder(_EvictedPod)
