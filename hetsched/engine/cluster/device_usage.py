"""Devices and counters in use.

A device is in use if it is allocated to a claim, by any scheduler, or promised to a placed pod. A device in use may
consume counters of its pool, for example slices of the memory of one GPU that several partitions share:
    remaining counter = counter of the pool - sum of the counters that the pool's devices in use consume
Source: Kubernetes resource.k8s.io/v1, `sharedCounters` and `consumesCounters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import Devices


class DeviceUsage:
    """The use of the devices of a cluster by its claims and by `promised`, the grants of placed pods by claim.

    `exclusive` contains the devices in use, `remaining` the remaining counters of each pool that has counters.
    """

    def __init__(self, known: Devices, promised: Mapping[str, Sequence[DeviceGrant]]) -> None:
        self.exclusive = {device for claim in known.claims.values() for device in claim.allocated or ()}
        self.exclusive.update(grant.device for grants in promised.values() for grant in grants)
        self.remaining = {pool: dict(counters) for pool, counters in known.counters.items()}
        if self.remaining:
            self._consume_counters(known)

    def _consume_counters(self, known: Devices) -> None:
        for device in known.devices:
            if device.consumes and device.id in self.exclusive:
                remaining = self.remaining[device.id.pool_key]
                for name, amount in device.consumes.items():
                    remaining[name] -= amount

    def excesses(self) -> Iterator[str]:
        """Yield a text for each counter of which more is consumed than the pool has."""
        for pool, counters in self.remaining.items():
            for name, amount in counters.items():
                if amount < 0:
                    yield f"counter {name} of pool {pool} is exceeded by {-amount}/1000"
