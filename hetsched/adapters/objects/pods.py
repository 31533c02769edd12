"""Reader of a Kubernetes pod, or of a controller's pod template, into a `PodSpec`.

The same pod gives the same result wherever it is read, and unsupported features are reported, not skipped. An object
that the API server would reject is an `InputError`. An invalid value in our own labels and annotations, or a scheduling
feature that is not implemented (`FeatureNotSupported` with the field), is a `Problem` of the pod. Fields without effect
on placement (commands, images' contents, probes) are not checked.
Source: Kubernetes core/v1 PodSpec, admission plugins Priority and RuntimeClass.
Invariant: pods with equal shapes share one `Shape` object within one reading.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from hetsched.adapters.oci.facts import stated_facts, with_demand
from hetsched.adapters.pod_groups import likeness
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.cluster import ClusterContent, PriorityClass, RuntimeClass
from hetsched.contracts.objects.workload import (
    GRACE_SECONDS,
    ClaimRequest,
    ClaimUse,
    DeviceUse,
    GangMember,
    HostPort,
    NumaDemand,
    PodGroup,
    PodSpec,
    Shape,
)

from . import demands, keys, selectors, storage
from .allocation import parse_allocation, parse_topology_result
from .export.annotations import with_containers, with_problems, with_scoring
from .fields import FieldView, metadata
from .foreign_gpu_sharing import held_by_koordinator
from .requests import is_resized, pod_amounts

MIRROR = "kubernetes.io/config.mirror"  # a static pod, which the kubelet runs from a file: it cannot be evicted
MAX_POD_TERMS = 64  # each is looked up in every domain of the fleet: see docs/adr/0019
MAX_UID = 64  # characters; the API server generates 36
_MOST_KEPT = 4096
_QOS = ("Guaranteed", "Burstable", "BestEffort")
_FINISHED = ("Succeeded", "Failed")
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": PriorityClass(2_000_000_000),
    "system-node-critical": PriorityClass(2_000_001_000),
}
# Volume sources that bind, attach or pin; all others (emptyDir, configMap, hostPath…) have no effect on placement.
_PLACED_VOLUMES = (
    "awsElasticBlockStore", "azureDisk", "cinder", "gcePersistentDisk", "iscsi", "rbd", "vsphereVolume",
)  # fmt: skip


class ReferencedObjects(NamedTuple):
    """Objects that pods refer to by name: classes and pod groups, from this file and from the cluster."""

    priority_classes: dict[str, PriorityClass]
    runtime_classes: dict[str, RuntimeClass]
    pod_groups: dict[str, PodGroup]

    @staticmethod
    def of(*contents: ClusterContent) -> ReferencedObjects:
        """Merge the names of several contents; later ones win."""
        names = ReferencedObjects(dict(_SYSTEM_PRIORITIES), {}, {})
        for content in contents:
            names.priority_classes.update(content.priority_classes)
            names.runtime_classes.update(content.runtime_classes)
            names.pod_groups.update(content.pod_groups)
        return names

    @property
    def default_priority(self) -> int:
        return max((c.value for c in self.priority_classes.values() if c.default), default=0)


class PodReader:
    """Reader of the pods of one file or one API server; equal pods are read once."""

    def __init__(self, names: ReferencedObjects) -> None:
        self.names = names
        self._default_priority = names.default_priority
        self._shapes: dict[Shape, Shape] = {}
        self._read: dict[bytes, PodSpec] = {}

    def pod(self, root: FieldView) -> PodSpec | None:
        """Return the PodSpec of a Pod; None if it is finished, or deleted before it got a node."""
        meta = metadata(root)
        status = root.view("status")
        spec = root.view("spec")
        node_name = spec.text("nodeName")
        if status.text("phase") in _FINISHED or ("deletionTimestamp" in meta and not node_name):
            return None
        uid = meta.text("uid")
        if len(uid) > MAX_UID:
            meta.fail(f"may have at most {MAX_UID} characters", "uid")
        controller = controller_of(meta)
        name, namespace = meta.text("name"), _namespace(meta)
        pod = self._alike(root, name, namespace)
        shape = pod.shape
        if node_name and is_resized(spec, status):
            amounts = pod_amounts(spec, self._overhead(spec, self._runtime_class(spec, [])), status)
            shape = msgspec.structs.replace(
                shape,
                requests=amounts.requests,
                nonzero_cpu_millis=amounts.nonzero_cpu_millis,
                nonzero_memory_bytes=amounts.nonzero_memory_bytes,
            )
        if controller.startswith("DaemonSet/") and (shape.numa or shape.containers):
            # A DaemonSet pod has one possible node, and zones must not exclude it.
            shape = msgspec.structs.replace(shape, numa=NumaDemand())
        return msgspec.structs.replace(
            pod,
            name=name,
            node_name=spec.name("nodeName") if node_name else "",
            shape=self._shapes.setdefault(shape, shape),
            uid=uid,
            created_at=meta.text("creationTimestamp"),
            qos=status.choice("qosClass", _QOS, pod.qos),
            controller=controller,
            controller_uid=_controller_uid(meta),
            grace_seconds=_grace(meta, "deletionGracePeriodSeconds", pod.grace_seconds),
        )

    def _alike(self, root: FieldView, name: str, namespace: str) -> PodSpec:
        """Read a pod, or reuse the result of an equal one; the caller sets the pod's own names."""
        alike = likeness(root.value, namespace)
        known = self._read.get(alike) if alike is not None else None
        if known is not None:
            return known
        pod = self.template(root, name, namespace)
        # The names of claims and devices contain the pod's name.
        if alike is not None and not pod.shape.claims and not pod.shape.devices:
            if len(self._read) >= _MOST_KEPT:
                self._read.clear()
            self._read[alike] = pod
        return pod

    def template(self, root: FieldView, name: str, namespace: str) -> PodSpec:
        """Read `metadata` and `spec` of a pod or pod template as the pod `namespace/name`."""
        meta, spec = root.view("metadata"), root.view("spec")
        labels, annotations = meta.labels(), meta.annotations()
        problems: list[Problem] = []
        runtime = self._runtime_class(spec, problems)
        amounts = pod_amounts(spec, self._overhead(spec, runtime))
        node_selector = selectors.node_selector(spec)
        if runtime.node_selector:
            node_selector = tuple(sorted({**dict(node_selector), **dict(runtime.node_selector)}.items()))
        affinity = spec.view("affinity")
        node_terms, preferred_nodes = selectors.node_affinity(affinity)
        required, preferred = selectors.pod_affinity(affinity.view("podAffinity"), labels, 1)
        anti_required, anti_preferred = selectors.pod_affinity(affinity.view("podAntiAffinity"), labels, -1)
        spread = selectors.spread(spec, labels)
        if sum(map(len, (required, preferred, anti_required, anti_preferred, spread))) > MAX_POD_TERMS:
            message = f"may have at most {MAX_POD_TERMS} terms about other pods, of affinity and spread together"
            hint = "Say it with fewer: a selector may name many values"
            spec.fail(message, "affinity", code="TooManyTerms", hint=hint)
        _unsupported(spec, problems)
        arch = demands.fixed_arch(node_selector, node_terms)
        shape = Shape(
            requests=amounts.requests,
            nonzero_cpu_millis=amounts.nonzero_cpu_millis,
            nonzero_memory_bytes=amounts.nonzero_memory_bytes,
            node_selector=node_selector,
            node_terms=node_terms,
            preferred_nodes=preferred_nodes,
            tolerations=selectors.tolerations(spec) + runtime.tolerations,
            affinity=required,
            anti_affinity=anti_required,
            preferred_affinity=preferred + anti_preferred,
            spread=spread,
            host_ports=_host_ports(spec),
            claims=_claims(spec, meta, name),
            devices=_devices(spec, root.view("status")),
            gpu=demands.gpu_demand(annotations, amounts.requests, problems),
            isa=demands.isa_demand(labels, annotations, arch, problems),
            numa=demands.numa_demand(annotations, problems),
            containers=amounts.containers,
            guaranteed=amounts.guaranteed,
            expected_usage=demands.expected_usage(annotations, problems),
            load_profile=demands.load_profile(annotations, problems),
            expected_watts=demands.expected_watts(annotations, problems),
        )
        if keys.EXPORT_SCORING in annotations:
            shape = with_scoring(shape, meta.view("annotations"))
        names = amounts.container_names
        if keys.EXPORT_CONTAINERS in annotations:
            shape, names = with_containers(shape, meta.view("annotations"))
        scheduler_name = spec.text("schedulerName", keys.SCHEDULER)
        policy, policy_rule = demands.policy_choice(annotations, scheduler_name, problems)
        node_name = spec.name("nodeName") if spec.text("nodeName") else ""
        images = tuple(dict.fromkeys(_images(spec)))
        image_facts = stated_facts(annotations, images, problems)
        if image_facts:
            shape = with_demand(shape, image_facts)
        return PodSpec(
            namespace=namespace,
            name=name,
            shape=self._shapes.setdefault(shape, shape),
            labels=labels,
            priority=self._priority(spec, problems),
            preemptible=MIRROR not in annotations,
            stays=_stays(spec, annotations),
            preempts=preempts(spec, self._class(spec)),
            qos=amounts.qos,
            scheduler_name=scheduler_name,
            policy=policy,
            policy_rule=policy_rule,
            gang=self._gang(spec, labels, namespace, problems),
            gates=tuple(gate.text("name") for gate in spec.views("schedulingGates")) if not node_name else (),
            node_name=node_name,
            allocation=_allocation(annotations, dict(amounts.requests), problems) if node_name else None,
            container_names=names,
            images=images,
            image_facts=image_facts,
            pull_secrets=tuple(secret.text("name") for secret in spec.views("imagePullSecrets") if "name" in secret),
            problems=with_problems(problems, annotations),
            grace_seconds=_grace(spec, "terminationGracePeriodSeconds", GRACE_SECONDS),
        )

    def _priority(self, spec: FieldView, problems: list[Problem]) -> int:
        if "priority" in spec:
            return spec.integer("priority", least=-(2**31), most=2**31 - 1)
        name = spec.text("priorityClassName")
        if not name:
            return self._default_priority
        found = self._class(spec)
        if found is None:
            message = f"there is no PriorityClass {name[:80]!r}"
            problems.append(Problem("PriorityClassUnknown", "spec.priorityClassName", message))
            return 0
        return found.value

    def _class(self, spec: FieldView) -> PriorityClass | None:
        return self.names.priority_classes.get(spec.text("priorityClassName"))

    def _overhead(self, spec: FieldView, runtime: RuntimeClass) -> dict[str, int]:
        return spec.amounts("overhead") if "overhead" in spec else dict(runtime.overhead)

    def _runtime_class(self, spec: FieldView, problems: list[Problem]) -> RuntimeClass:
        name = spec.text("runtimeClassName")
        found = self.names.runtime_classes.get(name)
        if found is not None:
            return found
        # The API server writes the overhead of a class into each pod that it admits.
        if name and "overhead" not in spec and not spec.text("nodeName"):
            message = f"there is no RuntimeClass {name[:80]!r}"
            problems.append(Problem("RuntimeClassUnknown", "spec.runtimeClassName", message))
        return RuntimeClass()

    def _gang(
        self, spec: FieldView, labels: dict[str, str], namespace: str, problems: list[Problem]
    ) -> GangMember | None:  # fmt: skip
        """Read the gang named by Kubernetes' own fields, otherwise the one named by labels."""
        name, field = demands.native_group(spec)
        if not name:
            return demands.gang_member(labels, lambda group: self._pod_group(namespace, group), problems)
        group = self._pod_group(namespace, name)
        if group is not None and group.unsupported:
            field = f"PodGroup {name}: {group.unsupported}"
        if field:
            problems.append(not_supported(field))
        return GangMember(name) if group is None else GangMember(name, group.min_member, min_field=group.min_field)

    def _pod_group(self, namespace: str, group: str) -> PodGroup | None:
        return self.names.pod_groups.get(f"{namespace}/{group}")


