"""What a pod asks of the node's resources.

Problem: containers run together, init containers one after the other beside the sidecars started before them.
Rule: with R(c) the requests of a container (its limits where it states no request), S the sidecars so far,
    request = max(sum R(containers) + sum R(sidecars), max over init i of R(i) + sum of S before i) + overhead,
pod-level resources in place of that for what they state. Scoring counts a container without a CPU or memory request
as 100m or 200Mi. Every pod takes one of `pods`. Sidecars keep what they hold, other init containers hand it on.
Source: k8s.io/component-helpers resource.PodRequests; pkg/scheduler/util/pod_resources.go; pkg/apis/core/helper/qos.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched.contracts.units import CPU, EPHEMERAL_STORAGE, GPU_RESOURCES, MEMORY, PODS, is_extended
from hetsched.contracts.workload import ContainerDemand

from .fields import View, unique_names

MAX_CONTAINERS = 64
NONZERO_CPU_MILLIS = 100
NONZERO_MEMORY_BYTES = 200 * 1024 * 1024

Amounts = dict[str, int]

_STANDARD = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})


class PodAmounts(msgspec.Struct, frozen=True):
    """Effective requests in base units, what scoring counts, and the quality-of-service class.

    `containers` are those that a node can align, `container_names` theirs; one without a name is called `main`.
    """

    requests: tuple[tuple[str, int], ...]
    nonzero_cpu_millis: int
    nonzero_memory_bytes: int
    qos: str
    containers: tuple[ContainerDemand, ...] = ()
    container_names: tuple[str, ...] = ()

    @property
    def guaranteed(self) -> bool:
        """Tell whether a kubelet that pins would give the pod CPUs of its own."""
        return self.qos == "Guaranteed" and any(container.cpus for container in self.containers)


class _Container(msgspec.Struct, frozen=True):
    requests: Amounts
    limits: Amounts
    sidecar: bool = False
    name: str = ""


def pod_amounts(spec: View, overhead: Amounts) -> PodAmounts:
    """Add up a pod's containers.

    Raises: InputError for what the API server would refuse.
    """
    containers = _containers(spec, "containers")
    if not containers:
        spec.fail("must have at least one container", "containers")
    init = _containers(spec, "initContainers")
    if len(containers) + len(init) > MAX_CONTAINERS:
        spec.fail(f"may have at most {MAX_CONTAINERS} containers", "containers", code="TooManyContainers")
    whole = _container(spec) if "resources" in spec else None
    total = _effective(((c.requests for c in containers)), [(c.requests, c.sidecar) for c in init])
    nonzero = _effective((_scored(c.requests) for c in containers), [(_scored(c.requests), c.sidecar) for c in init])
    if whole is not None:
        stated = {r: amount for r, amount in whole.limits.items() if r not in total} | _stated_requests(spec)
        total |= stated
        nonzero |= {r: stated[r] for r in (CPU, MEMORY) if r in stated}
    for resource, amount in overhead.items():
        total[resource] = total.get(resource, 0) + amount
    total[PODS] = 1
    aligned = [
        (name, demand)
        for name, demand in (
            *((c.name, container_demand(c.requests, c.limits, init=not c.sidecar)) for c in init),
            *((c.name, container_demand(c.requests, c.limits)) for c in containers),
        )
        if demand is not None
    ]
    return PodAmounts(
        requests=tuple(sorted((resource, amount) for resource, amount in total.items() if amount)),
        nonzero_cpu_millis=nonzero[CPU] + overhead.get(CPU, 0),
        nonzero_memory_bytes=nonzero[MEMORY] + overhead.get(MEMORY, 0),
        qos=_qos([*containers, *init] if whole is None else [whole]),
        containers=tuple(demand for _, demand in aligned),
        container_names=tuple(name or "main" for name, _ in aligned),
    )


def container_demand(requests: Amounts, limits: Amounts, *, init: bool = False) -> ContainerDemand | None:
    """Return what a node can align for a container, None if nothing: whole CPUs with an equal limit, and cards."""
    cpu = requests.get(CPU, 0)
    cpus = cpu // 1000 if cpu % 1000 == 0 and limits.get(CPU) == cpu else 0
    cards = sum(requests.get(resource, 0) for resource in GPU_RESOURCES)
    return ContainerDemand(cpus, requests.get(MEMORY, 0), cards, init) if cpus or cards else None


def _stated_requests(spec: View) -> Amounts:
    return spec.view("resources").amounts("requests")


def _containers(spec: View, key: str) -> list[_Container]:
    views = spec.views(key)
    if len(views) > 1:
        unique_names((view for view in views if "name" in view), "containers")
    return [_container(view) for view in views]


def _container(view: View) -> _Container:
    if "name" in view:
        view.name(label=True)
    view.text("image")
    resources = view.view("resources")
    requests, limits = resources.amounts("requests"), resources.amounts("limits")
    for amounts, field in ((requests, "requests"), (limits, "limits")):
        for resource in amounts:
            if resource not in _STANDARD and "/" not in resource and not resource.startswith("hugepages-"):
                resources.view(field).fail("is not a resource of containers", resource, code="ResourceNameInvalid")
    for resource, amount in requests.items():
        limit = limits.get(resource)
        if limit is not None and (amount > limit or (amount != limit and is_extended(resource))):
            relation = "equal to" if is_extended(resource) else "at most"
            resources.view("requests").fail(f"must be {relation} its limit", resource, code="RequestAboveLimit")
    return _Container(limits | requests, limits, view.value.get("restartPolicy") == "Always", view.text("name"))


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
