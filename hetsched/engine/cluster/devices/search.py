"""Search for the devices of one pod on one node.

Devices are searched request by request, in the order of names, with the first alternative that leads to a solution.
The search stops after `MOST_STEPS` steps or `MOST_CHECKS` checks of devices and reports that it was stopped. Pools
with binding conditions follow the other pools, because their pods wait before they are bound.
After each choice, the search checks that all further requests can still get distinct devices, of which each alone is
possible after the choice. Without this check, a late request for scarce devices would be tried with each combination of
the devices of all earlier requests.
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

from .distinct_devices import can_be_distinct
from .usage import DeviceUsage, consumption

MOST_STEPS = 20_000
STOPPED = "search"  # result of a stopped search
MOST_CHECKS = 200_000  # of devices, about half a second


class NodeDevices(NamedTuple):
    """Indexes of the devices that a node can access; `is_complete` is false if slices of one of its pools are missing.

    Requests for all devices then fail, because not all devices are known.
    """

    places: Sequence[int] = ()
    is_complete: bool = True


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


class _Alternative(NamedTuple):
    """An alternative of a request: `needed` of `devices`, which are usable if no other device is chosen."""

    place: _Place
    wish: DeviceWish
    devices: list[Device]
    needed: int


class DeviceSearch:
    """Depth-first search for one pod on one node, over the requests of all its claims.

    `matching` returns the indexes of the devices that match a request, and `node` contains the devices of the node.
    Only requests with admin access get `avoided` devices.
    """

    def __init__(
        self,
        known: Devices,
        matching: Callable[[DeviceWish], frozenset[int]],
        node: NodeDevices,
        usage: DeviceUsage,
        *,
        avoided: Collection[int] = (),
        ignore_taints: bool = False,
    ) -> None:
        self._known = known
        self._matching = matching
        self._is_complete, indexes = node.is_complete, node.places
        self._checks = 0
        devices = [known.devices[index] for index in indexes]
        late = {device.id.pool_key for device in devices if device.binding is not None}
        ids = {index: device.id for index, device in zip(indexes, devices, strict=True)}
        self._indexes = sorted(indexes, key=lambda index: (ids[index].pool_key in late, ids[index]))
        self._usage = usage
        self._avoided = frozenset(known.devices[index].id for index in avoided)
        self._ignore_taints = ignore_taints
        self.has_repelled = False  # whether a taint excluded a free device
        self._requests: list[list[_Alternative]] = []
        self._chosen: list[_Choice] = []
        self._steps = 0

    def run(self, claims: Sequence[ResourceClaim]) -> list[DeviceGrant] | str:
        for claim in claims:
            for request in claim.requests:
                alternatives = [self._alternative(claim, request, wish) for wish in request.wishes]
                self._requests.append([alternative for alternative in alternatives if alternative is not None])
                if not self._requests[-1]:
                    return "few"
        if self._can_serve(0) and self._request(0):
            return [_grant(choice) for choice in self._chosen]
        return STOPPED if self._is_stopped else "few"

    @property
    def _is_stopped(self) -> bool:
        return self._steps > MOST_STEPS or self._checks > MOST_CHECKS

    def _request(self, at: int) -> bool:
        if at == len(self._requests):
            return True
        for alternative in self._requests[at]:
            found, claim = self._free(alternative), alternative.place.claim
            if found is None:
                continue
            if alternative.needed + sum(1 for _ in self._same_claim(claim)) > MOST_RESULTS:
                continue
            if self._pick(found, alternative.needed, alternative, at + 1):
                return True
        return False

    # -- candidates of one request ---------------------------------------------------------------------------------

    def _alternative(self, claim: ResourceClaim, request: DeviceRequest, wish: DeviceWish) -> _Alternative | None:
        """Return an alternative with its usable devices, or None if there are too few."""
        means, devices = self._matching(wish), self._known.devices
        there = [devices[index] for index in self._indexes if index in means]
        if wish.all:
            # A device whose free capacity is too small prevents the request (kube-scheduler since 1.37); a device that
            # is too small without shares is left out.
            there = [device for device in there if _has_capacity(wish, device)]
            if not there or len(there) > MOST_RESULTS or not self._is_complete:
                return None
        place = _Place(claim, request.name, f"{request.name}/{wish.name}" if wish.name else request.name)
        usable = [device for device in there if self._is_usable(device, wish, place)]
        count = len(there) if wish.all else wish.count
        return _Alternative(place, wish, usable, count) if len(usable) >= count else None

    def _is_usable(self, device: Device, wish: DeviceWish, place: _Place) -> bool:
        """Return whether a device is free, its taints are tolerated, and `_is_possible` holds."""
        if device.blocked or (device.id in self._avoided and not wish.admin):
            return False
        if not self._is_free(device, wish, place.claim):  # first, because most devices of a full cluster are in use
            return False
        if not self._ignore_taints and repelling(wish.tolerations, device.taints) is not None:
            self.has_repelled = True
            return False
        return self._is_possible(device, wish, place)

    def _is_possible(self, device: Device, wish: DeviceWish, place: _Place) -> bool:
        """Return whether the counters and constraints permit a device in addition to the chosen devices."""
        if not device.consumes and not place.claim.constraints:
            return True
        choice = self._choice(device, wish, place)
        return self._has_counters(choice) and self._meets_constraints(choice)

    def _free(self, alternative: _Alternative) -> list[Device] | None:
        """Return the devices that are usable in addition to the chosen devices, or None if there are too few."""
        place, wish, devices, count = alternative
        taken = {choice.device.id for choice in self._chosen}
        if taken:
            self._checks += len(devices)
            devices = [
                device
                for device in devices
                if (device.id not in taken or self._is_free(device, wish, place.claim))
                and self._is_possible(device, wish, place)
            ]
        return devices if len(devices) >= count else None

    def _is_free(self, device: Device, wish: DeviceWish, claim: ResourceClaim) -> bool:
        """Return whether a device is not in use, and its capacity suffices in addition to its shares."""
        if not wish.admin and device.id in self._usage.exclusive:
            return False
        chosen = [choice for choice in self._chosen if choice.device.id == device.id]
        shares = [self._usage.shares.get(device.id, {}), *(choice.consumed for choice in chosen if choice.consumed)]
        if not _has_capacity(wish, device, shares):
            return False
        if wish.admin:
            return device.shared or not any(choice.place.claim is claim for choice in chosen)
        return device.shared or not (chosen or device.id in self._usage.shares)

    def _can_serve(self, since: int, rest: tuple[int, Sequence[Device]] = (0, ())) -> bool:
        """Return whether the requests from `since` on, and `rest` (a number of devices among some), can get devices.

        This is necessary, but not sufficient: a device may exclude another by counters and constraints.
        """
        demands = [rest] if rest[0] else []
        for request in self._requests[since:]:
            found = [(each, devices) for each in request if (devices := self._free(each)) is not None]
            if not found:
                return False
            if not any(each.wish.admin for each, _ in found):  # admin access uses no device
                some = {id(device): device for _, devices in found for device in devices}
                demands.append((min(each.needed for each, _ in found), list(some.values())))
        return len(demands) < 2 or can_be_distinct(demands)

    # -- choice of devices -----------------------------------------------------------------------------------------

    def _pick(self, among: Sequence[Device], remaining: int, alternative: _Alternative, following: int) -> bool:
        """Choose `remaining` more devices among these, then continue with the request at `following`.

        Returns whether devices were found for this request and for all following requests.
        """
        if remaining == 0:
            return self._request(following)
        for index in range(len(among) - remaining + 1):
            self._steps += 1
            if self._is_stopped:
                return False
            choice = self._choice(among[index], alternative.wish, alternative.place)
            if not self._has_counters(choice) or not self._meets_constraints(choice):
                continue
            self._chosen.append(choice)
            rest = among[index + 1 :]
            needed = 0 if alternative.wish.admin else remaining - 1
            if self._can_serve(following, (needed, rest)) and self._pick(rest, remaining - 1, alternative, following):
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