def _stays(spec: FieldView, annotations: dict[str, str]) -> str:
    """Return why a pod must not be moved: its owner forbids it, or it has local data on its node; empty if it may move.

    Source: cluster-autoscaler, `safe-to-evict` and its rule on local storage; a memory-backed emptyDir does not count.
    """
    said = annotations.get(keys.SAFE_TO_EVICT)
    if said == "false":
        return "annotation"
    if said == "true":
        return ""
    if keys.EXPORT_STAYS in annotations:
        return annotations[keys.EXPORT_STAYS]
    safe = {name.strip() for name in annotations.get(keys.SAFE_VOLUMES, "").split(",")}
    for volume in spec.views("volumes"):
        on_disk = "emptyDir" in volume and volume.view("emptyDir").text("medium") != "Memory"
        if ("hostPath" in volume or on_disk) and volume.text("name") not in safe:
            return "local-volume"
    return ""


def _grace(view: FieldView, key: str, default: int) -> int:
    """Read a grace period; kubelets treat a negative one as one second."""
    seconds = view.integer(key, default, least=-(2**63))
    return seconds if seconds >= 0 else 1


def preempts(spec: FieldView, found: PriorityClass | None = None) -> bool:
    """Read `preemptionPolicy` of a pod or a class; a pod without one inherits that of its class."""
    default = "Never" if found is not None and not found.preempts else "PreemptLowerPriority"
    return spec.choice("preemptionPolicy", ("PreemptLowerPriority", "Never"), default) != "Never"


