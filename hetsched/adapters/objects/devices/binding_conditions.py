"""Check the binding conditions of allocated devices in the status of a resource claim.

A driver may need to attach a device to the node after the allocation, for example through a fabric. It reports the
progress as conditions of the device in the claim's status. The pod is bound when all binding conditions of all its
devices are true. The wait ends without a binding if a failure condition is true, or `BINDING_TIMEOUT` after the
allocation.
Source: Kubernetes resource.k8s.io/v1, `bindingConditions`, `bindingFailureConditions` and `allocationTimestamp`;
kube-scheduler's dynamicresources plugin (isClaimReadyForBinding, isClaimTimeout).
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hetsched.contracts.message import Message

BINDING_TIMEOUT = timedelta(minutes=10)  # default `bindingTimeout` of kube-scheduler
Plain = dict[str, Any]


class BindingState(enum.Enum):
    """State of the binding conditions of a claim."""

    READY = enum.auto()
    WAITING = enum.auto()
    FAILED = enum.auto()


class BindingCheck(NamedTuple):
    """State of the binding conditions of a claim; `message` names the device unless the state is READY."""

    state: BindingState
    message: Message | None = None


_READY = BindingCheck(BindingState.READY)


def check_conditions(claim: Plain, now: datetime) -> BindingCheck:
    """Return the state of the binding conditions of an allocated claim.

    A failure of any device takes precedence over devices that still wait.
    """
    allocation = claim["status"]["allocation"]
    checks = [_check_device(claim, result) for result in allocation["devices"].get("results", ())]
    failed = next((check for check in checks if check.state is BindingState.FAILED), None)
    waiting = next((check for check in checks if check.state is BindingState.WAITING), None)
    if failed is not None or waiting is None:
        return failed or _READY
    began = allocation.get("allocationTimestamp")
    if began is not None and datetime.fromisoformat(began) + BINDING_TIMEOUT < now:
        message = Message(
            "the binding conditions of claim {claim} did not become true within {n} minutes",
            claim=claim["metadata"]["name"],
            n=int(BINDING_TIMEOUT.total_seconds() // 60),
        )
        return BindingCheck(BindingState.FAILED, message)
    return waiting


def timestamp(now: datetime) -> str:
    """Format a time as the API's `allocationTimestamp`."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_device(claim: Plain, result: Plain) -> BindingCheck:
    required = result.get("bindingConditions")
    if not required:
        return _READY
    name, device = claim["metadata"]["name"], "/".join(result[part] for part in ("driver", "pool", "device"))
    conditions = _conditions(claim, result)
    for kind in result.get("bindingFailureConditions", ()):
        condition = conditions.get(kind)
        if condition is not None and condition.get("status") == "True":
            message = Message(
                "device {device} of claim {claim} reports {condition}: {text}",
                device=device,
                claim=name,
                condition=kind,
                text=condition.get("message") or condition.get("reason", ""),
            )
            return BindingCheck(BindingState.FAILED, message)
    for kind in required:
        if conditions.get(kind, {}).get("status") != "True":
            message = Message(
                "device {device} of claim {claim} does not report {condition} yet",
                device=device,
                claim=name,
                condition=kind,
            )
            return BindingCheck(BindingState.WAITING, message)
    return _READY


def _conditions(claim: Plain, result: Plain) -> dict[str, Plain]:
    """Return the conditions of an allocated device by type; each share of a device has its own conditions."""
    identity = [result.get(part) for part in ("driver", "pool", "device", "shareID")]
    for status in claim["status"].get("devices", ()):
        if [status.get(part) for part in ("driver", "pool", "device", "shareID")] == identity:
            return {condition["type"]: condition for condition in status.get("conditions", ())}
    return {}
