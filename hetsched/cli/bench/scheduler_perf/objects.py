"""Objects of a scheduler_perf workload on an API server: bodies, creation, and deletion of everything created.

Every object has the benchmark's label, by which it is deleted. Differences from scheduler_perf: nodes have labels of
architecture and operating system, and a pod's priority becomes a PriorityClass, because the admission plugin Priority
rejects pods that set the number. The allocatable resources of a node are its capacity by the API server's default.
Source: test/integration/scheduler_perf/util.go and dra.go; test/utils/runners.go (pods and nodes without a template).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_SLICES,
)

from ..cluster_objects import AT_ONCE, LABEL, delete_labelled, labelled_names
from .operations import KINDS

_IN_NAMESPACES = [resource for resource, namespaced in KINDS.values() if namespaced]
_OF_CLUSTER = [NODES, DEVICE_CLASSES, RESOURCE_SLICES, PRIORITY_CLASSES]
_READY = [{"type": "Ready", "status": "True"}]
_REQUESTS = {"cpu": "100m", "memory": "500Mi"}
_CONTAINER = {"name": "pause", "image": "registry.k8s.io/pause:3.10.1"}
BASE_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"generateName": "node-"},
    "status": {"capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"}, "conditions": _READY},
}
BASE_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "pod-"},
    "spec": {
        "containers": [
            {
                **_CONTAINER,
                "ports": [{"containerPort": 80}],
                "resources": {"limits": _REQUESTS, "requests": _REQUESTS},
            }
        ]
    },
}
WARM_UP = "hetsched-bench-warm-up"


class ObjectFactory:
    """Creates objects on an API server, with names that are unique in one run; safe for use from several threads.

    `scheduler` is the schedulerName of all pods. Methods raise ApiFailure.
    """

    def __init__(self, api: Api, scheduler: str) -> None:
        self.nodes: list[str] = []
        self._api = api
        self._scheduler = scheduler
        self._numbers = itertools.count()
        self._namespaces: set[str] = set()
        self._priorities: set[int] = set()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an object with a name, the benchmark's label and the facts that schedulers need."""
        meta = body.setdefault("metadata", {})
        if "name" not in meta:
            meta["name"] = f"{meta.pop('generateName', 'object-')}{next(self._numbers):06}"
        labels = meta.setdefault("labels", {})
        labels[LABEL] = "1"
        if body["kind"] == NODES.kind:
            for key, value in (("hostname", meta["name"]), ("arch", "amd64"), ("os", "linux")):
                labels.setdefault(f"kubernetes.io/{key}", value)
        elif body["kind"] == PODS.kind:
            body["spec"]["schedulerName"] = self._scheduler
            if (priority := body["spec"].pop("priority", None)) is not None:
                body["spec"]["priorityClassName"] = self._priority_class(priority)
        return body

    def create(self, body: dict[str, Any], namespace: str = "") -> str:
        """Create a completed object; return its name."""
        resource, namespaced = KINDS[body["kind"]]
        name: str = body["metadata"]["name"]
        self.post(resource, body, namespace if namespaced else "")
        if resource is NODES:
            self.nodes.append(name)
        return name

    def create_many(self, bodies: Sequence[dict[str, Any]], namespace: str = "") -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda body: self.create(body, namespace), bodies))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Request the deletion of an object; an absent object is not an error."""
        resource, namespaced = KINDS[kind]
        path = resource.path(namespace=namespace if namespaced else "", name=name)
        with _absent():
            self._api.send("DELETE", path)

    def namespace(self, name: str, body: dict[str, Any] | None = None) -> None:
        """Create a namespace, from a template's object if given, unless it exists."""
        if name in self._namespaces:
            return
        self._namespaces.add(name)
        found = body or {"apiVersion": "v1", "kind": NAMESPACES.kind}
        found.setdefault("metadata", {})["name"] = name
        self.post(NAMESPACES, self.complete(found))

    def device_slice(self, driver: str, node: str, devices: int) -> None:
        """Create the ResourceSlice of a node, with the attributes and the capacity of scheduler_perf's driver."""

        def device(number: int) -> dict[str, Any]:
            attributes = {
                "model": {"string": "A100"},
                "family": {"string": "GPU"},
                "driverVersion": {"version": "1.2.3"},
                "dra.example.com/numa": {"int": number},
            }
            return {"name": f"instance-{number}", "attributes": attributes, "capacity": {"memory": {"value": "1Gi"}}}

        spec = {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": 1, "generation": 0},
            "devices": [device(number) for number in range(devices)],
        }
        body = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind, "metadata": {"name": node}}
        self.post(RESOURCE_SLICES, self.complete({**body, "spec": spec}))

    def warm_up(self) -> str:
        """Create a node and a pod that tolerates its taint; return the key of the pod."""
        taint = {"key": LABEL, "value": "warm-up", "effect": "NoSchedule"}
        node = {**BASE_NODE, "metadata": {"name": WARM_UP}, "spec": {"taints": [taint]}}
        self.namespace(WARM_UP)
        self.post(NODES, self.complete(node))
        spec = {"containers": [_CONTAINER], "tolerations": [{"key": LABEL, "operator": "Exists"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": WARM_UP}, "spec": spec}
        self.post(PODS, self.complete(pod), WARM_UP)
        return f"{WARM_UP}/{WARM_UP}"

    def end_warm_up(self) -> None:
        self._api.send("DELETE", NODES.path(name=WARM_UP))
        self._api.send("DELETE", PODS.path(namespace=WARM_UP, name=WARM_UP), query={"gracePeriodSeconds": "0"})

    def post(self, resource: Resource, body: dict[str, Any] | bytes, namespace: str = "") -> None:
        """Create a completed object, or its JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._api.send("POST", resource.path(namespace=namespace), data)

    def _priority_class(self, value: int) -> str:
        name = f"hetsched-bench-{value}"
        if value not in self._priorities:
            self._priorities.add(value)
            body = {"apiVersion": PRIORITY_CLASSES.api_version, "kind": PRIORITY_CLASSES.kind, "value": value}
            self.post(PRIORITY_CLASSES, self.complete({**body, "metadata": {"name": name}}))
        return name


def delete_all(api: Api) -> None:
    """Delete all objects with the benchmark's label and all objects in its namespaces, then these namespaces.

    Without a namespace controller, a namespace ends when its finalizer is removed. Raises: ApiFailure.
    """
    namespaces = labelled_names(api, NAMESPACES)
    for resource in _IN_NAMESPACES:
        with _absent():
            delete_labelled(api, resource, all_in=namespaces)
    for resource in _OF_CLUSTER:
        with _absent():
            delete_labelled(api, resource)
    for name in namespaces:
        body = {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": name}, "spec": {"finalizers": []}}
        with _absent():
            api.send("DELETE", NAMESPACES.path(name=name))
            api.send("PUT", NAMESPACES.path(name=name, part="finalize"), json.dumps(body).encode())


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """Context manager that ignores a failure with status 404: an absent object, or a kind that is not served."""
    try:
        yield
    except ApiFailure as failure:
        if failure.status != 404:
            raise
