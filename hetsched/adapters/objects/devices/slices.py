"""Reader of the devices that a ResourceSlice publishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.devices import Device, DeviceId, Value

from .. import keys
from ..cel_selectors import is_version, quantity
from ..fields import FieldView

_DEVICE = {"name", "attributes", "capacity", "taints", keys.EXPORT_BLOCKED}
_ATTRIBUTES = {"bool": bool, "int": int, "string": str, "version": str}
KEEPS_OFF = ("NoSchedule", "NoExecute")
Plain = dict[str, Any]


def devices_of(spec: FieldView) -> Iterator[Device]:
    """Yield the devices of a slice."""
    driver, pool = spec.text("driver"), spec.view("pool").text("name")
    blocked = ""
    if spec.value.get("sharedCounters"):
        blocked = "spec.sharedCounters"
    node, everywhere = spec.text("nodeName"), spec.flag("allNodes")
    if not node and not everywhere:
        blocked = blocked or ("spec.nodeSelector" if "nodeSelector" in spec else "spec.perDeviceNodeSelection")
    for device in spec.views("devices"):
        attributes, odd = _attributes(device, driver)
        extra = sorted(set(device.value) - _DEVICE)
        why = device.text(keys.EXPORT_BLOCKED) or blocked or (f"devices[].{extra[0]}" if extra else "")
        versions = tuple(
            "/".join(_qualified(key, driver))
            for key, holder in device.view("attributes").value.items()
            if isinstance(holder, dict) and "version" in holder
        )
        yield Device(
            id=DeviceId(driver, pool, device.text("name")),
            node=node,
            attributes=attributes,
            versions=versions,
            capacity=_capacity(device, driver),
            blocked=why or _taint(device) or odd,
        )


def _taint(device: FieldView) -> str:
    taints = [taint.text("key") for taint in device.views("taints") if taint.text("effect") in KEEPS_OFF]
    return f"taint {taints[0]}" if taints else ""


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
            found["/".join(_qualified(key, driver))] = value
    return found, odd


def _capacity(device: FieldView, driver: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, holder in device.view("capacity").value.items():
        try:
            found["/".join(_qualified(key, driver))] = quantity(holder["value"])
        except (InputError, KeyError, TypeError):
            continue  # this attribute is unreadable, so selectors treat it as absent
    return found


def _qualified(key: str, driver: str) -> tuple[str, str]:
    domain, slash, name = key.rpartition("/")
    return (domain if slash else driver), name
