"""Probes of changes to running pods, which Kubernetes' own tests cover only in part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.kube.control_plane import ControlPlane

_PODS = "/api/v1/namespaces/default/pods"
_STRATEGIC = "application/strategic-merge-patch+json"
_IMAGE = "registry.k8s.io/pause:3.10"
# kube-scheduler decides within a second; hetsched may wait for its next sweep.
_BOUND_SECONDS = 60.0
_PENDING_SECONDS = 12.0


def results(plane: ControlPlane) -> dict[str, bool]:
    """Run all probes on the nodes of a cluster; return which of them the scheduler passed."""
    return {name: probe(plane) for name, probe in PROBES.items()}


def resize(plane: ControlPlane) -> bool:
    """A pod grows from 1 to 6 of the 8 CPUs of a node; a pod of 4 CPUs must stay pending."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": "node-0"}}
    _create(plane, "resized", cpu="1", **spec)
    if not _is_bound(plane, "resized"):
        return False
    _report(plane, "resized", "1")
    request = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "6"}}}]}
    plane.call("PATCH", f"{_PODS}/resized/resize", {"spec": request}, content=_STRATEGIC)
    _report(plane, "resized", "6")
    time.sleep(3)
    _create(plane, "refused", cpu="4", **spec)
    return not _is_bound(plane, "refused", _PENDING_SECONDS) and "Insufficient cpu" in _reason(plane, "refused")


def labels(plane: ControlPlane) -> bool:
    """A running pod gets a label; a pod that waits for it by pod affinity must be bound."""
    term = {"labelSelector": {"matchLabels": {"app": "server"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    _create(plane, "server", cpu="100m")
    if not _is_bound(plane, "server"):
        return False
    _create(plane, "client", cpu="100m", affinity=affinity)
    if _is_bound(plane, "client", 4.0):
        return False
    change = {"metadata": {"labels": {"app": "server"}}}
    plane.call("PATCH", f"{_PODS}/server", change, content="application/merge-patch+json")
    return _is_bound(plane, "client")


PROBES: dict[str, Callable[[ControlPlane], bool]] = {"resize": resize, "labels": labels}


def _create(plane: ControlPlane, name: str, *, cpu: str, **spec: Any) -> None:
    container = {"name": "main", "image": _IMAGE, "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    spec = {"containers": [container], **spec}
    plane.call("POST", _PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def _report(plane: ControlPlane, name: str, cpu: str) -> None:
    """Report that the container runs with this request, as its kubelet does."""
    have = {"cpu": cpu, "memory": "64Mi"}
    status = {
        "name": "main", "image": _IMAGE, "imageID": "x", "ready": True, "restartCount": 0,
        "allocatedResources": have, "resources": {"requests": have},
    }  # fmt: skip
    body = {"status": {"phase": "Running", "containerStatuses": [status]}}
    plane.call("PATCH", f"{_PODS}/{name}/status", body, content=_STRATEGIC)


def _is_bound(plane: ControlPlane, name: str, seconds: float = _BOUND_SECONDS) -> bool:
    until = time.monotonic() + seconds
    while not plane.call("GET", f"{_PODS}/{name}")["spec"].get("nodeName"):
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def _reason(plane: ControlPlane, name: str) -> str:
    return json.dumps(plane.call("GET", f"{_PODS}/{name}")["status"].get("conditions", []))
