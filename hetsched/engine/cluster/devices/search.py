"""Search for the devices of one pod on one node.

Devices are searched request by request, in the order of names, with the first alternative that leads to a solution. The
search stops after `MOST_STEPS` steps and reports that it was stopped. Pools with binding conditions follow the other
pools, because their pods wait before they are bound.
Source: kube-scheduler's structured allocator (first fit, depth first, at most 32 devices of a claim).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    AttributeConstraint,
    Device,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
)
from hetsched.engine.framework.tolerations import repelling

from .usage import DeviceUsage, consumption

MOST_STEPS = 20_000


class _Place(NamedTuple):
    """Position of a request in the search: its claim, its name, and its name with the alternative in the result."""

    claim: ResourceClaim
    request: str
    name: str


class _Choice(NamedTuple):
    """A device chosen for a request; `consumed` is its consumed capacity, None unless the device is shared.

    `takes_counters` is False for further shares of a device, because the first share consumed its counters.
    """

    place: _Place
    device: Device
    admin: bool
    consumed: dict[str, int] | None
    takes_counters: bool


class DeviceSearch:
    """Depth-first search for one pod on one node, over the requests of all its claims.

    `matching` returns the indexes of the devices that match a request; `indexes` are those of the node's devices. Only
    requests with admin access get `avoided` devices.
    """

    def __init__(
        self,
        known: Devices,
        matching: Callable[[DeviceWish], frozenset[int]],
        indexes: Sequence[int],
        usage: DeviceUsage,
        *,
        avoided: Collection[int] = (),
        ignore_taints: bool = False,
    ) -> None:
        self._known = known
        self._matching = matching
        devices = [known.devices[index] for index in indexes]
        late = {device.id.pool_key for device in devices if device.binding is not None}
        ids = {index: device.id for index, device in zip(indexes, devices, strict=True)}
        self._indexes = sorted(indexes, key=lambda index: (ids[index].pool_key in late, ids[index]))
        self._usage = usage
        self._avoided = frozenset(known.devices[index].id for index in avoided)
        self._ignore_taints = ignore_taints
        self._chosen: list[_Choice] = []
        self._steps = 0

    def run(self, claims: Sequence[ResourceClaim]) -> list[DeviceGrant] | str:
        requests = [(claim, request) for claim in claims for request in claim.requests]
        if self._request(requests, 0):
            return [_grant(choice) for choice in self._chosen]
        return "search" if self._steps > MOST_STEPS else "few"

    def _request(self, requests: list[tuple[ResourceClaim, DeviceRequest]], at: int) -> bool:
        if at == len(requests):
            return True
        claim, request = requests[at]
        for wish in request.wishes:
            found = self._candidates(wish, claim)
            if found is None:
                continue
            count = len(found) if wish.all else wish.count
            if count + sum(choice.place.claim is claim for choice in self._chosen) > MOST_RESULTS:
                continue
            name = f"{request.name}/{wish.name}" if wish.name else request.name
            place = _Place(claim, request.name, name)
            if self._pick(found, 0, count, wish, place, lambda: self._request(requests, at + 1)):
                return True
        return False

    # -- candidates of one request ---------------------------------------------------------------------------------

    def _candidates(self, wish: DeviceWish, claim: ResourceClaim) -> list[Device] | None:
        """Return the free devices that match `wish`, or None if there are too few."""
        means, devices = self._matching(wish), self._known.devices
        there = [devices[index] for index in self._indexes if index in means]
        if wish.all:
            # A device whose free capacity is too small prevents the request (kube-scheduler since 1.37); a device that
            # is too small without shares is left out.
            there = [device for device in there if _has_capacity(wish, device)]
        free = [device for device in there if self._is_usable(wish, claim, device)]
        if wish.all:
            whole = bool(there) and len(free) == len(there) <= MOST_RESULTS and not self._known.incomplete
            return free if whole else None
        return free if len(free) >= wish.count else None

    def _is_usable(self, wish: DeviceWish, claim: ResourceClaim, device: Device) -> bool:
        """Return whether a device is free, its taints are tolerated and its capacity suffices."""
        if device.blocked or not self._is_free(wish, claim, device):
            return False
        if device.id in self._avoided and not wish.admin:
            return False
        if not self._ignore_taints and repelling(wish.tolerations, device.taints) is not None:
            return False
        shares = [self._usage.shares.get(device.id, {})]
        shares += [choice.consumed for choice in self._chosen if choice.consumed and choice.device.id == device.id]
        return _has_capacity(wish, device, shares)

    def _is_free(self, wish: DeviceWish, claim: ResourceClaim, device: Device) -> bool:
        chosen = [] if device.shared else [choice for choice in self._chosen if choice.device.id == device.id]
        if wish.admin:
            return not any(choice.place.claim is claim for choice in chosen)
        if not device.shared and device.id in self._usage.shares:
            return False
        return not chosen and device.id not in self._usage.exclusive

    # -- choice of devices -----------------------------------------------------------------------------------------

    def _pick(
        self,
        among: list[Device],
        since: int,
        remaining: int,
        wish: DeviceWish,
        place: _Place,
        following: Callable[[], bool],
    ) -> bool:
        """Choose `remaining` more devices from index `since` on, then continue with the following requests.

        Returns whether devices were found for this request and for all following requests.
        """
        if remaining == 0:
            return following()
        for index in range(since, len(among) - remaining + 1):
            self._steps += 1
            if self._steps > MOST_STEPS:
                return False
            choice = self._choice(among[index], wish, place)
            if not self._has_counters(choice) or not self._meets_constraints(choice):
                continue
            self._chosen.append(choice)
            if self._pick(among, index + 1, remaining - 1, wish, place, following):
                return True
            self._chosen.pop()
        return False

    def _choice(self, device: Device, wish: DeviceWish, place: _Place) -> _Choice:
        has_shares = device.shared and (
            device.id in self._usage.shares or any(choice.device.id == device.id for choice in self._chosen)
        )
        consumed = consumption(device, wish) if device.shared else None
        return _Choice(place, device, wish.admin, consumed, bool(device.consumes) and not has_shares)

    def _has_counters(self, choice: _Choice) -> bool:
        """Return whether the counters of the pool suffice for a choice in addition to the earlier ones."""
        if not choice.takes_counters:
            return True
        pool = choice.device.id.pool_key
        others = [
            other.device.consumes for other in self._chosen if other.takes_counters and other.device.id.pool_key == pool
        ]
        return all(
            amount + sum(other.get(name, 0) for other in others) <= self._usage.remaining[pool][name]
            for name, amount in choice.device.consumes.items()
        )

    def _meets_constraints(self, choice: _Choice) -> bool:
        """Return whether a choice and the earlier ones for the claim satisfy the claim's constraints together."""
        return all(self._meets(constraint, choice) for constraint in choice.place.claim.constraints)

    def _meets(self, constraint: AttributeConstraint, choice: _Choice) -> bool:
        if not _applies(constraint, choice.place):
            return True
        value = _value(constraint, choice)
        return value is not None and all(
            (_value(constraint, other) == value) is not constraint.distinct
            for other in self._same_claim(choice.place.claim)
            if _applies(constraint, other.place)
        )

    def _same_claim(self, claim: ResourceClaim) -> Iterator[_Choice]:
        return (choice for choice in self._chosen if choice.place.claim is claim)


