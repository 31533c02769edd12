"""Reader of the observed state of pods: their node, phase, containers and devices.

Source: Kubernetes core/v1 PodStatus.
"""

from __future__ import annotations

from sys import intern

from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.objects.observed import ContainerEnd, ObservedPod
from hetsched.contracts.objects.workload import PodSpec

from .devices.health import unhealthy_devices
from .pod_failures import has_stopped, refusal, waiting

_ENDS = {"Succeeded": "succeeded", "Failed": "failed"}


def observed_pod(root: FieldView, spec: PodSpec | None) -> ObservedPod:
    """Return the observed state of a pod; `spec` is None if the pod needs no resources."""
    meta, status, wanted = root.view("metadata"), root.view("status"), root.view("spec")
    bound, phase = bool(wanted.text("nodeName")), status.text("phase")
    stopped = has_stopped(status)
    return ObservedPod(
        # Many pods have the same values: `intern` keeps each value in memory once.
        namespace=intern(meta.text("namespace")),
        name=meta.text("name"),
        uid=meta.text("uid"),
        version=meta.text("resourceVersion"),
        scheduler_name=intern(wanted.text("schedulerName")),
        node_name=intern(wanted.text("nodeName")),
        phase=intern(phase),
        ended=_ENDS.get(phase, ""),
        deleting="deletionTimestamp" in meta,
        reason=status.text("reason"),
        message=status.text("message"),
        end=_end(status) if stopped else None,
        wait=waiting(status) if bound and stopped else None,
        refusal=refusal(status) if bound and (stopped or phase == "Failed") else None,
        devices=unhealthy_devices(status) if bound else (),
        spec=spec,
    )


def runs(root: FieldView) -> bool:
    """Return whether the kubelet started the pod and a container (or sidecar) has not terminated."""
    status = root.view("status")
    phase = status.text("phase")
    if phase in _ENDS or not (phase == "Running" or "startTime" in status):
        return False
    states = [container.view("state") for container in status.views("containerStatuses")]
    before = [container.view("state") for container in status.views("initContainerStatuses")]
    ended = bool(states) and all("terminated" in state for state in states)
    return not ended or any("running" in state for state in before)


def _end(status: FieldView) -> ContainerEnd | None:
    """Return the first container that terminated with a non-zero exit code."""
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in status.views(group):
            ended = container.view("state").view("terminated")
            code = ended.value.get("exitCode")
            if isinstance(code, int) and code != 0:
                return ContainerEnd(container.text("name"), code, ended.text("reason"), ended.text("message")[:1000])
    return None
