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

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    Device,
    DeviceId,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
    SameAttribute,
    SelectorVerdict,
    Value,
)

from . import keys
from .cel_selectors import Answer, expression, is_version, quantity, version
from .fields import FieldView

_DEVICE = {"name", "attributes", "capacity", "taints", keys.EXPORT_BLOCKED}
_ATTRIBUTES = {"bool": bool, "int": int, "string": str, "version": str}
_REQUEST = {"deviceClassName", "selectors", "allocationMode", "count", "tolerations", "adminAccess", "name"}
_KEEPS_OFF = ("NoSchedule", "NoExecute")
Plain = dict[str, Any]


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
        self._classes[root.view("metadata").text("name")] = _selectors(root.view("spec"))

    def taint_rule(self, root: FieldView) -> None:
        spec = root.view("spec")
        taint = spec.view("taint")
        if "deviceSelector" in spec and taint.text("effect") in _KEEPS_OFF:
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
        read = [device for spec, pool in current if pool not in incomplete for device in _devices_of(spec)]
        devices = tuple(self._tainted(device) for device in read or self._known.devices)
        classes = {**self._known.classes, **self._classes}
        verdicts = _evaluate(devices, classes, self._claims.values())
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


def _devices_of(spec: FieldView) -> Iterator[Device]:
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
    taints = [taint.text("key") for taint in device.views("taints") if taint.text("effect") in _KEEPS_OFF]
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


def _plain_of(device: Device) -> Plain:
    """Return a device as CEL expressions read it: attributes and capacity by domain and name."""
    attributes: dict[str, Plain] = {}
    for key, value in device.attributes.items():
        domain, _, name = key.rpartition("/")
        attributes.setdefault(domain, {})[name] = version(str(value)) if key in device.versions else value
    capacity: dict[str, Plain] = {}
    for key, amount in device.capacity.items():
        domain, _, name = key.rpartition("/")
        capacity.setdefault(domain, {})[name] = amount
    return {"driver": device.id.driver, "attributes": attributes, "capacity": capacity}


# -- claims ------------------------------------------------------------------------------------------------------------


def resource_claim(root: FieldView, namespace: str) -> ResourceClaim:
    """Read a ResourceClaim; `unsupported` names a feature that is not implemented."""
    meta, devices, status = root.view("metadata"), root.view("spec").view("devices"), root.view("status")
    unsupported: list[str] = []
    requests = tuple(_request(request, unsupported) for request in devices.views("requests"))
    constraints = []
    for constraint in devices.views("constraints"):
        if "matchAttribute" not in constraint or set(constraint.value) - {"matchAttribute", "requests"}:
            unsupported.append(constraint.place(next(iter(set(constraint.value) - {"requests"}), "")))
        constraints.append(
            SameAttribute(constraint.text("matchAttribute"), tuple(constraint.value.get("requests") or ()))
        )
    if sum(max((wish.count for wish in request.wishes), default=0) for request in requests) > MOST_RESULTS:
        unsupported.append(f"{devices.path}: more than {MOST_RESULTS} devices")
    allocation = status.view("allocation")
    results = allocation.view("devices").views("results")
    allocated = tuple(DeviceId(result.text("driver"), result.text("pool"), result.text("device")) for result in results)
    node, elsewhere = _node_of(allocation)
    if elsewhere:
        unsupported.append("status.allocation.nodeSelector")
    return ResourceClaim(
        namespace=namespace,
        name=meta.text("name"),
        uid=meta.text("uid"),
        requests=requests,
        constraints=tuple(constraints),
        allocated=allocated if "allocation" in status else None,
        node=node,
        users=tuple(user.text("uid") for user in status.views("reservedFor")),
        deleting="deletionTimestamp" in meta,
        unsupported=devices.text(keys.EXPORT_UNSUPPORTED) or (unsupported[0] if unsupported else ""),
    )


def _request(request: FieldView, unsupported: list[str]) -> DeviceRequest:
    alternatives = request.views("firstAvailable")
    wishes = alternatives or [request.view("exactly")]
    extra = sorted(set(request.value) - {"name", "exactly", "firstAvailable"})
    if extra:
        unsupported.append(request.place(extra[0]))
    return DeviceRequest(request.text("name"), tuple(_wish(wish, unsupported) for wish in wishes))


def _wish(wish: FieldView, unsupported: list[str]) -> DeviceWish:
    extra = sorted(set(wish.value) - _REQUEST)
    if extra:
        unsupported.append(wish.place(extra[0]))
    if wish.flag("adminAccess"):
        unsupported.append(wish.place("adminAccess"))
    mode = wish.text("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        unsupported.append(wish.place("allocationMode"))
    count = wish.integer("count", 1, least=1)
    return DeviceWish(wish.text("name"), wish.text("deviceClassName"), _selectors(wish), count, mode == "All")


def _node_of(allocation: FieldView) -> tuple[str, bool]:
    """Return the one node that an allocation names, and whether its node selector has an unsupported form."""
    terms = allocation.view("nodeSelector").views("nodeSelectorTerms")
    if not terms:
        return "", False
    fields = terms[0].views("matchFields")
    if len(terms) > 1 or len(fields) != 1 or terms[0].views("matchExpressions"):
        return "", True
    values = fields[0].value.get("values") or []
    if fields[0].text("key") != "metadata.name" or fields[0].text("operator") != "In" or len(values) != 1:
        return "", True
    return str(values[0]), False


def _selectors(holder: FieldView) -> tuple[str, ...]:
    found = []
    for selector in holder.views("selectors"):
        # A selector that is not a CEL expression never matches.
        found.append(selector.view("cel").text("expression") if "cel" in selector else "")
    return tuple(found)


# -- selector results --------------------------------------------------------------------------------------------------


def _evaluate(
    devices: Sequence[Device], classes: dict[str, tuple[str, ...]], claims: Iterable[ResourceClaim]
) -> dict[str, SelectorVerdict]:
    """Return the results of each requested selector for its candidate devices."""
    chains = {
        (*classes.get(wish.device_class, ()), *wish.selectors)
        for claim in claims
        for request in claim.requests
        for wish in request.wishes
    }
    texts = [json.dumps(_plain_of(device), sort_keys=True) for device in devices] if chains else []
    answers: dict[str, dict[int, Answer]] = {}
    for chain in sorted(chains):
        left: Iterable[int] = range(len(devices))
        for selector in chain:
            known = answers.setdefault(selector, {})
            for place in left:
                if place not in known:
                    known[place] = _answer(selector, texts[place])
            left = [place for place in left if known[place][0]]
    return {selector: _verdict(known) for selector, known in answers.items()}


def _verdict(known: dict[int, Answer]) -> SelectorVerdict:
    true = tuple(place for place, (answer, _) in known.items() if answer)
    unknown = tuple(place for place, (answer, _) in known.items() if answer is None)
    return SelectorVerdict(true, unknown, known[unknown[0]][1] if unknown else "")


@lru_cache(maxsize=200_000)
def _answer(selector: str, facts: str) -> Answer:
    return expression(selector).evaluate(json.loads(facts))
