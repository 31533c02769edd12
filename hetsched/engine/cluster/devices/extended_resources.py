"""Extended resources that devices of a class serve instead of a device plugin.

A pod can request devices as an extended resource, without a claim. On a node whose allocatable amount of the resource
is zero, devices of the class with this `extendedResourceName` serve it. The pod then gets one claim for all its
resources that devices serve on its node:
    long-lived container       one request for its amount
    short-lived init container the devices of the long-lived containers that start after it, and one more request for
                               all such containers, with the largest number of additional devices
Source: KEP-5004; kube-scheduler's dynamicresources plugin (`createRequestsAndMappings`, 1.37).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.objects.allocation import ClaimedDevices, DeviceMapping, ExtendedClaim
from hetsched.contracts.objects.devices import DeviceRequest, Devices, DeviceWish, ExtendedRequest, ResourceClaim
from hetsched.contracts.objects.workload import PodSpec, Shape

from ..columns import Bools, Ints
from ..state_view import StateView

_MOST_NAME = 63  # characters of a generated name, as of the API server's
_DIGEST = 10  # characters


class ServedNodes(NamedTuple):
    """Nodes (N,) on which devices serve the same extended resources of a pod; `claim` is the claim for these devices.

    On nodes without such resources, `resources` is empty and `claim` is None.
    """

    nodes: Bools
    resources: tuple[str, ...]
    claim: ResourceClaim | None


def served_resources(shape: Shape, known: Devices) -> dict[str, str]:
    """Return the class of each extended resource of a shape that devices may serve."""
    classes = {request.resource: known.class_of(request.resource) for request in shape.extended}
    return {resource: name for resource, name in classes.items() if name}


def nodes_without_plugin(resource: str, state: StateView) -> Bools:
    """Return the nodes (N,) without an allocatable amount of an extended resource, where devices serve it."""
    row = state.resources.index.get(resource)
    if row is None:
        return np.ones(len(state.reports), np.bool_)
    without: Bools = state.columns.field("allocatable")[row] == 0
    return without


def served_nodes(pod: PodSpec, known: Devices, state: StateView) -> Iterator[ServedNodes]:
    """Yield the nodes of a cluster, grouped by the resources that devices serve on them."""
    classes = served_resources(pod.shape, known)
    names = sorted(classes)
    codes: Ints = np.zeros(len(state.reports), np.int64)  # one bit for each resource
    for place, name in enumerate(names):
        codes |= nodes_without_plugin(name, state).astype(np.int64) << place
    for code in np.unique(codes).tolist():
        served = {name: classes[name] for place, name in enumerate(names) if code >> place & 1}
        yield ServedNodes(codes == code, tuple(served), claim_of(pod, served))


def claim_on(pod: PodSpec, known: Devices, state: StateView, row: int) -> ExtendedClaim | None:
    """Return the claim for the extended resources of a pod that devices serve on one node, None if there are none."""
    classes = served_resources(pod.shape, known)
    some = {name: kind for name, kind in classes.items() if nodes_without_plugin(name, state)[row]}
    return extended_claim(pod, some)


def claim_of(pod: PodSpec, classes: Mapping[str, str]) -> ResourceClaim | None:
    """Return the claim of `extended_claim` with requests for the search of devices."""
    found = extended_claim(pod, classes)
    return None if found is None else as_resource_claim(pod.namespace, found)


def as_resource_claim(namespace: str, claim: ExtendedClaim) -> ResourceClaim:
    """Return the claim with requests for the search of devices."""
    requests = tuple(
        DeviceRequest(request.name, (DeviceWish("", request.device_class, count=request.count),))
        for request in claim.requests
    )
    return ResourceClaim(namespace, claim.name, requests=requests)


def extended_claim(pod: PodSpec, classes: Mapping[str, str]) -> ExtendedClaim | None:
    """Return the claim for the extended resources of a pod in `classes`, with the device class of each resource."""
    requests: list[ClaimedDevices] = []
    mappings: list[DeviceMapping] = []
    for resource in sorted(classes):
        some = [request for request in pod.shape.extended if request.resource == resource]
        found = _Requests(pod, classes[resource], some)
        requests += found.requests
        mappings += found.mappings
    if not requests:
        return None
    return ExtendedClaim(claim_name(pod), tuple(sorted(requests, key=lambda request: request.name)), tuple(mappings))


def claim_name(pod: PodSpec) -> str:
    """Return the name of the pod's claim for extended resources.

    The name is always the same for one pod, so that a repeated creation finds the claim of the first one.
    """
    digest = blake2b(f"{pod.namespace}/{pod.name}/{pod.uid}".encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{pod.name}-extended-resources-"[: _MOST_NAME - _DIGEST] + digest


class _Requests:
    """Requests and mappings of the containers for one resource; `some` are in the order of the containers."""

    def __init__(self, pod: PodSpec, device_class: str, some: list[ExtendedRequest]) -> None:
        self._pod = pod
        self._class = device_class
        long_lived = [(request, self._request(request, request.count)) for request in some if not request.short_lived]
        self.mappings = [self._mapping(request, found.name) for request, found in long_lived]
        additional: list[ClaimedDevices] = []
        mapped: list[DeviceMapping] = []
        for request in some:
            if not request.short_lived:
                continue
            missing = request.count
            for later, found in long_lived:
                if later.position > request.position and missing > 0:
                    mapped.append(self._mapping(request, found.name))
                    missing -= found.count
            if missing > 0:
                additional.append(self._request(request, missing))
                mapped.append(self._mapping(request, additional[-1].name))
        largest = max(additional, key=lambda found: found.count, default=None)
        self.requests = [found for _, found in long_lived]
        if largest is not None:
            self.requests.append(largest)
            shared = {found.name for found in additional}
            mapped = [
                msgspec.structs.replace(each, request=largest.name) if each.request in shared else each
                for each in mapped
            ]
        self.mappings += mapped

    def _request(self, request: ExtendedRequest, count: int) -> ClaimedDevices:
        return ClaimedDevices(f"container-{request.position}-request-{request.rank}", self._class, count)

    def _mapping(self, request: ExtendedRequest, name: str) -> DeviceMapping:
        names = self._pod.container_names
        container = names[request.container] if request.container < len(names) else "main"
        return DeviceMapping(container, request.resource, name)
