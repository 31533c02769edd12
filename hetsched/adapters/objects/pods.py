"""Reader of a Kubernetes pod, or of a controller's pod template, into a `PodSpec`.

The same pod gives the same result from every source, and unsupported features are reported instead of skipped. An
object that the API server would reject raises `InputError`. An invalid value in our own labels and annotations, or a
scheduling feature that is not implemented (`FeatureNotSupported` with the field), is recorded as a `Problem` of the
pod. Fields without effect on placement (commands, images' contents, probes) are not checked.
Source: Kubernetes core/v1 PodSpec, admission plugins Priority and RuntimeClass.
Invariant: pods with equal shapes that are read together share one `Shape` object.
"""

from __future__ import annotations

from sys import intern
from typing import NamedTuple

import msgspec

from hetsched.adapters import gangs
from hetsched.adapters.gang_topology import gang_topology, report_without_gang
from hetsched.adapters.oci.facts import stated_facts, with_demand
from hetsched.adapters.pod_groups import demand_key
from hetsched.contracts.errors import Problem, with_hint
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent, PriorityClass, RuntimeClass
from hetsched.contracts.objects.workload import (
    GRACE_SECONDS,
    GangMember,
    NumaDemand,
    PodGroup,
    PodSpec,
    Shape,
)
from hetsched.contracts.remedies import known_object

from . import demands, keys, selectors
from .demands import Texts
from .export.annotations import with_containers, with_problems, with_scoring
from .fields import FieldView, metadata
from .pod_fields import (
    MAX_UID,
    add_unsupported,
    claim_uses,
    controller_of,
    device_uses,
    grace_seconds,
    host_ports,
    images_of_spec,
    locality_images,
    movement_obstacle,
    named_extended_claim,
    namespace_of_pod,
    node_features,
    not_supported,
    preempts,
    running_allocation,
)
from .requests import is_resized, pod_amounts

MIRROR = "kubernetes.io/config.mirror"  # a static pod, which the kubelet runs from a file: it cannot be evicted
MAX_POD_TERMS = 64  # each term is checked in every topology domain; see docs/adr/0019
_MOST_KEPT = 4096
_QOS = ("Guaranteed", "Burstable", "BestEffort")
_FINISHED = ("Succeeded", "Failed")
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": PriorityClass(2_000_000_000),
    "system-node-critical": PriorityClass(2_000_001_000),
}


