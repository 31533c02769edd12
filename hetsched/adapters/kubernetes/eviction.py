"""Evict a pod through the API server in favour of a preemptor, and report the reason on the pod.

Deleting a pod ignores its PodDisruptionBudget and may hit another pod of the same name. The request is therefore
`pods/eviction` with the victim's uid as precondition and no grace period, so the victim's own one applies. Repeating
the request has no further effect. Results by response:
    2xx                            asked: the pod goes when its containers have terminated
    404, 409 with another uid      gone
    429 because of a budget        refused, with the server's message; likewise 400, 403, 422, and 500 for a pod with
                                   two budgets
    other 429, 5xx, no response    unknown: retried, no earlier than Retry-After; this includes 429 for a budget that
                                   the disruption controller has not processed yet, which carries Retry-After
A victim gets one event. After the eviction, which writes a condition of its own, it gets the condition
`DisruptionTarget` as kube-scheduler writes it. Both are informational: write errors are ignored.
Source: Kubernetes policy/v1 Eviction; "API-initiated eviction"; "Pod disruption conditions".
"""

from __future__ import annotations

import enum
import json
from contextlib import suppress
from typing import Any

import msgspec

from .api import Api, ApiFailure
from .pod_events import LONGEST_NOTE, create_event, patch_status
from .resources import PODS

_REFUSED = frozenset({400, 403, 422})
_BUDGET = "DisruptionBudget"
_TWO_BUDGETS = "more than one PodDisruptionBudget"


class EvictionResult(enum.StrEnum):
    """Result of an eviction request."""

    ASKED = "asked"
    GONE = "gone"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class ToEvict(msgspec.Struct, frozen=True):
    """One victim by its uid, and a sentence with the preemptor and the reason; `eviction_id` makes its event unique."""

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


def evict(api: Api, one: ToEvict, *, only_ask: bool = False) -> EvictionResponse:
    """Request an eviction; `only_ask` sends it as a dry run."""
    options: dict[str, Any] = {"preconditions": {"uid": one.uid}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": one.name, "namespace": one.namespace},
        "deleteOptions": options | ({"dryRun": ["All"]} if only_ask else {}),
    }
    path = PODS.path(namespace=one.namespace, name=one.name, part="eviction")
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


def mark_victim(api: Api, one: ToEvict, *, now: str, instance: str) -> None:
    """Write the condition and the event of one victim. `now` is RFC 3339 with microseconds, UTC."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"hetsched: {one.sentence}"[:LONGEST_NOTE],
        "lastTransitionTime": now[:19] + "Z",
    }
    with suppress(ApiFailure):
        patch_status(api, one, {"conditions": [condition]})
    with suppress(ApiFailure):
        create_event(
            api, one, suffix=f"{one.uid[:8]}.{one.eviction_id:x}.p", action="Preempting", reason="Preempted",
            note=one.sentence, now=now, instance=instance,
        )  # fmt: skip
