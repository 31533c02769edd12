"""Fluent builders of contract types for tests.

A test sets only the fields that it tests; all others have a neutral default. A pod requests 1 CPU and 1Gi; a node
offers 8 CPUs, 32Gi and 110 pods and is an x86-64 machine without a reported instruction set. Every method returns the
builder; `build` may be called again after more changes.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from hetsched.adapters.oci.facts import with_demand
from hetsched.contracts.errors import Problem
from hetsched.contracts.message import as_message
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.objects.cards import vendor_of
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm, Toleration
from hetsched.contracts.objects.node_report import (
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    NumaZone,
    Taint,
    Usage,
)
from hetsched.contracts.objects.workload import (
    ContainerDemand,
    GangMember,
    GpuDemand,
    HostPort,
    ImageFacts,
    IsaDemand,
    LabelSelector,
    NumaDemand,
    PodSpec,
    PodTerm,
    PreferredNodeTerm,
    Shape,
    SpreadConstraint,
)
from hetsched.contracts.units import CPU, GPU_RESOURCES, MEMORY, PODS, parse_amount


def a_pod(name: str = "pod", namespace: str = "default") -> PodBuilder:
    """Start a pod that requests 1 CPU and 1Gi."""
    return PodBuilder(name, namespace)


def a_node(name: str = "node") -> NodeBuilder:
    """Start a ready amd64 node with 8 CPUs, 32Gi and a maximum of 110 pods."""
    return NodeBuilder(name)


def matching(**labels: str) -> LabelSelector:
    """Return a selector for all these labels."""
    return LabelSelector(tuple(Expression(key, "In", (value,)) for key, value in sorted(labels.items())))


def a_card(index: int = 0, model: str = "A100-SXM4-40GB", memory_mib: int | None = 40960, **facts: Any) -> GpuCard:
    """Return a healthy GPU; the vendor is derived from the model."""
    return GpuCard(index=index, model=model, memory_mib=memory_mib, **{"vendor": vendor_of(model), **facts})


class PodBuilder:
    def __init__(self, name: str, namespace: str) -> None:
        self._pod = PodSpec(namespace=namespace, name=name, shape=Shape(), qos="Burstable")
        self._requests = {CPU: 1000, MEMORY: 2**30, PODS: 1}
        self._scored: dict[str, int] = {}
        self._containers: tuple[ContainerDemand, ...] | None = None

    def _shape(self, **changes: Any) -> Self:
        self._pod = msgspec.structs.replace(self._pod, shape=msgspec.structs.replace(self._pod.shape, **changes))
        return self

    def having(self, **changes: Any) -> Self:
        """Set fields of the PodSpec itself."""
        self._pod = msgspec.structs.replace(self._pod, **changes)
        return self

    def shaped(self, **changes: Any) -> Self:
        """Set fields of the Shape itself."""
        return self._shape(**changes)

    # -- requests --------------------------------------------------------------------------------------------------

    def cpu(self, quantity: str | int) -> Self:
        return self.requesting(CPU, quantity)

    def memory(self, quantity: str | int) -> Self:
        return self.requesting(MEMORY, quantity)

    def requesting(self, resource: str, quantity: str | int) -> Self:
        self._requests[resource] = parse_amount(resource, quantity)
        return self

    def best_effort(self) -> Self:
        """Request nothing; scoring then assumes 100m and 200Mi."""
        self._requests = {PODS: 1}
        self._scored = {CPU: 100, MEMORY: 200 * 2**20}
        return self.having(qos="BestEffort")

    def guaranteed(self) -> Self:
        """Set CPU and memory limits equal to the requests; whole CPUs can then be exclusive."""
        return self.having(qos="Guaranteed")

    def containers(self, *demands: ContainerDemand) -> Self:
        """Set the requests of each container that a node can align; by default, one container has all requests of the
        pod.
        """
        self._containers = demands
        return self

    def gpu(
        self, count: int = 1, *, milli: int = 1000, memory_mib: int = 0, cores: int = 0, model: str = "",
        exact: bool = False, vendor: str = "",
    ) -> Self:  # fmt: skip
        """Request GPUs; `model` contains terms separated by `|`."""
        models = tuple(model.split("|")) if model else ()
        return self._shape(gpu=GpuDemand(count, milli, memory_mib, cores, models, exact, vendor))

    def isa(self, native: str = "", *, emulated: str = "", cross: str = "", qemu: str = "") -> Self:
        source = "annotation hetsched.io/isa" if native else ""
        return self._shape(isa=IsaDemand(native, emulated, cross, qemu, source))

    def images(self, *images: str | tuple[str, ...]) -> Self:
        """Add images built for these platforms; a text instead of platforms is the reason why they are unknown."""
        names = tuple(f"image-{number}" for number in range(len(images)))
        facts = tuple(
            ImageFacts(name, unknown=said) if isinstance(said, str) else ImageFacts(name, said)
            for name, said in zip(names, images, strict=True)
        )
        shape = with_demand(self._pod.shape, facts)
        return self.having(images=names, image_facts=facts, shape=shape)

    def numa(self, aware: bool | None = True, cpu_policy: str = "none") -> Self:
        return self._shape(numa=NumaDemand(aware, cpu_policy))

    def expecting(self, **use: str) -> Self:
        """Set the expected use: `expecting(cpu="3", memory="2Gi")`."""
        return self._shape(expected_usage=tuple(sorted((name, parse_amount(name, q)) for name, q in use.items())))

    # -- placement constraints -------------------------------------------------------------------------------------

    def labelled(self, **labels: str) -> Self:
        return self.having(labels={**self._pod.labels, **labels})

    def on_nodes_with(self, **labels: str) -> Self:
        selector = {**dict(self._pod.shape.node_selector), **labels}
        return self._shape(node_selector=tuple(sorted(selector.items())))

    def node_affinity(self, *terms: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Self:
        """Require one of the terms; each is a tuple of (key, operator, values)."""
        built = tuple(NodeTerm(tuple(Expression(*expression) for expression in term)) for term in terms)
        return self._shape(node_terms=built)

    def preferring(self, weight: int, key: str, operator: str, *values: str) -> Self:
        term = PreferredNodeTerm(weight, NodeTerm((Expression(key, operator, values),)))
        return self._shape(preferred_nodes=(*self._pod.shape.preferred_nodes, term))

    def tolerating(self, key: str = "", operator: str = "Exists", value: str = "", effect: str = "") -> Self:
        toleration = Toleration(key, operator, value, effect)
        return self._shape(tolerations=(*self._pod.shape.tolerations, toleration))

    def near(self, topology_key: str, *, weight: int = 0, namespaces: tuple[str, ...] = (), **labels: str) -> Self:
        """Add affinity to pods with these labels in the same domain: required, or preferred with a weight."""
        return self._pod_term("affinity", topology_key, weight, namespaces, labels)

    def away_from(self, topology_key: str, *, weight: int = 0, namespaces: tuple[str, ...] = (), **labels: str) -> Self:
        """Add anti-affinity to pods with these labels in the same domain: required, or preferred with a weight."""
        return self._pod_term("anti_affinity", topology_key, -weight, namespaces, labels)

    def _pod_term(
        self, field: str, topology_key: str, weight: int, namespaces: tuple[str, ...], labels: dict[str, str]
    ) -> Self:
        term = PodTerm(topology_key, matching(**labels), namespaces, None, weight)
        field = "preferred_affinity" if weight else field
        return self._shape(**{field: (*getattr(self._pod.shape, field), term)})

    def spread(self, topology_key: str, max_skew: int = 1, *, hard: bool = True, **labels: str) -> Self:
        constraint = SpreadConstraint(topology_key, max_skew, hard, matching(**labels))
        return self._shape(spread=(*self._pod.shape.spread, constraint))

    def host_port(self, port: int, protocol: str = "TCP", ip: str = "0.0.0.0") -> Self:
        return self._shape(host_ports=(*self._pod.shape.host_ports, HostPort(port, protocol, ip)))

    # -- identity --------------------------------------------------------------------------------------------------

    def priority(self, value: int) -> Self:
        return self.having(priority=value)

    def created_at(self, time: str) -> Self:
        return self.having(created_at=time)

    def policy(self, name: str) -> Self:
        return self.having(policy=name, policy_rule="annotation")

    def gang(self, name: str, min_available: int) -> Self:
        return self.having(gang=GangMember(name, min_available))

    def wrong(self, code: str = "IsaUnknownExtension", field: str = "hetsched.io/isa", message: str = "wrong") -> Self:
        """Add a problem to the pod."""
        return self.having(problems=(*self._pod.problems, Problem(code, field, as_message(message))))

    def running_on(self, node: str, *cards: CardGrant) -> Self:
        """Run the pod on `node`, with `cards` as its GPU allocation if given."""
        allocation = Allocation(gpus=cards) if cards else None
        return self.having(node_name=node, allocation=allocation)

    def holding(self, node: str, *zones: ZoneGrant, policy: str | None = None) -> Self:
        """Run the pod on `node`, with these zones and CPUs as its allocation."""
        return self.having(node_name=node, allocation=Allocation(zones=zones, cpu_policy=policy))

    def build(self) -> PodSpec:
        requests = tuple(sorted((name, amount) for name, amount in self._requests.items() if amount))
        scored = {CPU: self._requests.get(CPU, 0), MEMORY: self._requests.get(MEMORY, 0), **self._scored}
        guaranteed = self._pod.qos == "Guaranteed"
        containers = self._only_container(guaranteed) if self._containers is None else self._containers
        shape = msgspec.structs.replace(
            self._pod.shape,
            requests=requests,
            nonzero_cpu_millis=scored[CPU],
            nonzero_memory_bytes=scored[MEMORY],
            containers=containers,
            guaranteed=guaranteed and any(container.cpus for container in containers),
        )
        return msgspec.structs.replace(self._pod, shape=shape)

    def _only_container(self, guaranteed: bool) -> tuple[ContainerDemand, ...]:
        cpu = self._requests.get(CPU, 0)
        cpus = cpu // 1000 if guaranteed and cpu % 1000 == 0 else 0
        cards = sum(self._requests.get(resource, 0) for resource in GPU_RESOURCES)
        size = self._requests.get(MEMORY, 0)
        memory = ((MEMORY, size),) if guaranteed and cpu and size else ()
        return (ContainerDemand(cpus, size, cards, memory=memory),) if cpus or cards or memory else ()


class NodeBuilder:
    def __init__(self, name: str) -> None:
        self._node = NodeReport(
            name=name,
            labels={"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"},
            allocatable={CPU: 8000, MEMORY: 32 * 2**30, PODS: 110},
            isa=IsaReport(native="amd64", source="kubernetes.io/arch", complete=False),
            source="file",
        )

    def having(self, **changes: Any) -> Self:
        """Set fields of the NodeReport itself."""
        self._node = msgspec.structs.replace(self._node, **changes)
        return self

    def cpu(self, quantity: str | int) -> Self:
        return self.offering(CPU, quantity)

    def memory(self, quantity: str | int) -> Self:
        return self.offering(MEMORY, quantity)

    def pods(self, count: int) -> Self:
        return self.offering(PODS, count)

    def offering(self, resource: str, quantity: str | int) -> Self:
        return self.having(allocatable={**self._node.allocatable, resource: parse_amount(resource, quantity)})

    def labelled(self, labels: dict[str, str] | None = None, **more: str) -> Self:
        return self.having(labels={**self._node.labels, **(labels or {}), **more})

    def arch(self, arch: str, native: str | None = None) -> Self:
        """Set the Kubernetes architecture. `native` is the full instruction set; without it, only the base is known."""
        base = {"amd64": "amd64", "arm64": "arm64", "riscv64": "rv64i"}.get(arch)
        self.labelled({"kubernetes.io/arch": arch})
        if native is not None:
            return self.isa(native)
        return self.having(isa=IsaReport(native=base, source="kubernetes.io/arch", complete=base is None))

    def isa(self, native: str | None, *, emulated: tuple[str, ...] = (), cross: tuple[str, ...] = ()) -> Self:
        source = "annotation hetsched.io/isa" if native else ""
        return self.having(isa=IsaReport(native=native, emulated=emulated, cross=cross, source=source))

    def tainted(self, key: str, value: str = "", effect: str = "NoSchedule") -> Self:
        return self.having(taints=(*self._node.taints, Taint(key, value, effect)))

    def cordoned(self) -> Self:
        return self.having(unschedulable=True)

    def not_ready(self) -> Self:
        return self.having(ready=False)

    def gpus(self, count: int, model: str = "A100-SXM4-40GB", memory_mib: int | None = 40960, **facts: Any) -> Self:
        """Add GPUs as listed in a NodeGpu object."""
        cards = self._node.gpus or ()
        more = (a_card(len(cards) + i, model, memory_mib, **facts) for i in range(count))
        return self.having(gpus=(*cards, *more))

    def zone(
        self, name: str, cpus: str | None = None, *, cpu: str = "4", memory: str = "16Gi", siblings: str | None = None,
        offline: str | None = None,
    ) -> Self:  # fmt: skip
        """Add a NUMA zone with all of its CPU and memory allocatable; `offline` is its offline capacity."""
        amounts = {CPU: parse_amount(CPU, cpu), MEMORY: parse_amount(MEMORY, memory)}
        numa = self._node.numa or NumaReport()
        left = None if offline is None else parse_amount(CPU, offline)
        zone = NumaZone(name, cpus, siblings, capacity=amounts, allocatable=amounts, offline_capacity_millis=left)
        return self.having(numa=msgspec.structs.replace(numa, zones=(*numa.zones, zone)))

    def kubelet(
        self, cpu_manager: str | None = None, topology: str | None = None, scope: str | None = None,
        reserved: str | None = None,
    ) -> Self:  # fmt: skip
        """Set the CPU and topology configuration of the node's kubelet."""
        numa = msgspec.structs.replace(
            self._node.numa or NumaReport(),
            cpu_manager_policy=cpu_manager,
            topology_manager_policy=topology,
            topology_manager_scope=scope,
            reserved_cpus=reserved,
        )
        return self.having(numa=numa)

    def using(self, observed_at: str = "2026-11-20T10:00:00Z", **amounts: str) -> Self:
        """Set the measured use: `using(cpu="3", memory="2Gi")`."""
        measured = {name: parse_amount(name, quantity) for name, quantity in amounts.items()}
        return self.having(usage=Usage(measured, observed_at))

    def build(self) -> NodeReport:
        return self._node