class ReferencedObjects(NamedTuple):
    """Objects that pods refer to: classes, pod groups and topologies from this file and from the cluster."""

    priority_classes: dict[str, PriorityClass]
    runtime_classes: dict[str, RuntimeClass]
    pod_groups: dict[str, PodGroup]
    topologies: dict[str, tuple[str, ...]]

    @staticmethod
    def of(*contents: ClusterContent) -> ReferencedObjects:
        """Collect the referenced objects of several cluster contents; later contents take precedence."""
        names = ReferencedObjects(dict(_SYSTEM_PRIORITIES), {}, {}, {})
        for content in contents:
            names.priority_classes.update(content.priority_classes)
            names.runtime_classes.update(content.runtime_classes)
            names.pod_groups.update(content.pod_groups)
            names.topologies.update(content.topologies)
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
        """Return the PodSpec of a Pod, or None if the pod has finished or was deleted before it got a node."""
        meta = metadata(root)
        status = root.view("status")
        spec = root.view("spec")
        node_name = spec.text("nodeName")
        if status.text("phase") in _FINISHED or ("deletionTimestamp" in meta and not node_name):
            return None
        uid = meta.text("uid")
        if len(uid) > MAX_UID:
            meta.fail(Message("may have at most {n} characters", n=MAX_UID), "uid")
        controller, controller_uid = controller_of(meta)
        name, namespace = meta.text("name"), namespace_of_pod(meta)
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
            # A DaemonSet pod can run on one node only. Its NUMA demand is dropped, so that the zones cannot exclude
            # this node.
            shape = msgspec.structs.replace(shape, numa=NumaDemand())
        return msgspec.structs.replace(
            pod,
            name=name,
            node_name=intern(spec.name("nodeName")) if node_name else "",
            shape=shape if shape is pod.shape else self._shapes.setdefault(shape, shape),
            uid=uid,
            created_at=meta.text("creationTimestamp"),
            qos=intern(status.choice("qosClass", _QOS, pod.qos)),
            controller=controller,
            controller_uid=controller_uid,
            grace_seconds=grace_seconds(meta, "deletionGracePeriodSeconds", pod.grace_seconds),
            terminating="deletionTimestamp" in meta,
            extended_claim="" if node_name else named_extended_claim(status),
        )

    def _alike(self, root: FieldView, name: str, namespace: str) -> PodSpec:
        """Read a pod, or return the PodSpec of an equal pod; the caller sets the fields specific to the pod."""
        alike = demand_key(root.value, namespace)
        known = self._read.get(alike) if alike is not None else None
        if known is not None:
            return known
        pod = self.template(root, name, namespace)
        # Claims and devices cannot be shared: their names contain the pod's name.
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
            message = Message(
                "may have at most {n} pod affinity, anti-affinity and topology spread terms in total", n=MAX_POD_TERMS
            )
            hint = "Combine terms: a selector can list several values"
            spec.fail(message, "affinity", code="TooManyTerms", hint=hint)
        add_unsupported(spec, problems)
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
            host_ports=host_ports(spec),
            claims=claim_uses(spec, meta, name),
            devices=device_uses(spec, root.view("status")),
            extended=amounts.extended,
            gpu=demands.gpu_demand(annotations, amounts.requests, problems),
            isa=demands.isa_demand(labels, annotations, arch, problems),
            numa=demands.numa_demand(annotations, problems),
            containers=amounts.containers,
            guaranteed=amounts.guaranteed,
            expected_usage=demands.expected_usage(annotations, problems),
            load_profile=demands.load_profile(annotations, problems),
            expected_watts=demands.expected_watts(annotations, problems),
            node_features=node_features(spec),
            images=locality_images(spec),
        )
        if keys.EXPORT_SCORING in annotations:
            shape = with_scoring(shape, meta.view("annotations"))
        names = amounts.container_names
        if keys.EXPORT_CONTAINERS in annotations:
            shape, names = with_containers(shape, meta.view("annotations"))
        scheduler_name = spec.text("schedulerName", keys.SCHEDULER)
        policy, policy_rule = demands.policy_choice(annotations, scheduler_name, problems)
        node_name = spec.name("nodeName") if spec.text("nodeName") else ""
        images = tuple(dict.fromkeys(images_of_spec(spec)))
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
            stays=movement_obstacle(spec, annotations),
            preempts=preempts(spec, self._class(spec)),
            qos=amounts.qos,
            scheduler_name=scheduler_name,
            policy=policy,
            policy_rule=policy_rule,
            gang=self._gang(spec, labels, annotations, namespace, problems),
            gates=tuple(gate.text("name") for gate in spec.views("schedulingGates")) if not node_name else (),
            node_name=node_name,
            allocation=running_allocation(annotations, dict(amounts.requests), problems) if node_name else None,
            container_names=names,
            images=images,
            image_facts=image_facts,
            pull_secrets=tuple(secret.text("name") for secret in spec.views("imagePullSecrets") if "name" in secret),
            problems=with_problems(problems, annotations),
            grace_seconds=grace_seconds(spec, "terminationGracePeriodSeconds", GRACE_SECONDS),
        )

    def _priority(self, spec: FieldView, problems: list[Problem]) -> int:
        if "priority" in spec:
            return spec.integer("priority", least=-(2**31), most=2**31 - 1)
        name = spec.text("priorityClassName")
        if not name:
            return self._default_priority
        found = self._class(spec)
        if found is None:
            missing = Message("there is no PriorityClass {name}", name=repr(name[:80]))
            message = with_hint(missing, known_object(name, self.names.priority_classes))
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
        # The API server writes the overhead of a class into each pod that it admits. Therefore an unknown class is a
        # problem only for a pod that has neither an overhead nor a node.
        if name and "overhead" not in spec and not spec.text("nodeName"):
            missing = Message("there is no RuntimeClass {name}", name=repr(name[:80]))
            message = with_hint(missing, known_object(name, self.names.runtime_classes))
            problems.append(Problem("RuntimeClassUnknown", "spec.runtimeClassName", message))
        return RuntimeClass()

    def _gang(
        self, spec: FieldView, labels: Texts, annotations: Texts, namespace: str, problems: list[Problem]
    ) -> GangMember | None:
        """Read the pod's gang from the Kubernetes fields or, if these name no group, from the labels."""
        name, field = gangs.native_group(spec)
        if name:
            group = self._pod_group(namespace, name)
            if group is not None and group.unsupported:
                field = f"PodGroup {name}: {group.unsupported}"
            if field:
                problems.append(not_supported(field))
            member = GangMember(name)
            if group is not None:
                mode = group.disruption_mode
                member = GangMember(name, group.min_member, min_field=group.min_field, disruption_mode=mode)
        else:
            labelled = gangs.gang_member(labels, lambda group: self._pod_group(namespace, group), problems)
            if labelled is None:
                report_without_gang(annotations, problems)
                return None
            group, member = self._pod_group(namespace, labelled.name), labelled
        key = group.required_topology if group is not None else ""
        topology = gang_topology(annotations, key, self.names.topologies, problems)
        return member if topology is None else msgspec.structs.replace(member, topology=topology)

    def _pod_group(self, namespace: str, group: str) -> PodGroup | None:
        return self.names.pod_groups.get(f"{namespace}/{group}")


namespace_of = namespace_of_pod
