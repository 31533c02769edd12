"""Devices, shares of devices and counters in use.

A device is in use if it is allocated to a claim, by any scheduler, or promised to a placed pod. A claim with admin
access does not use a device. A device that allows several allocations has shares instead, which consume capacity:
    consumed capacity = sum of the shares, at most the capacity of the device
A device in use, or with shares, may consume counters of its pool, for example slices of the memory of one GPU that
several partitions share:
    remaining counter = counter of the pool - sum of the counters that the pool's devices in use consume
Units: amounts in thousandths.
Source: Kubernetes resource.k8s.io/v1, `sharedCounters`, `consumesCounters`, `allowMultipleAllocations` and
`requestPolicy`; kube-scheduler's structured allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    Device,
    DeviceCapacity,
    DeviceId,
    Devices,
    DeviceWish,
    ResourceClaim,
)

_WHOLE = 1000


class DeviceUsage:
    """The use of the devices of a cluster by its claims and by `promised`, the grants of placed pods by claim.

    `exclusive` contains the devices in use, `shares` the consumed capacity of each device with shares, and `remaining`
    the remaining counters of each pool that has counters. `update` replaces the use by one claim.
    """

    def __init__(self, known: Devices, promised: Mapping[str, Sequence[DeviceGrant]]) -> None:
        self.exclusive: set[DeviceId] = set()
        self.shares: dict[DeviceId, dict[str, int]] = {}
        self.remaining = {pool: dict(counters) for pool, counters in known.counters.items()}
        self._known = known
        consuming = (device for device in known.devices if device.consumes) if self.remaining else ()
        self._consumed_counters = {device.id: device.consumes for device in consuming}
        self._results: dict[str, list[AllocatedDevice | DeviceGrant]] = {}  # of each claim, without admin access
        self._exclusive_results: dict[DeviceId, int] = {}  # numbers of results
        self._share_results: dict[DeviceId, int] = {}
        for key in known.claims.keys() | promised.keys():
            self.update(key, known.claims.get(key), promised.get(key, ()))

    def update(self, key: str, claim: ResourceClaim | None, promised: Sequence[DeviceGrant]) -> set[DeviceId]:
        """Replace the use by a claim and its grants; return the devices whose use may have changed."""
        allocated = claim.allocated if claim is not None else None
        # The shares of a recorded device are those of the claim.
        recorded = {result.device for result in allocated or ()}
        grants = (grant for grant in promised if grant.consumed is None or grant.device not in recorded)
        both: list[AllocatedDevice | DeviceGrant] = [*(allocated or ()), *grants]
        results = [result for result in both if not result.admin]
        before = self._results.pop(key, [])
        if results:
            self._results[key] = results
        for result in before:
            self._count(result, -1)
        for result in results:
            self._count(result, 1)
        return {result.device for result in (*before, *results)}

    def _count(self, result: AllocatedDevice | DeviceGrant, sign: int) -> None:
        device, before = result.device, self._is_in_use(result.device)
        results = self._exclusive_results if result.consumed is None else self._share_results
        results[device] = results.get(device, 0) + sign
        last = not results[device]
        if last:
            del results[device]
        if result.consumed is None:
            (self.exclusive.discard if last else self.exclusive.add)(device)
        elif last:
            del self.shares[device]
        else:
            shares = self.shares.setdefault(device, {})
            for name, amount in result.consumed.items():
                shares[name] = shares.get(name, 0) + sign * amount
        if self._is_in_use(device) != before:
            for name, amount in self._consumed_counters.get(device, {}).items():
                self.remaining[device.pool_key][name] -= sign * amount

    def _is_in_use(self, device: DeviceId) -> bool:
        return device in self.exclusive or device in self.shares

    def excesses(self) -> Iterator[str]:
        """Yield a text for each counter and each capacity of which more is consumed than exists."""
        for pool, counters in self.remaining.items():
            for name, amount in counters.items():
                if amount < 0:
                    yield f"counter {name} of pool {pool} is exceeded by {-amount}/1000"
        for device in self._known.devices:
            for name, amount in self.shares.get(device.id, {}).items():
                excess = amount - device.capacity[name].value if name in device.capacity else amount
                if excess > 0:
                    yield f"capacity {name} of device {device.id} is exceeded by {excess}/1000"


def consumption(device: Device, wish: DeviceWish) -> dict[str, int] | None:
    """Return the capacity that an allocation of the device to the request consumes, by name, or None.

    None means that the device has not all requested capacities, or that a request policy excludes the amount.
    """
    requested = dict(wish.capacity)
    if requested.keys() - device.capacity.keys():
        return None
    consumed: dict[str, int] = {}
    for name, capacity in device.capacity.items():
        amount = _consumed_amount(capacity, requested.get(name))
        if amount is None:
            return None
        consumed[name] = amount
    return consumed


def _consumed_amount(capacity: DeviceCapacity, requested: int | None) -> int | None:
    """Return the requested amount, rounded up to the next valid one, or None if no valid amount is large enough."""
    if requested is None:
        amount = capacity.value if capacity.default is None else capacity.default
    else:
        amount = _rounded_up(capacity, requested)
    if amount == capacity.default:
        return amount
    if capacity.values:
        return amount if amount in capacity.values else None
    if capacity.most is not None and amount > capacity.most:
        return None
    if capacity.step and (_whole(amount) - _whole(capacity.least or 0)) % _whole(capacity.step):
        return None
    return amount


def _rounded_up(capacity: DeviceCapacity, requested: int) -> int:
    if capacity.values:
        return min((value for value in capacity.values if value >= requested), default=requested)
    if capacity.least is None:
        return requested
    if requested < capacity.least:
        return capacity.least
    if not capacity.step:
        return requested
    least, step = _whole(capacity.least), _whole(capacity.step)
    return _WHOLE * (least + step * -(-(_whole(requested) - least) // step))


def _whole(amount: int) -> int:
    """Round an amount up to whole units: steps are counted in whole units."""
    return -(-amount // _WHOLE)
