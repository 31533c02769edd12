"""Publish scheduling results on pods: the PodScheduled condition and events.

As with kube-scheduler, a pod without a node gets the condition `PodScheduled` with status False, our reason and
message, and one event each time the result changes. A bound pod gets an event that names its node. The patch of the
condition also sets or clears `nominatedNodeName`. Events are informational: write errors that a retry cannot fix are
ignored.
Source: Kubernetes core/v1 PodCondition, events.k8s.io/v1 Event.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Protocol

import msgspec

from hetsched.contracts.api.decision import Verdict

from ..api import Api, ApiFailure, Resource
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


def publish_result(api: Api, result: PodResult, *, now: str, instance: str) -> bool:
    """Write the condition and the event of one decision; return False if the call should be retried.

    `now` is RFC 3339 with microseconds, UTC.
    """
    try:
        if not result.node:
            _condition(api, result, now)
        _event(api, result, now, instance)
    except ApiFailure as failure:
        # The pod is gone or the write is not allowed: a retry would not help.
        return failure.status in (400, 403, 404, 409, 422)
    return True


def _condition(api: Api, result: PodResult, now: str) -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        # Autoscalers add nodes for pods with the reason `Unschedulable`. A placed pod whose binding failed does not
        # need more nodes, so its reason is `SchedulerError`, as in kube-scheduler. All other verdicts have the reason
        # `Unschedulable`, and the message names the verdict.
        "reason": "SchedulerError" if result.verdict is Verdict.PLACED else "Unschedulable",
        "message": f"{_REASONS[result.verdict]}: {result.sentence}"[:LONGEST_NOTE],
        "lastTransitionTime": now[:19] + "Z",
    }
    patch_status(api, result, {"conditions": [condition], "nominatedNodeName": result.nominated or None})


def _event(api: Api, result: PodResult, now: str, instance: str) -> None:
    # The sentence starts like kube-scheduler's, because other programs match it.
    assigned = f"Successfully assigned {result.namespace}/{result.name} to {result.node} ({result.sentence})"
    create_event(
        api,
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
    body = {"metadata": {"uid": pod.uid}, "status": status}
    path = PODS.path(namespace=pod.namespace, name=pod.name, part="status")
    return api.send("PATCH", path, json.dumps(body).encode(), content="application/strategic-merge-patch+json")


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
    event = {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{suffix}".lower()},
        "eventTime": now,
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": action,
        "reason": reason,
        "type": kind,
        "note": note[:LONGEST_NOTE],
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
        },
    }  # fmt: skip
    api.send("POST", EVENTS.path(namespace=pod.namespace), json.dumps(event).encode())
