"""Search for the devices of one pod on one node.

Devices are searched request by request, in the order of names, with the first alternative that leads to a solution. The
search stops after `MOST_STEPS` steps and reports that it was stopped.
Source: kube-scheduler's structured allocator (first fit, depth first, at most 32 devices of a claim).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    AttributeConstraint,
    Device,
    DeviceId,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
)
from hetsched.engine.framework.tolerations import repelling

from .device_usage import DeviceUsage

MOST_STEPS = 20_000


class DeviceSearch:
    """Depth-first search for one pod on one node, over the requests of all its claims.

    `matching` returns the indexes of the devices that match a request; `places` are the indexes of the node's devices.
    """

    def __init__(
        self,
        known: Devices,
        matching: Callable[[DeviceWish], frozenset[int]],
        places: Sequence[int],
        usage: DeviceUsage,
        *,
        ignore_taints: bool = False,
    ) -> None:
        self._known = known
        self._matching = matching
        self._places = sorted(places, key=lambda place: known.devices[place].id)
        self._usage = usage
        self._ignore_taints = ignore_taints
        self._chosen: list[tuple[ResourceClaim, str, str, Device]] = []  # claim, request, name in the result, device
        self._used: set[DeviceId] = set()
        self._steps = 0

    def run(self, claims: Sequence[ResourceClaim]) -> list[DeviceGrant] | str:
        requests = [(claim, request) for claim in claims for request in claim.requests]
        if self._request(requests, 0):
            return [
                DeviceGrant(claim.name, claim.uid, name, device.id, None if device.node else device.node_terms or ())
                for claim, _, name, device in self._chosen
            ]
        return "search" if self._steps > MOST_STEPS else "few"

    def _request(self, requests: list[tuple[ResourceClaim, DeviceRequest]], at: int) -> bool:
        if at == len(requests):
            return True
        claim, request = requests[at]
        for wish in request.wishes:
            found = self._candidates(wish)
            if found is None:
                continue
            count = len(found) if wish.all else wish.count
            if count + sum(chosen is claim for chosen, *_ in self._chosen) > MOST_RESULTS:
                continue
            name = f"{request.name}/{wish.name}" if wish.name else request.name
            if self._pick(found, 0, count, (claim, request.name, name), requests, at):
                return True
        return False

    def _candidates(self, wish: DeviceWish) -> list[Device] | None:
        """Return the free devices that match `wish`, or None if there are too few."""
        means, devices = self._matching(wish), self._known.devices
        there = [devices[place] for place in self._places if place in means]
        free = [device for device in there if self._is_usable(wish, device)]
        if wish.all:
            whole = bool(there) and len(free) == len(there) <= MOST_RESULTS and not self._known.incomplete
            return free if whole else None
        return free if len(free) >= wish.count else None

    def _is_usable(self, wish: DeviceWish, device: Device) -> bool:
        """Return whether a device is free and its taints are tolerated."""
        if device.blocked or device.id in self._usage.exclusive or device.id in self._used:
            return False
        return self._ignore_taints or repelling(wish.tolerations, device.taints) is None

    def _pick(
        self,
        among: list[Device],
        since: int,
        remaining: int,
        where: tuple[ResourceClaim, str, str],
        requests: list[tuple[ResourceClaim, DeviceRequest]],
        at: int,
    ) -> bool:
        """Choose `remaining` more devices from index `since` on, then continue with the next request.

        Returns whether devices were found for this request and for all following requests.
        """
        if remaining == 0:
            return self._request(requests, at + 1)
        claim, request, name = where
        for place in range(since, len(among) - remaining + 1):
            self._steps += 1
            if self._steps > MOST_STEPS:
                return False
            device = among[place]
            if not self._has_counters(device) or not self._meets_constraints(claim, (request, name), device):
                continue
            self._chosen.append((claim, request, name, device))
            self._used.add(device.id)
            if self._pick(among, place + 1, remaining - 1, where, requests, at):
                return True
            self._chosen.pop()
            self._used.discard(device.id)
        return False

    def _has_counters(self, device: Device) -> bool:
        """Return whether the counters of the pool suffice for a device in addition to those already chosen."""
        pool = device.id.pool_key
        others = [other.consumes for *_, other in self._chosen if other.consumes and other.id.pool_key == pool]
        return all(
            amount + sum(other.get(name, 0) for other in others) <= self._usage.remaining[pool][name]
            for name, amount in device.consumes.items()
        )

    def _meets_constraints(self, claim: ResourceClaim, names: tuple[str, str], device: Device) -> bool:
        """Return whether a device and those already chosen for the claim satisfy the claim's constraints together.

        `names` are the names of the request and, in the form `request/alternative`, of its alternative.
        """
        return all(self._same(rule, claim, names, device) for rule in claim.constraints)

    def _same(self, rule: AttributeConstraint, claim: ResourceClaim, names: tuple[str, str], device: Device) -> bool:
        if not _applies(rule, names):
            return True
        value = device.attributes.get(rule.attribute)
        others = (
            other.attributes.get(rule.attribute)
            for one, *chosen, other in self._chosen
            if one is claim and _applies(rule, chosen)
        )
        return value is not None and all(type(other) is type(value) and other == value for other in others)


def _applies(rule: AttributeConstraint, names: Sequence[str]) -> bool:
    """Return whether a constraint names the request or its alternative; without requests it applies to all."""
    return not rule.requests or any(name in rule.requests for name in names)
