"""Anonymised devices, device classes and claims.

Selectors are expressions that may contain arbitrary text. Each expression is replaced by a query for one attribute, and
each device gets that attribute with the expression's result for this device (true or false). If the result is unknown,
the attribute is omitted, so the query has an unknown result as well. Of a device's own attributes, only those that a
constraint compares between devices are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    AttributeConstraint,
    Device,
    DevicePlace,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
    SelectorVerdict,
    Value,
)

from .names import WITHHELD, NameAnonymizer, renamed
from .realms import ATTRIBUTE, ATTRIBUTE_NUMBER, ATTRIBUTE_TEXT, DEVICE_CLAIM, DEVICE_CLASS, POOL, SELECTOR

_DOMAIN = "hetsched.io"  # domain of the generated attributes: each replaces a CEL selector and contains its result


class DeviceNames:
    """Anonymizer of devices, device classes and claims; selectors become queries for attributes with their results."""

    def __init__(self, names: NameAnonymizer) -> None:
        self._names = names

    def devices(self, devices: Devices) -> Devices:
        requested = {
            name
            for claim in devices.claims.values()
            for request in claim.requests
            for wish in request.wishes
            for name, _ in wish.capacity
        }
        compared = {constraint.attribute for claim in devices.claims.values() for constraint in claim.constraints}
        answers: list[dict[str, Value]] = [{} for _ in devices.devices]
        for text, verdict in devices.verdicts.items():
            key, true, unknown = f"{_DOMAIN}/{self._names.of(SELECTOR, text)}", set(verdict.true), set(verdict.unknown)
            for place, fits in enumerate(answers):
                if text and place not in unknown:
                    fits[key] = place in true
        return Devices(
            devices=tuple(
                self._device(device, fits, compared, requested)
                for device, fits in zip(devices.devices, answers, strict=True)
            ),
            classes={
                self._names.of(DEVICE_CLASS, name): renamed(self._selector_text, texts)
                for name, texts in devices.classes.items()
            },
            claims={
                self._names.key_of(DEVICE_CLAIM, key): self._device_claim(found)
                for key, found in devices.claims.items()
            },
            verdicts={
                self._selector_text(text): SelectorVerdict(found.true, found.unknown, WITHHELD if found.unknown else "")
                for text, found in devices.verdicts.items()
            },
            incomplete=renamed(self._pool, devices.incomplete),
            incomplete_places={
                self._pool(pool): renamed(self._place, places) for pool, places in devices.incomplete_places.items()
            },
            counters={self._pool(pool): self._counters(counters) for pool, counters in devices.counters.items()},
            extended={
                self._names.resource(resource): self._names.of(DEVICE_CLASS, name)
                for resource, name in devices.extended.items()
            },
        )

    def _counters(self, amounts: Mapping[str, int]) -> dict[str, int]:
        return {
            "/".join(self._names.of(ATTRIBUTE, part) for part in name.split("/")): amount
            for name, amount in amounts.items()
        }

    def _pool(self, pool: str) -> str:
        driver, slash, name = pool.partition("/")
        return f"{self._names.driver(driver)}{slash}{self._names.of(POOL, name)}"

    def _place(self, place: DevicePlace) -> DevicePlace:
        return DevicePlace(self._names.node(place.node), self._names.node_terms(place.terms))

    def _selector_text(self, text: str) -> str:
        """Return an expression that reads the attribute in which the result of the selector `text` is stored."""
        name = self._names.of(SELECTOR, text)
        return f'device.attributes["{_DOMAIN}"]["{name}"]' if name else ""

    def _device(self, device: Device, answers: Mapping[str, Value], compared: set[str], requested: set[str]) -> Device:
        """Return a renamed device with its selector results (`answers`), and what constraints and requests read.

        These are the attributes that constraints compare, and the capacity that requests name or shares consume.
        """
        equal = {
            self._attribute(key): self._attribute_value(value)
            for key, value in device.attributes.items()
            if key in compared
        }
        return Device(
            id=self._names.device_id(device.id),
            node=self._names.node(device.node),
            attributes={**answers, **equal},
            blocked=WITHHELD if device.blocked else "",
            node_terms=self._names.node_terms(device.node_terms),
            capacity={
                self._names.of(ATTRIBUTE, name): capacity
                for name, capacity in device.capacity.items()
                if device.shared or name in requested
            },
            consumes=self._counters(device.consumes),
            shared=device.shared,
            binds_to_node=device.binds_to_node,
            binding=self._names.binding_conditions(device.binding),
            taints=renamed(self._names.taint, device.taints),
        )

    def _attribute(self, key: str) -> str:
        name = self._names.of(ATTRIBUTE, key)
        return f"example.com/{name}" if "/" in key else name

    def _attribute_value(self, value: Value) -> Value:
        if isinstance(value, bool):
            return value
        return (
            self._names.of(ATTRIBUTE_TEXT, value)
            if isinstance(value, str)
            else int(self._names.of(ATTRIBUTE_NUMBER, str(value)))
        )

    def _device_claim(self, claim: ResourceClaim) -> ResourceClaim:
        return ResourceClaim(
            namespace=self._names.namespace(claim.namespace),
            name=self._names.of(DEVICE_CLAIM, claim.name),
            uid=self._names.uid(claim.uid),
            requests=tuple(
                DeviceRequest(self._names.request_name(request.name), renamed(self._wish, request.wishes))
                for request in claim.requests
            ),
            constraints=tuple(
                AttributeConstraint(
                    self._attribute(constraint.attribute),
                    renamed(self._names.request_name, constraint.requests),
                    constraint.distinct,
                )
                for constraint in claim.constraints
            ),
            allocated=None if claim.allocated is None else renamed(self._allocated, claim.allocated),
            node_terms=self._names.node_terms(claim.node_terms),
            users=renamed(self._names.uid, claim.users),
            deleting=claim.deleting,
            unsupported=WITHHELD if claim.unsupported else "",
        )

    def _allocated(self, found: AllocatedDevice) -> AllocatedDevice:
        return AllocatedDevice(
            self._names.device_id(found.device),
            found.admin,
            self._names.capacity(found.consumed),
            WITHHELD if found.not_ready else "",
        )

    def _wish(self, wish: DeviceWish) -> DeviceWish:
        return DeviceWish(
            name=self._names.request_name(wish.name),
            device_class=self._names.of(DEVICE_CLASS, wish.device_class),
            selectors=renamed(self._selector_text, wish.selectors),
            count=wish.count,
            all=wish.all,
            tolerations=renamed(self._names.toleration, wish.tolerations),
            capacity=tuple(sorted((self._names.of(ATTRIBUTE, name), amount) for name, amount in wish.capacity)),
            admin=wish.admin,
        )