def _applies(constraint: AttributeConstraint, place: _Place) -> bool:
    """Return whether a constraint names the request or its alternative; without requests it applies to all."""
    return not constraint.requests or place.request in constraint.requests or place.name in constraint.requests


def _value(constraint: AttributeConstraint, choice: _Choice) -> tuple[type, bool, object] | None:
    """Return the attribute of a device, so that values of different types differ, or None if it is absent."""
    value = choice.device.attributes.get(constraint.attribute)
    if value is None:
        return None
    return type(value), constraint.attribute in choice.device.versions, value


def _has_capacity(wish: DeviceWish, device: Device, shares: Sequence[Mapping[str, int]] = ()) -> bool:
    """Return whether the capacity suffices for the request in addition to the shares."""
    if not device.shared and not wish.capacity:
        return True
    consumed = consumption(device, wish)
    if consumed is None:
        return False
    return all(
        amount + sum(share.get(name, 0) for share in shares) <= device.capacity[name].value
        for name, amount in consumed.items()
    )


def _grant(choice: _Choice) -> DeviceGrant:
    claim, device = choice.place.claim, choice.device
    node_terms = None if device.node or device.binds_to_node else device.node_terms or ()
    return DeviceGrant(
        claim=claim.name,
        uid=claim.uid,
        request=choice.place.name,
        device=device.id,
        node_terms=node_terms,
        admin=choice.admin,
        consumed=choice.consumed,
        binding=device.binding,
    )
