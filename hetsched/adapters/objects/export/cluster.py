"""Export of a `ClusterContent` as Kubernetes objects.

An export is a human-readable file, and reading it gives exactly the same content. Every fact is written to the field it
is read from. A pod gets a single container with its effective request. Facts that a plain object cannot express
(problems found earlier, the amounts for scoring) are written to `hetsched.io/export-*` annotations, but only if the
object without the annotation would read back differently.
Invariants: `read(write_cluster(content)) == content` for all content that was read from files; the text is one JSON
`List` with one object per line, in the order of the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hetsched.adapters.metrics import pod_metrics
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.kubelet_options import format_options
from hetsched.contracts.objects.node_report import (
    ZONE_PROBLEM,
    GpuCard,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
)
from hetsched.contracts.objects.pinned_memory import format_kinds
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodGroup
from hetsched.contracts.units import CPU, format_amount

from .. import keys
from ..node_images import annotation as image_annotation
from ..node_isa import isa_report
from ..node_topology import POWER_PROBLEM, STATIC_MEMORY
from .devices import device_objects
from .pods import pod_object, tolerations
from .selectors import label_selector
from .storage import csi_node, storage_objects

Plain = dict[str, Any]
NATIVE = "scheduling.k8s.io/v1beta1"


def write_cluster(content: ClusterContent) -> bytes:
    """Format cluster content as one JSON `List`."""
    items = b",\n".join(encode(plain) for plain in cluster_objects(content))
    return b'{"apiVersion":"v1","kind":"List","items":[\n' + items + b"\n]}\n"


def compact_pods(content: ClusterContent) -> list[Plain]:
    """Return the pending pods as the shortest Pod objects that give the same shapes."""
    return [pod_object(pod, compact=True) for pod in content.pending]


def cluster_objects(content: ClusterContent) -> Iterator[Plain]:
    """Yield every object of the cluster content."""
    for name in sorted(content.namespaces.keys() | content.namespace_policies.keys()):
        policy = content.namespace_policies.get(name)
        meta = {"name": name, "labels": content.namespaces.get(name, {})}
        yield _object("v1", "Namespace", meta | ({"annotations": {keys.POLICY: policy}} if policy else {}))
    for name, priority in sorted(content.priority_classes.items()):
        body: Plain = {"value": priority.value, "globalDefault": priority.default}
        if not priority.preempts:
            body["preemptionPolicy"] = "Never"
        yield _object("scheduling.k8s.io/v1", "PriorityClass", {"name": name}, body)
    for name, runtime in sorted(content.runtime_classes.items()):
        yield _object(
            "node.k8s.io/v1",
            "RuntimeClass",
            {"name": name},
            {
                "handler": name,
                "overhead": {"podFixed": amounts(dict(runtime.overhead))},
                "scheduling": {
                    "nodeSelector": dict(runtime.node_selector),
                    "tolerations": tolerations(runtime.tolerations),
                },
            },
        )
    for key, group in sorted(content.pod_groups.items()):
        namespace, _, name = key.partition("/")
        meta = {"name": name, "namespace": namespace}
        if group.native:
            yield _object(NATIVE, "PodGroup", meta, {"spec": _native_group(group)})
            continue
        stated: Plain = {"minMember": group.min_member}
        if group.timeout_seconds is not None:
            stated["scheduleTimeoutSeconds"] = group.timeout_seconds
        if group.min_resources:
            stated["minResources"] = amounts(dict(group.min_resources))
        yield _object("scheduling.x-k8s.io/v1alpha1", "PodGroup", meta, {"spec": stated})
    for name, levels in sorted(content.topologies.items()):
        spec = {"levels": [{"nodeLabel": level} for level in levels]}
        yield _object("kueue.x-k8s.io/v1beta1", "Topology", {"name": name}, {"spec": spec})
    yield from storage_objects(content.storage)
    yield from device_objects(content.devices)
    for quota in content.quotas:
        bounds = {"min": amounts(dict(quota.min)), "max": amounts(dict(quota.max))}
        meta = {"name": quota.name, "namespace": quota.namespace}
        yield _object("scheduling.x-k8s.io/v1alpha1", "ElasticQuota", meta, {"spec": bounds})
    for budget in content.budgets:
        wanted: Plain = {"minAvailable": budget.desired_healthy}
        if budget.selector is not None:
            wanted["selector"] = label_selector(budget.selector)
        meta = {"name": budget.name, "namespace": budget.namespace}
        yield _object("policy/v1", "PodDisruptionBudget", meta, {"spec": wanted})
    for policy_spec in content.policies:
        yield policy_object(policy_spec)
    for node in content.nodes:
        yield from node_objects(node)
    for pod in content.running + content.pending:
        yield pod_object(pod)
    for usage in content.pod_usages:
        yield pod_metrics(usage)


def _native_group(group: PodGroup) -> Plain:
    spec: Plain = {"schedulingPolicy": {"gang": {"minCount": group.min_member}}}
    if group.required_topology:
        spec["schedulingConstraints"] = {"topology": [{"key": group.required_topology}]}
    if group.disruption_mode == "All":
        spec["disruptionMode"] = {"all": {}}
    if group.unsupported:
        # The content records only that the field is set, not its value, so a placeholder is exported.
        spec[group.unsupported.removeprefix("spec.")] = {"export": True}
    return spec


def _object(version: str, kind: str, meta: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> Plain:
    filled = {name: value for name, value in meta.items() if value}
    return {"apiVersion": version, "kind": kind, "metadata": filled, **(body or {})}


def policy_object(policy: PolicySpec) -> Plain:
    """Return a policy as a SchedulingPolicy."""
    spec: Plain = to_plain(policy)
    return _object(keys.GROUP, "SchedulingPolicy", {"name": spec.pop("name")}, {"spec": spec})


def amounts(resources: Mapping[str, int]) -> dict[str, str]:
    """Format amounts in base units as Kubernetes quantities."""
    return {name: format_amount(name, amount) for name, amount in resources.items()}


# -- nodes -----------------------------------------------------------------------------------------------------------


def node_objects(node: NodeReport) -> Iterator[Plain]:
    """Yield a node and the objects that describe it."""
    annotations = dict(node.annotations)
    if isa_report(node.labels, annotations, []) != node.isa:
        # Instruction sets that do not come from the node's labels (but from an agent, say) are written as annotations.
        stated = ((keys.ISA, node.isa.native), (keys.EMULATED_ISA, node.isa.emulated), (keys.CROSS_ISA, node.isa.cross))
        for key, value in stated:
            if value:
                annotations[key] = value if isinstance(value, str) else ",".join(value)
    kept = [problem for problem in node.problems if problem.startswith((ZONE_PROBLEM, POWER_PROBLEM))]
    if kept:
        annotations[keys.EXPORT_PROBLEMS] = encode(kept).decode()
    annotations |= image_annotation(node.image_sizes)
    meta = {"name": node.name, "uid": node.uid, "labels": node.labels, "annotations": annotations}
    spec: Plain = {"taints": [to_plain(taint) for taint in node.taints]} if node.taints else {}
    if node.unschedulable:
        spec["unschedulable"] = True
    ready = "True" if node.ready else "False"
    status: Plain = {"allocatable": amounts(node.allocatable), "conditions": [{"type": "Ready", "status": ready}]}
    if node.declared_features:
        status["declaredFeatures"] = list(node.declared_features)
    if node.kubelet_version:
        status["nodeInfo"] = {"kubeletVersion": node.kubelet_version}
    yield _object("v1", "Node", meta, {"spec": spec, "status": status})
    own = {"name": node.name}
    if node.gpus is not None:
        yield _object(keys.GROUP, "NodeGpu", own, {"spec": {"cards": [card_object(card) for card in node.gpus]}})
    if node.attach_limits:
        yield csi_node(node.name, node.attach_limits)
    if node.numa is not None or node.power is not None:
        topology = topology_object(node.numa, node.power)
        yield _object("topology.node.k8s.io/v1alpha2", "NodeResourceTopology", own, topology)
    if node.usage is not None:
        measured: Plain = {"usage": amounts(node.usage.amounts)}
        measured |= _stated({"observedAt": node.usage.observed_at, "source": node.usage.source})
        if node.usage.stale:
            measured["stale"] = True
        yield _object(keys.GROUP, "NodeUsage", own, measured)


def card_object(card: GpuCard) -> Plain:
    """Return a GPU as an entry of a NodeGpu."""
    facts: Plain = to_plain(card)
    facts["maintenance"] = card.maintenance or None
    facts["links"] = [_stated(link) for link in facts["links"]] or None
    return _stated(facts)


def _stated(facts: Plain) -> Plain:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def topology_object(numa: NumaReport | None, power: PowerReport | None) -> Plain:
    """Return the content of a NodeResourceTopology."""
    stated: list[tuple[str, str | None]] = []
    if numa is not None:
        stated += [
            ("cpuManagerPolicy", numa.cpu_manager_policy),
            ("topologyManagerPolicy", numa.topology_manager_policy),
            ("topologyManagerScope", numa.topology_manager_scope),
            ("reservedSystemCPUs", numa.reserved_cpus),
            ("cpuManagerPolicyOptions", format_options(numa.cpu_manager_options)),
            ("topologyManagerPolicyOptions", format_options(numa.topology_manager_options)),
            ("memoryManagerPolicy", numa.memory_manager_policy),
            ("hetsched.io/sockets", numa.sockets),
            ("hetsched.io/caches", numa.caches),
            ("hetsched.io/kubelet-grants", encode(numa.grants).decode() if numa.grants else None),
        ]
    if power is not None:
        watts = None if power.headroom_watts is None else str(power.headroom_watts)
        stated += [("powerState", power.state), ("powerHeadroomWatts", watts)]
    zones = {} if numa is None else {"zones": [_zone(zone) for zone in numa.zones]}
    return {"attributes": _pairs(stated), **zones}


def _zone(zone: NumaZone) -> Plain:
    offline = None if zone.offline_capacity_millis is None else format_amount(CPU, zone.offline_capacity_millis)
    memory = None if zone.assignable is None else format_kinds(zone.assignable)
    stated = (
        ("hetsched.io/cpus", zone.cpus), ("hetsched.io/siblings", zone.siblings), ("offline_capacity", offline),
        (STATIC_MEMORY, memory),
    )  # fmt: skip
    resources = []
    for name in dict.fromkeys((*zone.capacity, *zone.allocatable, *zone.available)):
        parts = (("capacity", zone.capacity), ("allocatable", zone.allocatable), ("available", zone.available))
        resources.append({"name": name} | {key: format_amount(name, of[name]) for key, of in parts if name in of})
    return {
        "name": zone.name,
        "type": "Node",
        **({} if zone.parent is None else {"parent": zone.parent}),
        "costs": [{"name": name, "value": cost} for name, cost in zone.costs.items()],
        "attributes": _pairs(stated),
        "resources": resources,
    }


def _pairs(stated: Iterable[tuple[str, str | None]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in stated if value is not None]
