"""Health of the devices of a pod, as its kubelet reports it.

A device plugin or a DRA driver reports the health of its devices to the kubelet, which writes it into the status of
each container (`allocatedResourcesStatus`). A kubelet without this feature reports nothing.
Source: KEP-4680; Kubernetes core/v1 ResourceStatus and ResourceHealth.
"""

from __future__ import annotations

from collections.abc import Iterator

from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.objects.observed import DeviceHealth

_HEALTHY, _UNHEALTHY, _UNKNOWN = "Healthy", "Unhealthy", "Unknown"
_LONGEST = 1000  # characters of a message
_MOST_DEVICES = 100  # of one pod


def unhealthy_devices(status: FieldView) -> tuple[DeviceHealth, ...]:
    """Return the devices of a pod that are unhealthy, or whose health is unknown."""
    found: list[DeviceHealth] = []
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in status.views(group):
            if "allocatedResourcesStatus" in container:
                found += _of_container(container)
    return tuple(found[:_MOST_DEVICES])


def _of_container(container: FieldView) -> Iterator[DeviceHealth]:
    for resource in container.views("allocatedResourcesStatus"):
        for device in resource.views("resources"):
            health = device.text("health") or _UNKNOWN
            if health == _HEALTHY:
                continue
            yield DeviceHealth(
                container=container.text("name"),
                resource=resource.text("name"),
                device=device.text("resourceID"),
                health=_UNHEALTHY if health == _UNHEALTHY else _UNKNOWN,
                message=device.text("message")[:_LONGEST],
            )
