"""Check of device allocations against the objects of a cluster, independent of hetsched's engine.

The check reads the objects as the API stores them and knows only the selectors of the random clusters. Allocations are
added one after the other; each must be valid together with all earlier ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import msgspec

Object = dict[str, Any]
Identity = tuple[str, str, str]  # driver, pool, device
CounterKey = tuple[str, str, str, str]  # driver, pool, counter set, counter

_SUFFIXES = {"m": Fraction(1, 1000), "Ki": Fraction(1024), "Mi": Fraction(1024**2), "Gi": Fraction(1024**3)}


def _attribute(device: Object, driver: str, name: str) -> Any:
    holder = device["attributes"].get(name) or device["attributes"].get(f"{driver}/{name}") or {}
    return next(iter(holder.values()), None)


# The CEL expressions of the random clusters, and their results for a device of a driver.
SELECTORS: dict[str, Callable[[Object, str], bool]] = {
    'device.driver == "gpu.example.com"': lambda _, driver: driver == "gpu.example.com",
    'device.driver == "nic.example.com"': lambda _, driver: driver == "nic.example.com",
    'device.attributes[device.driver].model == "a"': lambda device, driver: _attribute(device, driver, "model") == "a",
    "device.attributes[device.driver].root >= 1": lambda device, driver: _attribute(device, driver, "root") >= 1,
    'device.capacity[device.driver].memory.compareTo(quantity("8")) >= 0': lambda device, _: (
        quantity(device["capacity"]["memory"]["value"]) >= 8
    ),
    "has(device.attributes[device.driver].fast) && device.attributes[device.driver].fast": lambda device, driver: bool(
        _attribute(device, driver, "fast")
    ),
    "device.allowMultipleAllocations": lambda device, _: device.get("allowMultipleAllocations", False),
}


@cache
def quantity(text: str) -> Fraction:
    """Parse a quantity of the random clusters."""
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)


class Published(msgspec.Struct):
    """A device with the slice that publishes it and all its taints."""

    device: Object
    slice: Object
    taints: list[Object]


class Result(msgspec.Struct):
    """One allocated device: `consumed` contains the amounts of a share, None without a share."""

    request: str
    device: Identity
    admin: bool = False
    consumed: dict[str, Fraction] | None = None


class DeviceAllocations:
    """The allocations of a cluster's devices."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self._nodes = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Node"}
        self._classes = {each["metadata"]["name"]: each for each in objects if each["kind"] == "DeviceClass"}
        self.devices, self._counters = _published(objects)
        self._exclusive: set[Identity] = set()
        self._shares: dict[Identity, dict[str, Fraction]] = {}
        self._sharers: Counter[Identity] = Counter()
        self._used: dict[CounterKey, Fraction] = defaultdict(Fraction)

    def on(self, node: str) -> list[Identity]:
        """Return the devices that a node can access."""
        return [found for found, published in self.devices.items() if self._has_access(node, published)]

    def problem(self, claim: Object, node: str, results: Sequence[Result]) -> str:
        """Return why the results are no valid allocation of a claim for a node, or an empty text."""
        devices = claim["spec"]["devices"]
        remaining = list(results)
        chosen: dict[str, list[Result]] = {}
        for request in devices["requests"]:
            names = [
                request["name"],
                *(f"{request['name']}/{each['name']}" for each in request.get("firstAvailable", ())),
            ]
            some = [result for result in remaining if result.request in names]
            remaining = [result for result in remaining if result not in some]
            if len({result.request for result in some}) != 1:
                return f"request {request['name']} has not exactly one alternative"
            alternative = request.get("exactly") or request["firstAvailable"][names.index(some[0].request) - 1]
            if problem := self._request_problem(alternative, node, some):
                return f"request {some[0].request}: {problem}"
            chosen[some[0].request] = some
        if remaining:
            return f"results of unknown requests: {remaining}"
        if len(results) > 32:
            return "more than 32 devices"
        return self._constraint_problem(devices.get("constraints", ()), chosen) or self._capacity_problem(results)

    def add(self, results: Iterable[Result]) -> None:
        """Record an allocation."""
        for result in results:
            if result.admin:
                continue
            if not self._is_in_use(result.device):
                self._count(result.device, 1)
            if result.consumed is None:
                self._exclusive.add(result.device)
                continue
            self._sharers[result.device] += 1
            shares = self._shares.setdefault(result.device, defaultdict(Fraction))
            for name, amount in result.consumed.items():
                shares[name] += amount

    def remove(self, results: Iterable[Result]) -> None:
        """Record the end of an allocation that was added before."""
        for result in results:
            if result.admin:
                continue
            if result.consumed is None:
                self._exclusive.remove(result.device)
            else:
                self._sharers[result.device] -= 1
                for name, amount in result.consumed.items():
                    self._shares[result.device][name] -= amount
                if not self._sharers[result.device]:
                    del self._shares[result.device]
            if not self._is_in_use(result.device):
                self._count(result.device, -1)

    # -- conditions --------------------------------------------------------------------------------------------------

    def _request_problem(self, request: Object, node: str, results: list[Result]) -> str:
        for result in results:
            published = self.devices.get(result.device)
            if published is None:
                return f"{result.device} does not exist"
            if not self._has_access(node, published):
                return f"{node} cannot access {result.device}"
            if not self._matches(request, result.device):
                return f"{result.device} does not match"
            if not all(_tolerated(taint, request) for taint in published.taints):
                return f"{result.device} is tainted"
            if bool(request.get("adminAccess")) != result.admin:
                return "admin access differs"
            if problem := _consumption_problem(request, published.device, result):
                return problem
        if request["allocationMode"] == "ExactCount":
            return "" if len(results) == request["count"] else f"{len(results)} devices"
        return ""

    def _matches(self, request: Object, identity: Identity) -> bool:
        device = self.devices[identity].device
        selectors = [
            *self._classes[request["deviceClassName"]]["spec"].get("selectors", ()),
            *request.get("selectors", ()),
        ]
        return all(SELECTORS[each["cel"]["expression"]](device, identity[0]) for each in selectors)

    def _has_access(self, node: str, published: Published) -> bool:
        place = published.device if published.slice.get("perDeviceNodeSelection") else published.slice
        if "nodeName" in place:
            return bool(place["nodeName"] == node)
        if place.get("allNodes"):
            return True
        if "nodeSelector" not in place:
            return False
        labels = self._nodes[node]["metadata"]["labels"]
        (term,) = place["nodeSelector"]["nodeSelectorTerms"]
        return all(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"])

    def _constraint_problem(self, constraints: Iterable[Object], chosen: dict[str, list[Result]]) -> str:
        for constraint in constraints:
            names = constraint.get("requests")
            results = [
                result
                for request, some in chosen.items()
                for result in some
                if not names or request in names or request.partition("/")[0] in names
            ]
            qualified = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            domain, _, name = qualified.partition("/")
            values = [
                _attribute(self.devices[result.device].device, domain, name) if result.device[0] == domain else None
                for result in results
            ]
            if None in values:
                return f"a device has no {qualified}"
            if any((one == other) != ("matchAttribute" in constraint) for one, other in combinations(values, 2)):
                return f"{constraint} does not hold"
        return ""

    def _capacity_problem(self, results: Sequence[Result]) -> str:
        """Return the problem of devices in use, shares and counters, together with all earlier allocations."""
        exclusive = [result.device for result in results if result.consumed is None and not result.admin]
        shared = {result.device for result in results if result.consumed is not None and not result.admin}
        if len(set(exclusive)) < len(exclusive):
            return "a device is allocated twice"
        if any(map(self._is_in_use, exclusive)) or shared & self._exclusive.union(exclusive):
            return "a device is in use"
        self.add(results)
        problem = self._excess(exclusive, shared)
        self.remove(results)
        return problem

    def _excess(self, exclusive: Iterable[Identity], shared: Iterable[Identity]) -> str:
        """Return the capacity or the counters of which the allocations of these devices use too much."""
        for identity in shared:
            capacity = self.devices[identity].device["capacity"]
            if any(amount > quantity(capacity[name]["value"]) for name, amount in self._shares[identity].items()):
                return f"the capacity of {identity} is exceeded"
        counters = {key for identity in (*exclusive, *shared) for key, _ in self._consumed_counters(identity)}
        exceeded = sorted(key for key in counters if self._used[key] > self._counters[key])
        return f"counters are exceeded: {exceeded}" if exceeded else ""

    def _is_in_use(self, identity: Identity) -> bool:
        return identity in self._exclusive or identity in self._shares

    def _consumed_counters(self, identity: Identity) -> Iterator[tuple[CounterKey, Fraction]]:
        published = self.devices.get(identity)
        for each in published.device.get("consumesCounters", ()) if published else ():
            for counter, amount in each["counters"].items():
                yield (*identity[:2], each["counterSet"], counter), quantity(amount["value"])

    def _count(self, identity: Identity, sign: int) -> None:
        """Count the counters of a device that is now in use, or is not in use any more (`sign` -1)."""
        for key, amount in self._consumed_counters(identity):
            self._used[key] += sign * amount


def _published(
    objects: Iterable[Object],
) -> tuple[dict[Identity, Published], dict[CounterKey, Fraction]]:
    """Return the devices and the counters of the newest slices of each pool."""
    slices = [each["spec"] for each in objects if each["kind"] == "ResourceSlice"]
    rules = [each["spec"] for each in objects if each["kind"] == "DeviceTaintRule"]
    newest: dict[tuple[str, str], int] = {}
    for spec in slices:
        key = spec["driver"], spec["pool"]["name"]
        newest[key] = max(newest.get(key, 0), spec["pool"]["generation"])
    devices: dict[Identity, Published] = {}
    counters: dict[CounterKey, Fraction] = {}
    for spec in slices:
        driver, pool = spec["driver"], spec["pool"]["name"]
        if spec["pool"]["generation"] < newest[driver, pool]:
            continue
        for device in spec.get("devices", ()):
            identity = driver, pool, device["name"]
            added = [rule["taint"] for rule in rules if _selects(rule["deviceSelector"], identity)]
            devices[identity] = Published(device, spec, [*device.get("taints", ()), *added])
        for counter_set in spec.get("sharedCounters", ()):
            for name, amount in counter_set["counters"].items():
                counters[driver, pool, counter_set["name"], name] = quantity(amount["value"])
    return devices, counters


def _selects(selector: Object, identity: Identity) -> bool:
    pairs = zip(("driver", "pool", "device"), identity, strict=True)
    return all(selector.get(key, value) == value for key, value in pairs)


def _tolerated(taint: Object, request: Object) -> bool:
    return taint["effect"] == "None" or any(
        each.get("effect", taint["effect"]) == taint["effect"]
        and each.get("key", taint["key"]) == taint["key"]
        and (each["operator"] == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in request.get("tolerations", ())
    )


def _consumption_problem(request: Object, device: Object, result: Result) -> str:
    """Return the problem of a share: each capacity is consumed, at least as requested, and as the policy permits."""
    if (result.consumed is not None) != device.get("allowMultipleAllocations", False):
        return "only shared devices have shares"
    requested = request.get("capacity", {}).get("requests", {})
    capacities = device["capacity"]
    if requested.keys() - capacities.keys():
        return "a requested capacity is absent"
    for name, capacity in capacities.items():
        least = quantity(requested.get(name, "0"))
        if least > quantity(capacity["value"]):
            return "the device is too small"
        if result.consumed is None:
            continue
        amount, policy = result.consumed[name], capacity.get("requestPolicy", {})
        valid = policy.get("validRange", {})
        if amount < least or amount > quantity(valid.get("max", capacity["value"])):
            return f"{amount} of {name} are consumed"
        if "validValues" in policy and amount not in map(quantity, policy["validValues"]):
            return f"{amount} of {name} is no valid value"
        if "step" in valid and (amount - quantity(valid["min"])) % quantity(valid["step"]):
            return f"{amount} of {name} is no valid step"
    return ""
