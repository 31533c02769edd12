"""Devices of running pods that are unhealthy, of unknown health, or not ready."""

from __future__ import annotations

from collections.abc import Iterator

from hetsched.contracts.api.cluster_report import ClusterFinding
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.observed import DeviceHealth, ObservedPod

from .checked_cluster import AffectedObject, CheckedCluster, finding

_UNHEALTHY = "Unhealthy"


def check_device_health(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield the nodes with unhealthy devices in use, and those with devices in use of unknown health."""
    found: dict[tuple[str, bool], list[tuple[ObservedPod, DeviceHealth]]] = {}
    for pod in cluster.observation.unhealthy:
        for device in pod.devices:
            found.setdefault((pod.node_name, device.health == _UNHEALTHY), []).append((pod, device))
    for (node, is_unhealthy), devices in found.items():
        if is_unhealthy:
            code, level = "DeviceUnhealthy", Level.ERROR
            message = Message("Running pods use unhealthy devices")
            remedy = Message("Delete the pods, so that other devices are allocated to them, and repair the devices")
        else:
            code, level = "DeviceHealthUnknown", Level.WARNING
            message = Message("The health of devices that running pods use is unknown")
            remedy = Message("Check that the device plugin or the driver of the devices runs on the node")
        yield finding(
            code,
            level,
            AffectedObject("Node", node),
            message,
            remedy,
            evidence=[_evidence(pod, device) for pod, device in devices[:3]],
            affected=[pod.key for pod, _ in devices],
        )


def check_device_conditions(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield the claims with devices that their driver reports as not ready."""
    for claim in cluster.content.devices.claims.values():
        unready = [device for device in claim.allocated or () if device.not_ready]
        if unready:
            yield finding(
                "DeviceNotReady",
                Level.WARNING,
                AffectedObject("ResourceClaim", claim.key),
                Message("Allocated devices of the claim are not ready"),
                Message("Check the driver of the devices on the node of the pod"),
                evidence=[
                    Message("Device {device}: {detail}", device=str(one.device), detail=verbatim(one.not_ready))
                    for one in unready[:3]
                ],
            )


def _evidence(pod: ObservedPod, device: DeviceHealth) -> Message:
    if device.message:
        return Message(
            "Container {container} of {pod}: device {device} ({resource}): {detail}",
            container=device.container,
            pod=pod.key,
            device=device.device,
            resource=device.resource,
            detail=verbatim(device.message),
        )
    return Message(
        "Container {container} of {pod}: device {device} ({resource})",
        container=device.container,
        pod=pod.key,
        device=device.device,
        resource=device.resource,
    )
