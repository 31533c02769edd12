"""Effective resource requests of a pod.

Containers run together. Init containers run one after the other, each together with the sidecars started before it. If
R(c) are the requests of container c (limits replace missing requests),
    request = max(sum R(containers) + sum R(sidecars), max over init i of (R(i) + sum R(sidecars before i))) + overhead,
and pod-level resources replace this sum for the resources that they state. For scoring, a container without a CPU or
memory request is treated as if it requested 100m or 200Mi. Every pod requests one `pods`. Sidecars keep their
resources; other init containers release theirs to the next one. During an in-place resize, the request of the pod is
the maximum of three sums: its spec, the resources that the kubelet allocated and the resources that the kubelet
actuated. If the kubelet reports the resize as infeasible, the spec is ignored.
Source: k8s.io/component-helpers resource.PodRequests with UseStatusResources (1.37);
pkg/scheduler/util/pod_resources.go; pkg/apis/core/helper/qos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.devices import ExtendedRequest
from hetsched.contracts.objects.pinned_memory import is_memory
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.contracts.spelling import nearest, suggestion
from hetsched.contracts.units import (
    CPU,
    DISK_MBPS,
    EPHEMERAL_STORAGE,
    GPU_RESOURCES,
    MEMORY,
    NETWORK_MBPS,
    PODS,
    is_extended,
)

from .fields import FieldView, unique_names

MAX_CONTAINERS = 64
NONZERO_CPU_MILLIS = 100
NONZERO_MEMORY_BYTES = 200 * 1024 * 1024

Amounts = dict[str, int]

_GROUPS = ("containers", "initContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses")
_STANDARD = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_ABBREVIATED = 0.6  # minimum similarity of a suggestion; low, so that `mem` suggests `memory`


class PodAmounts(msgspec.Struct, frozen=True):
    """Effective requests in base units, the amounts for scoring, and the quality-of-service class.

    `containers` lists the containers with resources that a node can align, and `container_names` their names; an
    unnamed container is called `main`. `extended` lists the extended resources of these containers.
    """

    requests: tuple[tuple[str, int], ...]
    nonzero_cpu_millis: int
    nonzero_memory_bytes: int
    qos: str
    containers: tuple[ContainerDemand, ...] = ()
    container_names: tuple[str, ...] = ()
    extended: tuple[ExtendedRequest, ...] = ()

    @property
    def guaranteed(self) -> bool:
        """Return whether a kubelet with the static CPU manager policy would give the pod exclusive CPUs."""
        return self.qos == "Guaranteed" and any(container.cpus for container in self.containers)


class _Container(msgspec.Struct, frozen=True):
    requests: Amounts
    limits: Amounts
    sidecar: bool = False
    name: str = ""


def is_resized(spec: FieldView, status: FieldView) -> bool:
    """Return whether the kubelet's status changes the requests of the spec.

    The caller must already have validated both with `pod_amounts`.
    """
    if _differ(spec.value, status) or _resize_infeasible(status):
        return True
    reported = [
        view
        for group in _STATUSES
        for view in status.views(group)
        if "resources" in view or "allocatedResources" in view
    ]
    if not reported:
        return False
    containers = [container or {} for group in _GROUPS for container in spec.value.get(group) or ()]
    stated = {container.get("name") or "": container for container in containers}
    pairs = ((stated.get(view.text("name")), view) for view in reported)
    return any(container is not None and _differ(container, view) for container, view in pairs)


def _differ(stated: dict[str, Any], reported: FieldView) -> bool:
    if "resources" not in reported and "allocatedResources" not in reported:
        return False
    requests = (stated.get("resources") or {}).get("requests") or {}
    allocated = reported.value.get("allocatedResources") or requests
    actual = (reported.view("resources").value.get("requests") or {}) if "resources" in reported else allocated
    return bool(actual != requests or allocated != requests)


def pod_amounts(spec: FieldView, overhead: Amounts, status: FieldView | None = None) -> PodAmounts:
    """Sum up a pod's containers; with `status`, include in-place resizes.

    Raises: InputError for an object that the API server would reject.
    """
    containers = _containers(spec, "containers")
    if not containers:
        spec.fail("must have at least one container", "containers", hint="Add a container with a name and an image")
    init = _containers(spec, "initContainers")
    if len(containers) + len(init) > MAX_CONTAINERS:
        message = Message("may have at most {n} containers", n=MAX_CONTAINERS)
        spec.fail(message, "containers", code="TooManyContainers", hint="Split the pod into several pods")
    whole = _container(spec) if "resources" in spec else None
    resize = _Resize(status)
    total = resize.of_containers(containers, init)
    nonzero = resize.of_containers(containers, init, _scored)
    if whole is not None:
        requests = resize.of_pod(_stated_requests(spec))
        stated = {r: amount for r, amount in whole.limits.items() if r not in total} | requests
        total |= stated
        nonzero |= {r: stated[r] for r in (CPU, MEMORY) if r in stated}
    pooled = whole is not None and any(map(_is_pod_level, whole.requests))
    if pooled:
        # Containers without a request then count only if neither the pod nor a container states the resource
        # (`getNonMissingContainerRequests` of kube-scheduler).
        asked = [resource for resource in (CPU, MEMORY) if resource in total or resource in overhead]
        nonzero |= {resource: total.get(resource, 0) for resource in asked}
    for resource, amount in overhead.items():
        total[resource] = total.get(resource, 0) + amount
    total[PODS] = 1
    qos = _qos([*containers, *init] if whole is None else [whole])
    shared = {"pooled": pooled, "guaranteed": qos == "Guaranteed"}
    started = [
        *((c, container_demand(c.requests, c.limits, init=not c.sidecar, **shared)) for c in init),
        *((c, container_demand(c.requests, c.limits, **shared)) for c in containers),
    ]
    aligned = [(position, c, demand) for position, (c, demand) in enumerate(started) if demand is not None]
    return PodAmounts(
        requests=tuple(sorted((resource, amount) for resource, amount in total.items() if amount)),
        nonzero_cpu_millis=nonzero.get(CPU, 0) + overhead.get(CPU, 0),
        nonzero_memory_bytes=nonzero.get(MEMORY, 0) + overhead.get(MEMORY, 0),
        qos=qos,
        containers=tuple(demand for _, _, demand in aligned),
        container_names=tuple(c.name or "main" for _, c, _ in aligned),
        extended=tuple(
            request
            for place, (position, c, demand) in enumerate(aligned)
            for request in extended_requests(c.requests, place, position, short_lived=demand.init)
        ),
    )


class _Resize:
    """In-place resizes of a pod as the kubelet reports them; empty if the pod has no status.

    The stated, allocated and actual requests are summed up for the whole pod, and the largest sum counts.
    Source: kubernetes component-helpers resource/helpers.go (1.37).
    """

    def __init__(self, status: FieldView | None) -> None:
        self._status = FieldView({}) if status is None else status
        self._containers = {view.text("name"): view for group in _STATUSES for view in self._status.views(group)}
        self._infeasible = _resize_infeasible(self._status)

    def of_containers(
        self,
        containers: Sequence[_Container],
        init: Sequence[_Container],
        completed: Callable[[Amounts], Amounts] = lambda requests: requests,
    ) -> Amounts:
        """Return the effective requests of all containers; `completed` changes the requests of each container."""

        def total(requests_of: Callable[[_Container], Amounts]) -> Amounts:
            before = [(completed(requests_of(c)), c.sidecar) for c in init]
            return _effective([completed(requests_of(c)) for c in containers], before)

        stated = {} if self._infeasible else total(lambda container: container.requests)
        if "allocatedResources" in self._status and "requests" in self._status.view("resources"):
            return _largest(stated, *self._of_status())
        if self._containers or self._infeasible:
            return _largest(stated, total(self._allocated), total(self._actual))
        return stated

    def of_pod(self, stated: Amounts) -> Amounts:
        """Return the effective pod-level requests; resources without support at the pod level only as stated."""
        if not stated or "resources" not in self._status:
            return stated
        largest = _largest({} if self._infeasible else stated, *self._of_status())
        return {
            resource: amount for resource, amount in largest.items() if resource in stated or _is_pod_level(resource)
        }

    def _of_status(self) -> tuple[Amounts, Amounts]:
        return self._status.amounts("allocatedResources"), self._status.view("resources").amounts("requests")

    def _allocated(self, container: _Container) -> Amounts:
        reported = self._containers.get(container.name)
        if reported is not None and "allocatedResources" in reported:
            return reported.amounts("allocatedResources")
        return {} if self._infeasible else container.requests

    def _actual(self, container: _Container) -> Amounts:
        reported = self._containers.get(container.name)
        if reported is not None and "requests" in (resources := reported.view("resources")):
            return resources.amounts("requests")
        return self._allocated(container)


def _resize_infeasible(status: FieldView) -> bool:
    pending = (c for c in status.views("conditions") if c.text("type") == "PodResizePending")
    return any(condition.text("reason") == "Infeasible" for condition in pending)


def _largest(*sums: Amounts) -> Amounts:
    found: Amounts = {}
    for amounts in sums:
        for resource, amount in amounts.items():
            found[resource] = max(amount, found.get(resource, 0))
    return found


def _is_pod_level(resource: str) -> bool:
    """Return whether the kubelet supports a resource at the pod level."""
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def container_demand(
    requests: Amounts, limits: Amounts, *, init: bool = False, pooled: bool = False, guaranteed: bool = False
) -> ContainerDemand | None:
    """Return the resources of a container that a node can align, or None if it has none.

    They are whole CPUs with an equal limit, devices, and the memory of a `guaranteed` pod. `pooled` states that the pod
    has pod-level resources: the kubelet then assigns neither exclusive CPUs nor memory, unless its alpha feature
    PodLevelResourceManagers is enabled (`policy_static.go` of both managers, 1.36).
    """
    cpu = requests.get(CPU, 0)
    cpus = cpu // 1000 if not pooled and cpu % 1000 == 0 and limits.get(CPU) == cpu else 0
    cards = sum(requests.get(resource, 0) for resource in GPU_RESOURCES)
    devices = tuple(
        (resource, amount)
        for resource, amount in sorted(requests.items())
        if amount and is_extended(resource) and resource not in GPU_RESOURCES
    )
    memory: tuple[tuple[str, int], ...] = ()
    if guaranteed and not pooled:
        memory = tuple((name, amount) for name, amount in sorted(requests.items()) if amount and is_memory(name))
    if not (cpus or cards or devices or memory):
        return None
    return ContainerDemand(cpus, requests.get(MEMORY, 0), cards, init, devices, memory)


def extended_requests(
    requests: Amounts, container: int, position: int, *, short_lived: bool = False
) -> Iterator[ExtendedRequest]:
    """Yield the extended resources of one container, by name."""
    for rank, (resource, amount) in enumerate(sorted(requests.items())):
        if amount and is_extended(resource):
            yield ExtendedRequest(container, position, resource, rank, amount, short_lived)


def _stated_requests(spec: FieldView) -> Amounts:
    return spec.view("resources").amounts("requests")


def _containers(spec: FieldView, key: str) -> list[_Container]:
    views = spec.views(key)
    if len(views) > 1:
        unique_names((view for view in views if "name" in view), "two containers are named {name}")
    return [_container(view) for view in views]


def _container(view: FieldView) -> _Container:
    if "name" in view:
        view.name(label=True)
    view.text("image")
    resources = view.view("resources")
    requests, limits = resources.amounts("requests"), resources.amounts("limits")
    for amounts, field in ((requests, "requests"), (limits, "limits")):
        for resource in amounts:
            if resource not in _STANDARD and "/" not in resource and not resource.startswith("hugepages-"):
                resources.view(field).fail(
                    "is not a container resource", resource, code="ResourceNameInvalid", hint=_resource_hint(resource)
                )
    for resource, amount in requests.items():
        limit = limits.get(resource)
        if limit is not None and (amount > limit or (amount != limit and is_extended(resource))):
            equal = is_extended(resource)
            message = "must be equal to the limit" if equal else "must not exceed the limit"
            remedy = "Set both to {amount}" if equal else "Set the request to {amount} or less, or raise the limit"
            hint = Message(remedy, amount=str(resources.view("limits").value[resource]))
            resources.view("requests").fail(message, resource, code="RequestAboveLimit", hint=hint)
    return _Container(limits | requests, limits, view.value.get("restartPolicy") == "Always", view.text("name"))


def _resource_hint(resource: str) -> str:
    """Return the hint for an invalid resource name: `cpus` suggests cpu, `gpu` the vendors' resources."""
    known = (*sorted(_STANDARD), *GPU_RESOURCES, NETWORK_MBPS, DISK_MBPS)
    near = nearest(resource, {name.rpartition("/")[2] for name in known}, cutoff=_ABBREVIATED)
    if not near:
        return Message("Use a standard resource, or write DOMAIN/NAME")
    return suggestion(*(name for name in known if name.rpartition("/")[2] == near))


