"""Reader of the objects of dynamic resource allocation into `Devices`, with evaluated selectors.

The objects are ResourceSlices, DeviceClasses, DeviceTaintRules and ResourceClaims. Only the slices of a pool's highest
generation are used, and only if all of them are present. A device that needs an unsupported feature (shared counters,
several simultaneous users, binding conditions, a taint, nodes by selector) is kept but never allocated, also if a
DeviceTaintRule adds the taint. A claim that requests an unsupported feature is kept; pods that use the claim are
refused with the name of the field. Unknown fields are treated as unsupported. Selectors are evaluated in order, those
of the class first, and each only for devices that match the previous ones.
Source: Kubernetes resource.k8s.io/v1; kube-scheduler's dynamicresources plugin (pools, order of selectors).
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.devices import Device, DeviceId, Devices, ResourceClaim

from ..fields import FieldView
from .claims import resource_claim, selectors
from .selector_verdicts import selector_verdicts
from .slices import KEEPS_OFF, devices_of


class DeviceReader:
    """Reader of the objects of one file or cluster; `known` contains devices of a cluster that claims may refer to."""

    def __init__(self, known: Devices | None = None) -> None:
        self._known = known or Devices()
        self._slices: list[tuple[FieldView, str]] = []
        self._classes: dict[str, tuple[str, ...]] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._taint_rules: list[_TaintRule] = []

    def slice(self, root: FieldView) -> None:
        spec = root.view("spec")
        self._slices.append((spec, f"{spec.text('driver')}/{spec.view('pool').text('name')}"))

    def device_class(self, root: FieldView) -> None:
        self._classes[root.view("metadata").text("name")] = selectors(root.view("spec"))

    def taint_rule(self, root: FieldView) -> None:
        spec = root.view("spec")
        taint = spec.view("taint")
        if "deviceSelector" in spec and taint.text("effect") in KEEPS_OFF:
            self._taint_rules.append(_TaintRule(spec.view("deviceSelector"), taint.text("key")))

    def claim(self, root: FieldView, namespace: str) -> None:
        found = resource_claim(root, namespace)
        self._claims[found.key] = found

    def devices(self) -> Devices:
        """Return the objects read so far, with the results of every selector for its candidate devices."""
        newest: dict[str, int] = {}
        for spec, pool in self._slices:
            newest[pool] = max(newest.get(pool, 0), spec.view("pool").integer("generation"))
        current = [
            (spec, pool) for spec, pool in self._slices if spec.view("pool").integer("generation") == newest[pool]
        ]
        counts: dict[str, int] = {}
        wanted: dict[str, int] = {}
        for spec, pool in current:
            counts[pool] = counts.get(pool, 0) + 1
            wanted[pool] = spec.view("pool").integer("resourceSliceCount", 1)
        incomplete = {pool for pool in counts if counts[pool] != wanted[pool]}
        read = [device for spec, pool in current if pool not in incomplete for device in devices_of(spec)]
        devices = tuple(self._tainted(device) for device in read or self._known.devices)
        classes = {**self._known.classes, **self._classes}
        verdicts = selector_verdicts(devices, classes, self._claims.values())
        return Devices(devices, classes, self._claims, verdicts, tuple(sorted(incomplete)))

    def _tainted(self, device: Device) -> Device:
        """Return a device, blocked if a rule adds a taint to it."""
        taints = [rule.key for rule in self._taint_rules if not device.blocked and rule.selects(device.id)]
        return msgspec.structs.replace(device, blocked=f"taint {taints[0]}") if taints else device


class _TaintRule:
    """A rule that adds a taint to the devices of a selector; an empty selector selects all devices."""

    def __init__(self, selector: FieldView, key: str) -> None:
        self.key = key
        self._driver, self._pool, self._device = (selector.text(name) for name in ("driver", "pool", "device"))

    def selects(self, device: DeviceId) -> bool:
        pairs = (self._driver, device.driver), (self._pool, device.pool), (self._device, device.name)
        return all(wanted in ("", value) for wanted, value in pairs)
