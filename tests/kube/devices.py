"""Devices on a real API server: slices as published by drivers, classes, and claims as created by the controller."""

from __future__ import annotations

import json
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.kube.scene import make

DRIVER = "gpu.example.com"
MERGE = "application/merge-patch+json"


def make_slice(api: Api, node: str, *devices: dict[str, Any], name: str = "", **pool: Any) -> None:
    """Publish the devices of a node."""
    there = {"name": node, "generation": 1, "resourceSliceCount": 1, **pool}
    spec = {"driver": DRIVER, "nodeName": node, "pool": there, "devices": list(devices)}
    make(api, RESOURCE_SLICES, name or f"{node}-{DRIVER}", spec=spec)


def make_shared_slice(
    api: Api, pool: str, *devices: dict[str, Any], name: str = "", count: int = 1, **more: Any
) -> None:
    """Publish devices of a pool for other nodes than one by its name, or the counters of the pool."""
    whole = {"name": pool, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "pool": whole} | ({"devices": list(devices)} if devices else {}) | more
    make(api, RESOURCE_SLICES, name or pool, spec=spec)


def device(name: str, model: str = "a100", fields: dict[str, Any] | None = None, **attributes: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"model": {"string": model}, **{key: {"int": value} for key, value in attributes.items()}}
    memory = {"value": "40Gi" if model == "a100" else "80Gi"}
    return {"name": name, "attributes": facts, "capacity": {"memory": memory}} | (fields or {})


def make_class(api: Api, name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"', **more: Any) -> None:
    make(api, DEVICE_CLASSES, name, spec={"selectors": [{"cel": {"expression": expression}}], **more})


def wish(*selectors: str, kind: str = "gpu", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"deviceClassName": kind, **more}
    if selectors:
        found["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    return found


def make_claim(api: Api, name: str, *requests: dict[str, Any], **more: Any) -> None:
    make(api, RESOURCE_CLAIMS, name, "default", spec={"devices": {"requests": list(requests), **more}})


def exactly(name: str, *selectors: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": wish(*selectors, **more)}


def using(*claims: str) -> list[dict[str, Any]]:
    """Return the `resourceClaims` of a pod."""
    return [{"name": claim, "resourceClaimName": claim} for claim in claims]


def claim_of(api: Api, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(api.get(RESOURCE_CLAIMS.path(namespace="default", name=name)))
    return found


def given(api: Api, name: str) -> list[str]:
    """Return the allocated devices of a claim as `pool/device`."""
    allocation = claim_of(api, name).get("status", {}).get("allocation", {"devices": {"results": []}})
    return sorted(f"{result['pool']}/{result['device']}" for result in allocation["devices"]["results"])


def clear(api: Api) -> None:
    """Delete all device objects, including claims in use."""
    for path in ("/api/v1/nodes", f"{PODS.path(namespace='default')}"):
        api.send("DELETE", path, query={"gracePeriodSeconds": "0"})
    for claim in json.loads(api.get(RESOURCE_CLAIMS.path(namespace="default")))["items"]:
        path = RESOURCE_CLAIMS.path(namespace="default", name=claim["metadata"]["name"])
        empty = {"status": {"reservedFor": None, "allocation": None}}
        api.send("PATCH", f"{path}/status", json.dumps(empty).encode(), content=MERGE)
        api.send("PATCH", path, json.dumps({"metadata": {"finalizers": None}}).encode(), content=MERGE)
        api.send("DELETE", path)
    for resource in (RESOURCE_SLICES, DEVICE_CLASSES):
        api.send("DELETE", resource.path())
