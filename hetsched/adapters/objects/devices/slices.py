"""Reader of the devices that a ResourceSlice publishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.devices import (
    BindingConditions,
    Device,
    DeviceCapacity,
    DeviceId,
    DevicePlace,
    Value,
)
from hetsched.contracts.objects.node_report import HARD_EFFECTS, Taint

from .. import keys
from ..cel_selectors import is_version, quantity
from ..fields import FieldView
from ..selectors import node_terms

_DEVICE = {
    "name", "attributes", "capacity", "taints", "nodeName", "nodeSelector", "allNodes", "consumesCounters",
    "allowMultipleAllocations", "bindsToNode", "bindingConditions", "bindingFailureConditions",
    keys.EXPORT_BLOCKED,
}  # fmt: skip
_ATTRIBUTES = {"bool": bool, "int": int, "string": str, "version": str}
Plain = dict[str, Any]


def devices_of(spec: FieldView) -> Iterator[Device]:
    """Yield the devices of a slice."""
    driver, pool = spec.text("driver"), spec.view("pool").text("name")
    for device in spec.views("devices"):
        attributes, odd = _attributes(device, driver)
        extra = sorted(set(device.value) - _DEVICE)
        why = device.text(keys.EXPORT_BLOCKED) or (f"devices[].{extra[0]}" if extra else "")
        place = device if spec.flag("perDeviceNodeSelection") else spec
        versions = tuple(
            "/".join(qualified(key, driver))
            for key, holder in device.view("attributes").value.items()
            if isinstance(holder, dict) and "version" in holder
        )
        nodes = _place(place)
        yield Device(
            id=DeviceId(driver, pool, device.text("name")),
            node=nodes.node,
            node_terms=nodes.terms,
            attributes=attributes,
            versions=versions,
            capacity=_capacity(device),
            blocked=why or odd,
            consumes=consumed_counters(device),
            shared=device.flag("allowMultipleAllocations"),
            taints=tuple(filter(None, map(device_taint, device.views("taints")))),
            binds_to_node=device.flag("bindsToNode"),
            binding=_binding_conditions(device),
        )


def places_of(spec: FieldView) -> Iterator[DevicePlace]:
    """Yield the nodes that can access a slice, with `perDeviceNodeSelection` those of each of its devices."""
    yield from map(_place, spec.views("devices") if spec.flag("perDeviceNodeSelection") else [spec])


def _place(view: FieldView) -> DevicePlace:
    node = view.text("nodeName")
    # A slice or a device without any of these fields is on no node.
    return DevicePlace(node, None if node or view.flag("allNodes") else node_terms(view) or ())


def counters(spec: FieldView) -> Iterator[tuple[str, int]]:
    """Yield the shared counters of a slice as `set/counter` and amount in thousandths."""
    for each in spec.views("sharedCounters"):
        yield from _amounts(each, each.text("name"))


def consumed_counters(device: FieldView) -> dict[str, int]:
    """Return the amounts (in thousandths) of the counters that a device consumes, by `set/counter`."""
    return dict(pair for each in device.views("consumesCounters") for pair in _amounts(each, each.text("counterSet")))


def _amounts(holder: FieldView, name: str) -> Iterator[tuple[str, int]]:
    counters = holder.view("counters")
    for counter in counters.value:
        yield f"{name}/{counter}", quantity(counters.view(counter).text("value"))


def device_taint(taint: FieldView) -> Taint | None:
    """Read a taint; return None if its effect, such as `None` or an unknown one, does not prevent allocations."""
    effect = taint.text("effect")
    return Taint(taint.text("key"), taint.text("value"), effect) if effect in HARD_EFFECTS else None


def _binding_conditions(device: FieldView) -> BindingConditions | None:
    required = device.texts("bindingConditions")
    return BindingConditions(required, device.texts("bindingFailureConditions")) if required else None


def _attributes(device: FieldView, driver: str) -> tuple[dict[str, Value], str]:
    """Return attributes by qualified name, and the path of an attribute of unknown type (if any)."""
    found: dict[str, Value] = {}
    odd = ""
    for key, holder in device.view("attributes").value.items():
        facts: Plain = holder if isinstance(holder, dict) else {}
        kind: str = next(iter(facts), "")
        value: Any = facts.get(kind)
        fits = kind in _ATTRIBUTES and type(value) is _ATTRIBUTES[kind]
        if not fits or (kind == "version" and not is_version(value)):
            odd = odd or f"devices[].attributes[{key}].{kind}"
        else:
            found["/".join(qualified(key, driver))] = value
    return found, odd


def _capacity(device: FieldView) -> dict[str, DeviceCapacity]:
    found: dict[str, DeviceCapacity] = {}
    capacity = device.view("capacity")
    for name in capacity.value:
        try:
            found[name] = _one_capacity(capacity.view(name))
        except (InputError, TypeError):
            continue  # this capacity is unreadable, so selectors and requests treat it as absent
    return found


def _one_capacity(view: FieldView) -> DeviceCapacity:
    policy = view.view("requestPolicy")
    valid = policy.view("validRange")
    return DeviceCapacity(
        value=quantity(view.text("value")),
        default=_maybe_quantity(policy, "default"),
        values=tuple(map(quantity, policy.texts("validValues"))),
        least=_maybe_quantity(valid, "min"),
        most=_maybe_quantity(valid, "max"),
        step=_maybe_quantity(valid, "step"),
    )


def _maybe_quantity(view: FieldView, key: str) -> int | None:
    return quantity(view.text(key)) if key in view else None


def qualified(key: str, driver: str) -> tuple[str, str]:
    domain, slash, name = key.rpartition("/")
    return (domain if slash else driver), name