def _scored(requests: Amounts) -> Amounts:
    return {CPU: requests.get(CPU, NONZERO_CPU_MILLIS), MEMORY: requests.get(MEMORY, NONZERO_MEMORY_BYTES)}


def _effective(containers: Iterable[Amounts], init: list[tuple[Amounts, bool]]) -> Amounts:
    total: Amounts = {}
    for requests in containers:
        _add(total, requests)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for requests, sidecar in init:
        if sidecar:
            _add(total, requests)
            _add(sidecars, requests)
            step = sidecars
        else:
            step = _add(dict(sidecars), requests)
        for resource, amount in step.items():
            peak[resource] = max(amount, peak.get(resource, 0))
    for resource, amount in peak.items():
        total[resource] = max(amount, total.get(resource, 0))
    return total


def _add(total: Amounts, more: Amounts) -> Amounts:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount
    return total


def _qos(containers: list[_Container]) -> str:
    requests: Amounts = {}
    limits: Amounts = {}
    bounded = True
    for container in containers:
        _add(requests, {r: a for r, a in container.requests.items() if a and r in (CPU, MEMORY)})
        own = {r: a for r, a in container.limits.items() if a and r in (CPU, MEMORY)}
        bounded = bounded and len(own) == 2
        _add(limits, own)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if bounded and requests == limits else "Burstable"
