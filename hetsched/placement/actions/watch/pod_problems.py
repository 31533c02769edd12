"""Problems of a bound pod that its kubelet reports: a container does not start, or devices are not healthy."""

from __future__ import annotations

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.observed import DeviceHealth, ObservedPod

_MOST_DEVICES = 3  # in the message of a pod


def pod_problem(seen: ObservedPod) -> str:
    """Return the message of a bound pod: why a container waits, or which devices are not healthy; "" if neither."""
    wait = seen.wait
    if wait is not None:
        text = f"{wait.reason}: {wait.message}" if wait.message else wait.reason
        return Message("container {name} is waiting: {text}", name=wait.container, text=text[:1000])
    if not seen.devices:
        return ""
    parts = [_device_problem(device) for device in seen.devices[:_MOST_DEVICES]]
    if len(seen.devices) > _MOST_DEVICES:
        parts.append(Message("{n} more devices are not healthy", n=len(seen.devices) - _MOST_DEVICES))
    return joined("; ", parts)


def _device_problem(device: DeviceHealth) -> Message:
    names = {"device": device.device, "resource": device.resource, "name": device.container}
    if device.health == "Unhealthy":
        message = Message("device {device} ({resource}) of container {name} is unhealthy", **names)
    else:
        message = Message("the health of device {device} ({resource}) of container {name} is unknown", **names)
    return Message("{detail} ({text})", detail=message, text=device.message) if device.message else message
