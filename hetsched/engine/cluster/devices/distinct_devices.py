"""Check that several requests can get distinct devices.

A device without shares serves one request; a shared device may serve all of them. The requests can get distinct devices
if a bipartite graph of requests and devices has a matching that serves each request with its number of devices.
Source: H. W. Kuhn, The Hungarian Method for the Assignment Problem (augmenting paths).
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.objects.devices import Device, DeviceId


def can_be_distinct(demands: Sequence[tuple[int, Sequence[Device]]]) -> bool:
    """Return whether each demand (a number of devices among some) can be served with no unshared device used twice."""
    unshared = [[device.id for device in devices if not device.shared] for _, devices in demands]
    server: dict[DeviceId, int] = {}  # device -> demand

    def serve(demand: int, seen: set[DeviceId]) -> bool:
        for device in unshared[demand]:
            if device not in seen:
                seen.add(device)
                if device not in server or serve(server[device], seen):
                    server[device] = demand
                    return True
        return False

    for demand, (count, devices) in enumerate(demands):
        for _ in range(count - (len(devices) - len(unshared[demand]))):
            if not serve(demand, set()):
                return False
    return True