def _namespace(meta: FieldView) -> str:
    return meta.name("namespace", label=True) if "namespace" in meta else "default"


namespace_of = _namespace


def controller_of(meta: FieldView) -> str:
    """Return the pod's controller as `Kind/name`; a ReplicaSet of a Deployment counts as the Deployment."""
    owner = next((o for o in meta.views("ownerReferences") if o.flag("controller")), None)
    if owner is None:
        return ""
    kind, name = owner.text("kind"), owner.text("name")
    template = meta.labels().get("pod-template-hash", "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return f"Deployment/{name.removesuffix(f'-{template}')}"
    return f"{kind}/{name}"


def _controller_uid(meta: FieldView) -> str:
    owner = next((o for o in meta.views("ownerReferences") if o.flag("controller")), None)
    return "" if owner is None else owner.text("uid")[:MAX_UID]


def _images(spec: FieldView) -> list[str]:
    found = (c.text("image") for key in ("containers", "initContainers") for c in spec.views(key))
    return [image for image in found if image]


def _host_ports(spec: FieldView) -> tuple[HostPort, ...]:
    """Return the host ports of the pod; with hostNetwork every container port is one."""
    on_host = spec.flag("hostNetwork")
    found = []
    for key in ("containers", "initContainers"):
        for container in spec.views(key):
            if key == "initContainers" and container.text("restartPolicy") != "Always":
                continue
            for port in container.views("ports"):
                inside = port.integer("containerPort", least=1, most=65535)
                number = port.integer("hostPort", inside if on_host else 0, most=65535)
                if number:
                    protocol = port.choice("protocol", ("TCP", "UDP", "SCTP"), "TCP")
                    found.append(HostPort(number, protocol, port.text("hostIP") or "0.0.0.0"))  # noqa: S104
    return tuple(dict.fromkeys(found))


def _claims(spec: FieldView, meta: FieldView, pod: str) -> tuple[ClaimUse, ...]:
    """Read the claims of a pod, and the templates that an export recorded for them."""
    found = storage.claims_of(spec, pod)
    if keys.EXPORT_CLAIMS not in meta.view("annotations"):
        return found
    text = meta.view("annotations").text(keys.EXPORT_CLAIMS)
    try:
        kept = msgspec.json.decode(text, type=dict[str, ClaimRequest])
    except (msgspec.DecodeError, RecursionError) as error:
        meta.view("annotations").fail(f"it does not describe claims: {error}", keys.EXPORT_CLAIMS)
    return tuple(ClaimUse(use.name, use.template or kept.get(use.name)) for use in found)


def _devices(spec: FieldView, status: FieldView) -> tuple[DeviceUse, ...]:
    """Read the resource claims of a pod; the name of a claim from a template is in the pod's status."""
    made = {one.text("name"): one for one in status.views("resourceClaimStatuses")}
    found = []
    for use in spec.views("resourceClaims"):
        name = use.text("name")
        if name in made and "resourceClaimName" not in made[name]:
            continue  # the controller found that no claim is needed
        found.append(DeviceUse(name, use.text("resourceClaimName") or _made(made.get(name))))
    return tuple(found)


def _made(status: FieldView | None) -> str:
    return "" if status is None else status.text("resourceClaimName")


def _unsupported(spec: FieldView, problems: list[Problem]) -> None:
    fields: list[str] = []
    for position, volume in enumerate(spec.views("volumes")):
        fields.extend(f"volumes[{position}].{source}" for source in _PLACED_VOLUMES if source in volume)
    for field in fields:
        problems.append(not_supported(f"spec.{field}"))


def not_supported(field: str) -> Problem:
    """Return the problem of a pod that uses a scheduling feature which is not implemented."""
    return Problem("FeatureNotSupported", field, f"{field} influences scheduling in a way that is not supported")


def _allocation(annotations: dict[str, str], requests: dict[str, int], problems: list[Problem]) -> Allocation | None:
    field = next((key for key in (keys.ALLOCATION, keys.TOPOLOGY_RESULT) if key in annotations), "Koordinator")
    try:
        if keys.ALLOCATION in annotations:
            return parse_allocation(annotations[keys.ALLOCATION])
        if keys.TOPOLOGY_RESULT in annotations:
            return parse_topology_result(annotations[keys.TOPOLOGY_RESULT])
        return held_by_koordinator(annotations, requests)
    except InputError as error:
        problems.append(Problem(error.code, field, error.message))
    return None
