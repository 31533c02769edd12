"""Publish scheduling results on pods: the PodScheduled condition and events.

As with kube-scheduler, a pod without a node gets the condition `PodScheduled` with status False, our reason and
message, and one event each time the result changes. A bound pod gets an event that names its node. The patch of the
condition also sets or clears `nominatedNodeName`. `result_publisher` makes the calls.
Source: Kubernetes core/v1 PodCondition, events.k8s.io/v1 Event.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import as_text

from ..api import Api, Resource
from ..resources import PODS

EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CONTROLLER = "hetsched.io/scheduler"
LONGEST_NOTE = 1024  # characters
_REASONS = {
    Verdict.PLACED: "NotBound",
    Verdict.NOT_NOW: "Unschedulable",
    Verdict.NEVER_FITS: "NeverFits",
    Verdict.MISCONFIGURED: "Misconfigured",
}


class NamedPod(Protocol):
    """A pod in the API server, with its name and uid."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class PodResult(msgspec.Struct, frozen=True):
    """Result to publish on one pod: `node` if it was bound, otherwise the verdict; `decision_id` makes events unique.

    `nominated` is the node nominated for the pod while it is pending.
    """

    pod_id: int
    decision_id: int
    namespace: str
    name: str
    uid: str
    verdict: Verdict
    sentence: str
    node: str = ""
    nominated: str = ""


class PodCall(msgspec.Struct, frozen=True):
    """A call that publishes a part of a result."""

    method: str
    path: str
    body: bytes
    content: str = "application/json"


class _PatchedPod(msgspec.Struct):
    uid: str


class _Condition(msgspec.Struct):
    reason: str
    message: str
    since: str = msgspec.field(name="lastTransitionTime")
    type: str = "PodScheduled"
    status: str = "False"


class _PatchedStatus(msgspec.Struct, rename="camel"):
    conditions: list[_Condition]
    nominated_node_name: str | None


class _StatusPatch(msgspec.Struct):
    metadata: _PatchedPod
    status: Any


class _EventMeta(msgspec.Struct):
    name: str


class _Regarding(msgspec.Struct, rename="camel"):
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"
    kind: str = "Pod"


class _PodEvent(msgspec.Struct, rename="camel"):
    metadata: _EventMeta
    event_time: str
    reporting_instance: str
    action: str
    reason: str
    type: str
    note: str
    regarding: _Regarding
    reporting_controller: str = CONTROLLER
    api_version: str = EVENTS.api_version
    kind: str = "Event"


_encoder = msgspec.json.Encoder(enc_hook=as_text)


def condition_call(result: PodResult, now: str) -> PodCall:
    """Return the call that writes the condition of a pod without a node; `now` is RFC 3339, UTC."""
    condition = _Condition(
        # Autoscalers add nodes for pods with the reason `Unschedulable`. A placed pod whose binding failed does not
        # need more nodes, so its reason is `SchedulerError`, as in kube-scheduler. All other verdicts have the reason
        # `Unschedulable`, and the message names the verdict.
        reason="SchedulerError" if result.verdict is Verdict.PLACED else "Unschedulable",
        message=f"{_REASONS[result.verdict]}: {result.sentence}"[:LONGEST_NOTE],
        since=now[:19] + "Z",
    )
    return _status_call(result, _PatchedStatus([condition], result.nominated or None))


def event_call(result: PodResult, now: str, instance: str) -> PodCall:
    """Return the call that creates the event of a result; `now` is RFC 3339 with microseconds, UTC."""
    # The sentence starts like kube-scheduler's, because other programs match it.
    assigned = f"Successfully assigned {result.namespace}/{result.name} to {result.node} ({result.sentence})"
    return _event_call(
        result,
        # The uid is included because another database may have used the same decision ID.
        suffix=f"{result.uid[:8]}.{result.decision_id:x}.{'s' if result.node else 'f'}",
        action="Binding" if result.node else "Scheduling",
        reason="Scheduled" if result.node else "FailedScheduling",
        kind="Normal" if result.node else "Warning",
        note=assigned if result.node else result.sentence,
        now=now,
        instance=instance,
    )


def process_name() -> str:
    """Return the name of this process, as the instance that reports an event."""
    return f"{socket.gethostname()}/{os.getpid()}"


def patch_status(api: Api, pod: NamedPod, status: dict[str, Any]) -> bytes:
    """Merge these fields into the status of a pod, if it still has this uid; return the pod. Raises: ApiFailure."""
    call = _status_call(pod, status)
    return api.send(call.method, call.path, call.body, content=call.content)


def _status_call(pod: NamedPod, status: Any) -> PodCall:
    body = _encoder.encode(_StatusPatch(_PatchedPod(pod.uid), status))
    path = PODS.path(namespace=pod.namespace, name=pod.name, part="status")
    return PodCall("PATCH", path, body, "application/strategic-merge-patch+json")


def create_event(
    api: Api,
    pod: NamedPod,
    *,
    suffix: str,
    action: str,
    reason: str,
    note: str,
    now: str,
    instance: str,
    kind: str = "Normal",
) -> None:
    """Create an event about a pod; `suffix` makes its name unique."""
    call = _event_call(
        pod, suffix=suffix, action=action, reason=reason, note=note, now=now, instance=instance, kind=kind
    )
    api.send(call.method, call.path, call.body)


def _event_call(
    pod: NamedPod, *, suffix: str, action: str, reason: str, note: str, now: str, instance: str, kind: str
) -> PodCall:
    event = _PodEvent(
        _EventMeta(f"{pod.name[:200]}.{suffix}".lower()),
        now,
        instance[:128],
        action,
        reason,
        kind,
        note[:LONGEST_NOTE],
        _Regarding(pod.namespace, pod.name, pod.uid),
    )
    return PodCall("POST", _events_path(pod.namespace), _encoder.encode(event))


@lru_cache(maxsize=1024)
def _events_path(namespace: str) -> str:
    return EVENTS.path(namespace=namespace)
