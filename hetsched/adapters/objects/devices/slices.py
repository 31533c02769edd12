"""Reader of a ResourceSlice and of the devices that it publishes.

Of a slice that cannot be read, the informer uses only the pool, the generation and the readable nodes, so that its pool
is incomplete on these nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

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


class DeviceSlice(NamedTuple):
    """A ResourceSlice.

    `pool` is `driver/pool`. `slices_of_pool` is the number of slices of this generation of the pool, None if the slice
    cannot be read. `counters` contains shared counters as `set/counter` and amount in thousandths.
    """

    pool: str
    slices_of_pool: int | None
    places: tuple[DevicePlace, ...]
    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()


def pool_and_generation(spec: FieldView) -> tuple[str, int]:
    """Return the pool of a slice as `driver/pool`, and its generation. Raises: InputError."""
    pool = spec.view("pool")
    return f"{spec.text('driver')}/{pool.text('name')}", pool.integer("generation")


def read_slice(spec: FieldView) -> DeviceSlice:
    """Read the spec of a slice. Raises: InputError."""
    pool, _ = pool_and_generation(spec)
    count = spec.view("pool").integer("resourceSliceCount", 1)
    return DeviceSlice(pool, count, tuple(_places(spec)), tuple(_devices(spec)), tuple(_counters(spec)))


def unreadable_slice(spec: FieldView) -> DeviceSlice:
    """Return a slice that cannot be read, except its pool, with its readable nodes."""
    pool, _ = pool_and_generation(spec)
    return DeviceSlice(pool, None, tuple(_readable_places(spec)))


def _devices(spec: FieldView) -> Iterator[Device]:
    """Yield the devices of a slice."""
    driver, pool = spec.text("driver"), spec.view("pool").text("name")
    for device in spec.views("devices"):
        attributes, unknown = _attributes(device, driver)
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
            blocked=why or unknown,
            consumes=consumed_counters(device),
            shared=device.flag("allowMultipleAllocations"),
            taints=tuple(filter(None, map(device_taint, device.views("taints")))),
            binds_to_node=device.flag("bindsToNode"),
            binding=_binding_conditions(device),
        )


def _places(spec: FieldView) -> Iterator[DevicePlace]:
    """Yield the nodes that can access a slice, with `perDeviceNodeSelection` those of each of its devices."""
    yield from map(_place, _placed_parts(spec))


def _readable_places(spec: FieldView) -> Iterator[DevicePlace]:
    with suppress(InputError):
        for part in _placed_parts(spec):
            with suppress(InputError):
                yield _place(part)


def _placed_parts(spec: FieldView) -> list[FieldView]:
    """Return the parts of a slice that state their nodes."""
    return spec.views("devices") if spec.flag("perDeviceNodeSelection") else [spec]


def _place(view: FieldView) -> DevicePlace:
    node = view.text("nodeName")
    # A slice or a device without any of these fields is on no node.
    return DevicePlace(node, None if node or view.flag("allNodes") else node_terms(view) or ())


def _counters(spec: FieldView) -> Iterator[tuple[str, int]]:
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
    unknown = ""
    for key, holder in device.view("attributes").value.items():
        facts: Plain = holder if isinstance(holder, dict) else {}
        kind: str = next(iter(facts), "")
        value: Any = facts.get(kind)
        fits = kind in _ATTRIBUTES and type(value) is _ATTRIBUTES[kind]
        if not fits or (kind == "version" and not is_version(value)):
            unknown = unknown or f"devices[].attributes[{key}].{kind}"
        else:
            found["/".join(qualified(key, driver))] = value
    return found, unknown


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
