"""Export of a `PodSpec` as a Kubernetes Pod.

The pod gets a single container with its effective request, and limits if its QoS class is Guaranteed or the resource is
extended.
Demands are written as annotations, unless a label or a selector already states them. See `export.cluster` for the rest.
Invariant: reading the object gives the same `PodSpec`; reading a compact object gives the same `Shape`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.objects.node_constraints import Toleration
from hetsched.contracts.objects.node_features import (
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_HOST_NETWORK,
    VOLUME_BIND_MOUNT_OPTIONS,
)
from hetsched.contracts.objects.node_images import image_name
from hetsched.contracts.objects.workload import GRACE_SECONDS, GangTopology, PodSpec, PodTerm, Shape, SpreadConstraint
from hetsched.contracts.units import CPU, MEMORY, PODS, format_amount, is_extended

from .. import keys
from ..allocation import by_container, write_allocation, write_topology_result
from ..pod_fields import RESTART_ACTION
from ..pods import MIRROR
from ..requests import NONZERO_CPU_MILLIS, NONZERO_MEMORY_BYTES, container_demand, extended_requests
from .annotations import ExportedContainers
from .selectors import label_selector, node_term
from .storage import DELETION_TIME, inexpressible_templates, pod_volumes

Plain = dict[str, Any]
_ANY_OPTION = "nodev"  # the content records only that a mount has options


def pod_object(pod: PodSpec, *, compact: bool = False) -> Plain:
    """Return a pod as a Kubernetes object; a compact object omits fields that only identify the pod."""
    shape = pod.shape
    annotations = _annotations(pod)
    container, scoring, containers = _container(pod)
    if scoring:
        annotations[keys.EXPORT_SCORING] = scoring
    if containers:
        annotations[keys.EXPORT_CONTAINERS] = containers
    meta: Plain = {"name": pod.name}
    if not compact or pod.namespace != "default":
        meta["namespace"] = pod.namespace
    if pod.labels:
        meta["labels"] = pod.labels
    if annotations:
        meta["annotations"] = annotations
    spec: Plain = {"containers": [container]}
    if further := _further_images(pod):
        spec["initContainers"] = [{"name": f"image-{i}", "image": image} for i, image in enumerate(further, start=1)]
    if pod.scheduler_name != keys.SCHEDULER:
        spec["schedulerName"] = pod.scheduler_name
    if pod.priority or not compact:
        spec["priority"] = pod.priority
    if not pod.preempts:
        spec["preemptionPolicy"] = "Never"
    if pod.gates:
        spec["schedulingGates"] = [{"name": gate} for gate in pod.gates]
    if pod.gang is not None and pod.gang.name != pod.labels.get(keys.GANG_NAME, pod.labels.get(keys.POD_GROUP)):
        spec["schedulingGroup"] = {"podGroupName": pod.gang.name}
    if pod.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pod.pull_secrets]
    if shape.devices:
        spec["resourceClaims"] = [{"name": use.name, "resourceClaimName": use.claim} for use in shape.devices]
    if volumes := [*pod_volumes(pod), *_image_volumes(pod)]:
        spec["volumes"] = volumes
    if pod.grace_seconds != GRACE_SECONDS:
        spec["terminationGracePeriodSeconds"] = pod.grace_seconds
    spec |= _constraints(shape)
    plain: Plain = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    if not compact:
        _identify(plain, pod)
    return plain


def _identify(plain: Plain, pod: PodSpec) -> None:
    meta = plain["metadata"]
    if pod.uid:
        meta["uid"] = pod.uid
    if pod.created_at:
        meta["creationTimestamp"] = pod.created_at
    if pod.terminating:
        meta["deletionTimestamp"] = DELETION_TIME
    if pod.controller:
        kind, _, name = pod.controller.partition("/")
        uid = {"uid": pod.controller_uid} if pod.controller_uid else {}
        meta["ownerReferences"] = [{"kind": kind, "name": name, "controller": True, **uid}]
    if pod.node_name:
        plain["spec"]["nodeName"] = pod.node_name
    plain["status"] = {"phase": "Running" if pod.node_name else "Pending", "qosClass": pod.qos}
    if pod.extended_claim:
        plain["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": pod.extended_claim}


def _container(pod: PodSpec) -> tuple[Plain, str, str]:
    """Return the single container, the scoring annotation and the container annotation ("" if not needed)."""
    shape = pod.shape
    requests = {name: amount for name, amount in shape.requests if name != PODS}
    scored = {CPU: shape.nonzero_cpu_millis, MEMORY: shape.nonzero_memory_bytes}
    defaults = {CPU: NONZERO_CPU_MILLIS, MEMORY: NONZERO_MEMORY_BYTES}
    for name, default in defaults.items():
        if name not in requests and scored[name] != default:
            requests[name] = 0
    # Each further image is exported as a container without requests, and the reader adds the default requests for
    # scoring.
    least = defaults if _further_images(pod) else {}
    read_back = {name: max(requests.get(name, default), least.get(name, 0)) for name, default in defaults.items()}
    scoring = "" if read_back == scored else f"[{scored[CPU]},{scored[MEMORY]}]"
    names = pod.container_names
    container: Plain = {"name": names[0] if len(names) == len(shape.containers) == 1 else "main"}
    if pod.images:
        container["image"] = pod.images[0]
    guaranteed = (CPU, MEMORY) if pod.qos == "Guaranteed" else ()
    written = {name: format_amount(name, amount) for name, amount in requests.items()}
    limits = {name: text for name, text in written.items() if name in guaranteed or is_extended(name)}
    if written:
        container["resources"] = {"requests": written} | ({"limits": limits} if limits else {})
    if RESTART_ALL_CONTAINERS in shape.node_features:
        container["restartPolicyRules"] = [{"action": RESTART_ACTION}]
    if VOLUME_BIND_MOUNT_OPTIONS in shape.node_features:
        container["volumeMounts"] = [{"bindMountOptions": [_ANY_OPTION]}]
    if shape.host_ports:
        container["ports"] = [
            {"containerPort": port.port, "hostPort": port.port, "protocol": port.protocol, "hostIP": port.ip}
            for port in shape.host_ports
        ]
    return container, scoring, _containers(pod, requests, {name: requests[name] for name in limits})


def _further_images(pod: PodSpec) -> list[str]:
    """Return the images of all containers except the first."""
    left = Counter(pod.shape.images)
    left.subtract(map(image_name, pod.images))
    return [*pod.images[1:], *(image for image in pod.images for _ in range(left.pop(image_name(image), 0)))]


def _image_volumes(pod: PodSpec) -> list[Plain]:
    """Return the volumes of images that no container has."""
    references = Counter(pod.shape.images) - Counter(dict.fromkeys(map(image_name, pod.images), len(pod.shape.images)))
    return [
        {"name": f"image-{i}", "image": {"reference": reference}} for i, reference in enumerate(references.elements())
    ]


def _containers(pod: PodSpec, requests: dict[str, int], limits: dict[str, int]) -> str:
    """Return the container annotation, or "" if reading the single container already gives the same shape."""
    shape = pod.shape
    # Each further image is exported as a container without limits, so the reader never classifies the pod as
    # Guaranteed.
    limited = bool(limits.get(CPU) and limits.get(MEMORY)) and not _further_images(pod)
    only = container_demand(requests, limits, guaranteed=limited)
    guaranteed = bool(only and only.cpus and limited)
    said = (only,) if only else ()
    # The images of an export are init containers.
    extended = tuple(extended_requests(requests, 0, len(_further_images(pod))))
    if (shape.containers, shape.guaranteed, shape.extended) == (said, guaranteed, extended):
        return ""
    exported = ExportedContainers(shape.guaranteed, shape.containers, pod.container_names, shape.extended)
    return encode(exported).decode()


def _annotations(pod: PodSpec) -> dict[str, str]:
    shape = pod.shape
    found: dict[str, str] = {}
    if pod.policy and pod.policy_rule != "scheduler-name":
        found[keys.POLICY] = pod.policy
    if shape.isa is not None:
        stated_elsewhere = shape.isa.source.startswith("label") or shape.isa.source == keys.KUBERNETES_ARCH
        if shape.isa.native and not stated_elsewhere:
            found[keys.ISA] = shape.isa.native
        found |= {
            key: text
            for key, text in ((keys.EMULATED_ISA, shape.isa.emulated), (keys.CROSS_ISA, shape.isa.cross))
            if text
        }
    if not pod.preemptible:
        found[MIRROR] = "true"
    if pod.stays == "annotation":
        found[keys.SAFE_TO_EVICT] = "false"
    elif pod.stays:
        found[keys.EXPORT_STAYS] = pod.stays
    found |= _gpu_annotations(shape)
    if shape.numa is not None:
        if shape.numa.aware is not None:
            found[keys.AWARENESS[0]] = str(shape.numa.aware).lower()
        found[keys.CPU_POLICY[0]] = shape.numa.cpu_policy
    if pod.gang is not None and pod.gang.topology is not None:
        found |= _topology_annotations(pod.gang.topology)
    if shape.load_profile:
        found[keys.LOAD_PROFILE] = shape.load_profile
    if shape.expected_watts is not None:
        found[keys.EXPECTED_WATTS] = str(shape.expected_watts)
    if shape.expected_usage:
        expected = {name: format_amount(name, amount) for name, amount in shape.expected_usage}
        found[keys.EXPECTED_USAGE] = encode(expected).decode()
    if pod.allocation is not None:
        found[keys.ALLOCATION] = write_allocation(pod.allocation, by_container(pod))
        if result := write_topology_result(pod.allocation):
            found[keys.TOPOLOGY_RESULT] = result
    if templates := inexpressible_templates(pod):
        found[keys.EXPORT_CLAIMS] = encode(templates).decode()
    if pod.image_facts:
        known = {facts.image: facts.unknown or facts.platforms for facts in pod.image_facts}
        found[keys.IMAGE_PLATFORMS] = encode(known).decode()
    if pod.problems:
        found[keys.EXPORT_PROBLEMS] = encode(pod.problems).decode()
        for problem in pod.problems:
            # The invalid value itself is unknown. An empty value is written instead: it is also invalid, so the reader
            # does not use other places of the demand.
            if "/" in problem.field:
                found.setdefault(problem.field, "")
    return found


def _topology_annotations(topology: GangTopology) -> dict[str, str]:
    """Return the annotations that state all levels, also those of a PodGroup or of a Kueue Topology."""
    parts = (keys.PREFERRED_TOPOLOGY[1], topology.preferred), (keys.REQUIRED_TOPOLOGY[1], topology.required)
    return {key: ",".join(levels) for key, levels in parts if levels}


def _gpu_annotations(shape: Shape) -> dict[str, str]:
    gpu = shape.gpu
    if gpu is None:
        return {}
    found = {}
    if not gpu.vendor:
        found[keys.GPU_NUMBER[0]] = str(gpu.count)
    if gpu.milli != 1000:
        found[keys.GPU_MILLI] = str(gpu.milli)
    if gpu.memory_mib:
        found[keys.GPU_MEMORY] = str(gpu.memory_mib)
    if gpu.cores:
        found[keys.GPU_CORE] = str(gpu.cores)
    if gpu.models:
        found[keys.GPU_MODEL] = "|".join(gpu.models)
    if gpu.exact_models:
        found[keys.GPU_MODEL_MATCH] = "exact"
    return found


# -- where it may run --------------------------------------------------------------------------------------------------


def _constraints(shape: Shape) -> Plain:
    spec: Plain = {}
    if shape.node_selector:
        spec["nodeSelector"] = dict(shape.node_selector)
    affinity = {name: part for name, part in _affinity(shape) if part}
    if affinity:
        spec["affinity"] = affinity
    if shape.tolerations:
        spec["tolerations"] = tolerations(shape.tolerations)
    if USER_NAMESPACES_HOST_NETWORK in shape.node_features:
        spec |= {"hostNetwork": True, "hostUsers": False}
    if shape.spread:
        spec["topologySpreadConstraints"] = [_spread(constraint) for constraint in shape.spread]
    return spec


def _affinity(shape: Shape) -> Iterable[tuple[str, Plain]]:
    node: Plain = {}
    if shape.node_terms is not None:
        terms = [node_term(term) for term in shape.node_terms]
        node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if shape.preferred_nodes:
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": preferred.weight, "preference": node_term(preferred.term)} for preferred in shape.preferred_nodes
        ]
    yield "nodeAffinity", node
    yield "podAffinity", _pod_affinity(shape.affinity, [t for t in shape.preferred_affinity if t.weight > 0])
    yield "podAntiAffinity", _pod_affinity(shape.anti_affinity, [t for t in shape.preferred_affinity if t.weight < 0])


def _pod_affinity(required: Iterable[PodTerm], preferred: Iterable[PodTerm]) -> Plain:
    found: Plain = {
        "requiredDuringSchedulingIgnoredDuringExecution": [_pod_term(term) for term in required],
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": abs(term.weight), "podAffinityTerm": _pod_term(term)} for term in preferred
        ],
    }
    return {name: terms for name, terms in found.items() if terms}


def _pod_term(term: PodTerm) -> Plain:
    plain: Plain = {"topologyKey": term.topology_key}
    if term.selector is not None:
        plain["labelSelector"] = label_selector(term.selector)
    if term.namespaces:
        plain["namespaces"] = list(term.namespaces)
    if term.namespace_selector is not None:
        plain["namespaceSelector"] = label_selector(term.namespace_selector)
    return plain


def tolerations(found: Iterable[Toleration]) -> list[Plain]:
    """Format tolerations."""
    return [{name: value for name, value in to_plain(toleration).items() if value} for toleration in found]


def _spread(constraint: SpreadConstraint) -> Plain:
    plain: Plain = {
        "topologyKey": constraint.topology_key,
        "maxSkew": constraint.max_skew,
        "whenUnsatisfiable": "DoNotSchedule" if constraint.hard else "ScheduleAnyway",
        "nodeAffinityPolicy": "Honor" if constraint.honor_node_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if constraint.honor_taints else "Ignore",
    }
    if constraint.selector is not None:
        plain["labelSelector"] = label_selector(constraint.selector)
    if constraint.min_domains != 1:
        plain["minDomains"] = constraint.min_domains
    return plain
