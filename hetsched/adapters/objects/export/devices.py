"""Export of devices, device classes and claims as objects that read back to the same content.

Each combination of pool and nodes gets one slice. The description of an unsupported feature is exported under a key of
hetsched's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    Device,
    DeviceCapacity,
    DevicePlace,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
)
from hetsched.contracts.objects.node_constraints import NodeTerm

from .. import keys
from .selectors import node_term
from .storage import DELETION_TIME

API = "resource.k8s.io/v1"
Plain = dict[str, Any]
Terms = tuple[NodeTerm, ...] | None
_KINDS = {bool: "bool", int: "int", str: "string"}


def device_objects(devices: Devices) -> Iterator[Plain]:
    """Yield the slices, classes and claims of a cluster."""
    pools: dict[tuple[str, str], dict[tuple[str, Terms], list[Device]]] = {}
    for device in devices.devices:
        there = pools.setdefault((device.id.driver, device.id.pool), {})
        there.setdefault((device.node, device.node_terms), []).append(device)
    number = 0
    for (driver, pool), places in pools.items():
        for (node, terms), some in places.items():
            place = _place(DevicePlace(node, terms))
            count = len(places) + (f"{driver}/{pool}" in devices.counters)
            yield _slice(f"slice-{number}", driver, pool, count, [_device(one) for one in some], place)
            number += 1
    for position, (key, counters) in enumerate(devices.counters.items()):
        driver, _, pool = key.partition("/")
        count = len(pools.get((driver, pool), ())) + 1
        yield _slice(f"counters-{position}", driver, pool, count, [], {"sharedCounters": _counters("name", counters)})
    for position, name in enumerate(devices.incomplete):
        driver, _, pool = name.partition("/")
        partial = devices.incomplete_places.get(name, (DevicePlace(),))
        for part, nodes in enumerate(partial):
            yield _slice(f"part-{position}-{part}", driver, pool, len(partial) + 1, [], _place(nodes))
    resources = {name: resource for resource, name in devices.extended.items()}
    for name, selectors in devices.classes.items():
        extended = {"extendedResourceName": resources[name]} if name in resources else {}
        yield _object("DeviceClass", {"name": name}, {"spec": {"selectors": _selectors(selectors)} | extended})
    for claim in devices.claims.values():
        yield _claim(claim)


def _place(place: DevicePlace) -> Plain:
    if place.node:
        return {"nodeName": place.node}
    return {"allNodes": True} if place.terms is None else {"nodeSelector": _node_selector(place.terms)}


def _slice(name: str, driver: str, pool: str, count: int, devices: list[Plain], place: Plain) -> Plain:
    whole = {"name": pool, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": driver, "pool": whole, "devices": devices, **place}
    return _object("ResourceSlice", {"name": name}, {"spec": spec})


def _device(device: Device) -> Plain:
    plain: Plain = {"name": device.id.name}
    if device.attributes:
        plain["attributes"] = {
            key: {"version" if key in device.versions else _KINDS[type(value)]: value}
            for key, value in device.attributes.items()
        }
    if device.capacity:
        plain["capacity"] = {name: _capacity(found) for name, found in device.capacity.items()}
    if device.shared:
        plain["allowMultipleAllocations"] = True
    if device.consumes:
        plain["consumesCounters"] = _counters("counterSet", device.consumes)
    if device.binds_to_node:
        plain["bindsToNode"] = True
    if device.binding is not None:
        plain["bindingConditions"] = list(device.binding.required)
        plain["bindingFailureConditions"] = list(device.binding.failure)
    if device.taints:
        plain["taints"] = [to_plain(taint) for taint in device.taints]
    return plain | ({keys.EXPORT_BLOCKED: device.blocked} if device.blocked else {})


def _capacity(capacity: DeviceCapacity) -> Plain:
    limits = {"min": capacity.least, "max": capacity.most, "step": capacity.step}
    policy: Plain = {"validRange": {name: f"{limit}m" for name, limit in limits.items() if limit is not None}}
    policy["validValues"] = [f"{value}m" for value in capacity.values]
    if capacity.default is not None:
        policy["default"] = f"{capacity.default}m"
    plain: Plain = {"value": f"{capacity.value}m"}
    stated = {key: part for key, part in policy.items() if part}
    return plain | ({"requestPolicy": stated} if stated else {})


def _counters(key: str, amounts: dict[str, int]) -> list[Plain]:
    """Format amounts by `set/counter` as a list of sets, with the name of a set under `key`."""
    sets: dict[str, Plain] = {}
    for name, amount in amounts.items():
        counter_set, _, counter = name.partition("/")
        sets.setdefault(counter_set, {})[counter] = {"value": f"{amount}m"}
    return [{key: name, "counters": counters} for name, counters in sets.items()]


def _claim(claim: ResourceClaim) -> Plain:
    meta = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
    devices: Plain = {"requests": [_request(request) for request in claim.requests]}
    if claim.constraints:
        devices["constraints"] = [
            {
                "distinctAttribute" if constraint.distinct else "matchAttribute": constraint.attribute,
                "requests": list(constraint.requests),
            }
            for constraint in claim.constraints
        ]
    if claim.unsupported:
        devices[keys.EXPORT_UNSUPPORTED] = claim.unsupported
    status: Plain = {"reservedFor": [{"uid": uid} for uid in claim.users]}
    if claim.allocated is not None:
        results = [_result(place, allocated) for place, allocated in enumerate(claim.allocated)]
        status["allocation"] = {"devices": {"results": results}}
        states = [_state(result, found) for result, found in zip(results, claim.allocated, strict=True)]
        if any(states):
            status["devices"] = [state for state in states if state]
        if claim.node_terms is not None:
            status["allocation"]["nodeSelector"] = _node_selector(claim.node_terms)
    if claim.deleting:
        meta["deletionTimestamp"] = DELETION_TIME
    return _object("ResourceClaim", meta, {"spec": {"devices": devices}, "status": status})


def _result(place: int, allocated: AllocatedDevice) -> Plain:
    device_id = allocated.device
    plain: Plain = {"driver": device_id.driver, "pool": device_id.pool, "device": device_id.name}
    if allocated.admin:
        plain["adminAccess"] = True
    if allocated.consumed is not None:
        plain["shareID"] = f"share-{place}"
        plain["consumedCapacity"] = {name: f"{amount}m" for name, amount in allocated.consumed.items()}
    return plain


def _state(result: Plain, allocated: AllocatedDevice) -> Plain:
    if not allocated.not_ready:
        return {}
    identity = {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}
    return identity | {"conditions": [{"type": "Ready", "status": "False", "reason": allocated.not_ready}]}


def _node_selector(terms: tuple[NodeTerm, ...]) -> Plain:
    return {"nodeSelectorTerms": [node_term(term) for term in terms]}


def _request(request: DeviceRequest) -> Plain:
    if len(request.wishes) == 1 and not request.wishes[0].name:
        return {"name": request.name, "exactly": _wish(request.wishes[0])}
    return {"name": request.name, "firstAvailable": [{"name": wish.name, **_wish(wish)} for wish in request.wishes]}


def _wish(wish: DeviceWish) -> Plain:
    plain: Plain = {"deviceClassName": wish.device_class, "selectors": _selectors(wish.selectors)}
    if wish.tolerations:
        plain["tolerations"] = [to_plain(toleration) for toleration in wish.tolerations]
    if wish.capacity:
        plain["capacity"] = {"requests": {name: f"{amount}m" for name, amount in wish.capacity}}
    if wish.admin:
        plain["adminAccess"] = True
    return plain | {"allocationMode": "All" if wish.all else "ExactCount", "count": wish.count}


def _selectors(texts: tuple[str, ...]) -> list[Plain]:
    return [{"cel": {"expression": text}} for text in texts]


def _object(kind: str, meta: Plain, body: Plain) -> Plain:
    filled = {name: value for name, value in meta.items() if value}
    return {"apiVersion": API, "kind": kind, "metadata": filled, **body}
