"""Measured usage from objects of the metrics API: PodMetrics and NodeMetrics.

The usage of a pod is the sum over its containers. The pod's controller is read from the owner reference of the
PodMetrics (written by an export), otherwise from the Pod of the same name in the same files. Usage without a known
controller is dropped.
Source: metrics.k8s.io/v1beta1, as metrics-server serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import PodUsage
from hetsched.contracts.objects.node_report import Usage
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import format_amount

from .objects.fields import FieldView
from .objects.pod_fields import controller_of
from .objects.pods import namespace_of

_MOST = 2**53


def pod_usage(root: FieldView) -> PodUsage:
    """Read a PodMetrics."""
    meta = root.view("metadata")
    total: dict[str, int] = {}
    for container in root.views("containers"):
        for resource, amount in container.amounts("usage").items():
            total[resource] = total.get(resource, 0) + amount
            if total[resource] > _MOST:
                container.fail(Message("the pod's use of {resource} is too large", resource=resource), "usage")
    return PodUsage(namespace_of(meta), meta.text("name"), controller_of(meta)[0], total, root.text("timestamp"))


def node_usage(root: FieldView) -> Usage:
    """Read a NodeMetrics."""
    return Usage(root.amounts("usage"), root.text("timestamp"))


def of_controllers(usages: Iterable[PodUsage], pods: Iterable[PodSpec]) -> tuple[PodUsage, ...]:
    """Return the usages whose controller is known, from the PodMetrics itself or from the pod of the same name."""
    controllers: Mapping[str, str] = {pod.key: pod.controller for pod in pods}
    found = []
    for usage in usages:
        controller = usage.controller or controllers.get(f"{usage.namespace}/{usage.name}", "")
        if controller:
            found.append(msgspec.structs.replace(usage, controller=controller))
    return tuple(found)


def pod_metrics(usage: PodUsage) -> dict[str, Any]:
    """Return a pod's measured usage as a PodMetrics with the controller as owner reference."""
    kind, _, owner = usage.controller.partition("/")
    metadata = {
        "name": usage.name,
        "namespace": usage.namespace,
        "ownerReferences": [{"kind": kind, "name": owner, "controller": True}],
    }
    amounts = {name: format_amount(name, amount) for name, amount in usage.amounts.items()}
    plain = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": metadata}
    if usage.observed_at:
        plain["timestamp"] = usage.observed_at
    return plain | {"containers": [{"name": "all", "usage": amounts}]}
