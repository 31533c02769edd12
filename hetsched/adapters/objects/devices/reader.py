"""Reader of the objects of dynamic resource allocation into `Devices`, with evaluated selectors.

The objects are ResourceSlices, DeviceClasses, DeviceTaintRules and ResourceClaims. Only the slices of a pool's highest
generation are used, and only if all of them are present and readable. DeviceTaintRules add taints to the devices that
they select. A device with an unknown field is kept but never allocated. A claim that requests an unsupported feature is
kept; pods that use the claim are refused with the name of the field. Unknown fields are treated as unsupported.
Selectors are evaluated in order, those of the class first, and each only for devices that match the previous ones.
Source: Kubernetes resource.k8s.io/v1; kube-scheduler's dynamicresources plugin (pools, order of selectors).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.devices import Device, DevicePlace, Devices, ResourceClaim
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.times import seconds

from ..fields import FieldView
from .claims import resource_claim, selectors
from .selector_verdicts import evaluate, is_supported, selector_chains, selector_verdicts
from .slices import DeviceSlice, device_taint, pool_and_generation, read_slice, unreadable_slice


class DeviceReader:
    """Reader of the objects of one file or cluster; `known` contains devices of a cluster that claims may refer to."""

    def __init__(self, known: Devices | None = None) -> None:
        self._known = known or Devices()
        self._generations: dict[str, int] = {}  # pool -> its highest generation
        self._slices: list[DeviceSlice] = []  # of the highest generation of each pool
        self._classes: dict[str, tuple[str, ...]] = {}
        self._extended: dict[str, tuple[float, str]] = {}  # resource -> creation and name of the newest class
        self._claims: dict[str, ResourceClaim] = {}
        self._taint_rules: list[_TaintRule] = []

    def pool(self, root: FieldView) -> None:
        """Note the generation of a slice; this precedes `slice` for all slices, because outdated ones are not read."""
        pool, generation = pool_and_generation(root.view("spec"))
        self._generations[pool] = max(generation, self._generations.get(pool, 0))

    def slice(self, root: FieldView) -> None:
        """Read a slice, unless it is outdated. Raises: InputError; the pool of the slice is then incomplete."""
        spec = root.view("spec")
        pool, generation = pool_and_generation(spec)
        if generation < self._generations[pool]:
            return
        try:
            self._slices.append(read_slice(spec))
        except InputError:
            self._slices.append(unreadable_slice(spec))
            raise

    def device_class(self, root: FieldView) -> None:
        meta, spec = root.view("metadata"), root.view("spec")
        name, resource = meta.text("name"), spec.text("extendedResourceName")
        self._classes[name] = selectors(spec)
        if resource:
            # The newest class serves a resource that several classes name, of equally old ones the first by name
            # (extendedresourcecache.go of k8s.io/dynamic-resource-allocation, 1.37).
            created = seconds(meta.text("creationTimestamp")) or 0.0
            rival = self._extended.get(resource)
            if rival is None or (-created, name) < (-rival[0], rival[1]):
                self._extended[resource] = (created, name)

    def taint_rule(self, root: FieldView) -> None:
        spec = root.view("spec")
        taint = device_taint(spec.view("taint"))
        if "deviceSelector" in spec and taint is not None:
            self._taint_rules.append(_TaintRule(spec.view("deviceSelector"), taint))

    def claim(self, root: FieldView, namespace: str) -> None:
        found = resource_claim(root, namespace)
        self._claims[found.key] = found

    def devices(self) -> Devices:
        """Return the objects read so far, with the results of every selector for its candidate devices."""
        counts = Counter(found.pool for found in self._slices)
        incomplete = {found.pool for found in self._slices if found.slices_of_pool != counts[found.pool]}
        read, shared, contradictory = _pools([found for found in self._slices if found.pool not in incomplete])
        classes = {**self._known.classes, **self._classes}
        devices = tuple(self._tainted(device, classes) for device in read or self._known.devices)
        verdicts = selector_verdicts(devices, classes, self._claims.values())
        pools = tuple(sorted(incomplete | contradictory))
        places: dict[str, dict[DevicePlace, None]] = {pool: {} for pool in pools}
        for found in self._slices:
            if found.pool in places:
                places[found.pool] |= dict.fromkeys(found.places)
        places_of_pools = {pool: tuple(some) for pool, some in places.items()}
        extended = self._known.extended | {resource: name for resource, (_, name) in self._extended.items()}
        counters_of_pools = shared if read else self._known.counters
        return Devices(devices, classes, self._claims, verdicts, pools, counters_of_pools, extended, places_of_pools)

    def _tainted(self, device: Device, classes: Mapping[str, tuple[str, ...]]) -> Device:
        """Return a device with the taints of the rules that select it."""
        added = dict.fromkeys(rule.taint for rule in self._taint_rules if rule.selects(device, classes))
        taints = tuple(dict.fromkeys((*device.taints, *added)))
        return device if taints == device.taints else msgspec.structs.replace(device, taints=taints)


def with_claims(known: Devices, claims: dict[str, ResourceClaim]) -> Devices:
    """Return the devices with other claims, as if all objects were read again."""
    before = selector_chains(known.classes, known.claims.values())
    verdicts = known.verdicts
    if selector_chains(known.classes, claims.values()) != before:
        verdicts = selector_verdicts(known.devices, known.classes, claims.values())
    return msgspec.structs.replace(known, claims=claims, verdicts=verdicts)


def _pools(slices: Sequence[DeviceSlice]) -> tuple[list[Device], dict[str, dict[str, int]], set[str]]:
    """Return the devices and the counters of pools, and the contradictory pools, whose devices are left out.

    A pool is contradictory if two devices or two counters have the same name, or a device consumes an absent counter.
    """
    devices: dict[str, list[Device]] = {}
    shared: dict[str, dict[str, int]] = {}
    contradictory: set[str] = set()
    for found in slices:
        devices.setdefault(found.pool, []).extend(found.devices)
        for name, amount in found.counters:
            if name in shared.setdefault(found.pool, {}):
                contradictory.add(found.pool)
            shared[found.pool][name] = amount
    for pool, some in devices.items():
        names = {device.id for device in some}
        if len(names) < len(some) or any(device.consumes.keys() - shared.get(pool, {}).keys() for device in some):
            contradictory.add(pool)
    valid = [device for pool, some in devices.items() if pool not in contradictory for device in some]
    return valid, {pool: amounts for pool, amounts in shared.items() if pool not in contradictory}, contradictory


class _TaintRule:
    """A rule that adds a taint to the devices of a selector; an empty selector selects all devices.

    Kubernetes 1.34 (`v1alpha3`) also selects devices by a device class and by CEL expressions. As in its scheduler, the
    rule does not select a device for which an expression fails. An expression that hetsched does not support is treated
    as true, so that no tainted device is allocated.
    """

    def __init__(self, selector: FieldView, taint: Taint) -> None:
        self.taint = taint
        self._driver, self._pool, self._device = (selector.text(name) for name in ("driver", "pool", "device"))
        self._class = selector.text("deviceClassName")
        self._selectors = selectors(selector)

    def selects(self, device: Device, classes: Mapping[str, tuple[str, ...]]) -> bool:
        found = device.id
        pairs = (self._driver, found.driver), (self._pool, found.pool), (self._device, found.name)
        if any(wanted not in ("", value) for wanted, value in pairs):
            return False
        if self._class and self._class not in classes:
            return False
        return all(
            evaluate(selector, device) is True or not is_supported(selector)
            for selector in (*classes.get(self._class, ()), *self._selectors)
        )
