"""Readers of single fields of a pod's metadata, spec and status."""

from __future__ import annotations

import msgspec

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.cluster import PriorityClass
from hetsched.contracts.objects.node_features import (
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_HOST_NETWORK,
    VOLUME_BIND_MOUNT_OPTIONS,
)
from hetsched.contracts.objects.node_images import image_name
from hetsched.contracts.objects.workload import (
    ClaimRequest,
    ClaimUse,
    DeviceUse,
    HostPort,
)

from . import keys, storage
from .allocation import parse_allocation, parse_topology_result
from .fields import FieldView
from .foreign_gpu_sharing import held_by_koordinator

MAX_UID = 64  # characters; the API server generates 36 characters
RESTART_ACTION = "RestartAllContainers"


# Volume sources that are bound, attached or tied to a node; all others (emptyDir, configMap, hostPath…) have no effect
# on placement.
_PLACED_VOLUMES = (
    "awsElasticBlockStore", "azureDisk", "cinder", "gcePersistentDisk", "iscsi", "rbd", "vsphereVolume",
)  # fmt: skip


def movement_obstacle(spec: FieldView, annotations: dict[str, str]) -> str:
    """Return why rebalancing must not move a pod (an annotation, or local data on its node), or "" if it may.

    Source: cluster-autoscaler, `safe-to-evict` and its rule on local storage; a memory-backed emptyDir is not local
    data.
    """
    text = annotations.get(keys.SAFE_TO_EVICT)
    if text == "false":
        return "annotation"
    if text == "true":
        return ""
    if keys.EXPORT_STAYS in annotations:
        return annotations[keys.EXPORT_STAYS]
    safe = {name.strip() for name in annotations.get(keys.SAFE_VOLUMES, "").split(",")}
    for volume in spec.views("volumes"):
        on_disk = "emptyDir" in volume and volume.view("emptyDir").text("medium") != "Memory"
        if ("hostPath" in volume or on_disk) and volume.text("name") not in safe:
            return "local-volume"
    return ""


def grace_seconds(view: FieldView, key: str, default: int) -> int:
    """Read a grace period; kubelets treat a negative grace period as one second."""
    seconds = view.integer(key, default, least=-(2**63))
    return seconds if seconds >= 0 else 1


def preempts(spec: FieldView, found: PriorityClass | None = None) -> bool:
    """Read `preemptionPolicy` of a pod or a class; a pod without the field inherits it from its class."""
    default = "Never" if found is not None and not found.preempts else "PreemptLowerPriority"
    return spec.choice("preemptionPolicy", ("PreemptLowerPriority", "Never"), default) != "Never"


def namespace_of_pod(meta: FieldView) -> str:
    return meta.name("namespace", label=True) if "namespace" in meta else "default"


def controller_of(meta: FieldView) -> tuple[str, str]:
    """Return the pod's controller as `Kind/name`, and the uid of the owner.

    A ReplicaSet of a Deployment is named as the Deployment, but the uid is that of the ReplicaSet.
    """
    owner = next((o for o in meta.views("ownerReferences") if o.flag("controller")), None)
    if owner is None:
        return "", ""
    kind, name, uid = owner.text("kind"), owner.text("name"), owner.text("uid")[:MAX_UID]
    template = meta.view("labels").text("pod-template-hash")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return f"Deployment/{name.removesuffix(f'-{template}')}", uid
    return f"{kind}/{name}", uid


def images_of_spec(spec: FieldView) -> list[str]:
    found = (c.text("image") for key in ("containers", "initContainers") for c in spec.views(key))
    return [image for image in found if image]


def node_features(spec: FieldView) -> tuple[str, ...]:
    """Return the features that the node's kubelet must declare, ordered by name.

    Source: k8s.io/component-helpers 0.37.2, `InferForScheduling` of the features in `nodedeclaredfeatures/features`.
    """
    containers = [container for key in ("containers", "initContainers") for container in spec.views(key)]
    rules = (rule for container in containers for rule in container.views("restartPolicyRules"))
    mounts = (mount for container in containers for mount in container.views("volumeMounts"))
    required = {
        RESTART_ALL_CONTAINERS: any(rule.text("action") == RESTART_ACTION for rule in rules),
        USER_NAMESPACES_HOST_NETWORK: spec.flag("hostNetwork") and not spec.flag("hostUsers", default=True),
        VOLUME_BIND_MOUNT_OPTIONS: any(mount.texts("bindMountOptions") for mount in mounts),
    }
    return tuple(name for name, is_required in required.items() if is_required)


def locality_images(spec: FieldView) -> tuple[str, ...]:
    """Return the names, with tags, of the images of all containers and image volumes, ordered and with repetitions."""
    volumes = (volume.view("image").text("reference") for volume in spec.views("volumes") if "image" in volume)
    return tuple(sorted(image_name(image) for image in (*images_of_spec(spec), *volumes) if image))


def host_ports(spec: FieldView) -> tuple[HostPort, ...]:
    """Return the host ports of the pod; with hostNetwork, every container port is a host port."""
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


def claim_uses(spec: FieldView, meta: FieldView, pod: str) -> tuple[ClaimUse, ...]:
    """Read the claims of a pod, and the templates that an export recorded for them."""
    found = storage.claims_of(spec, pod)
    if keys.EXPORT_CLAIMS not in meta.view("annotations"):
        return found
    text = meta.view("annotations").text(keys.EXPORT_CLAIMS)
    try:
        kept = msgspec.json.decode(text, type=dict[str, ClaimRequest])
    except (msgspec.DecodeError, RecursionError) as error:
        meta.view("annotations").fail(
            Message("the value does not describe claims: {text}", text=str(error)), keys.EXPORT_CLAIMS
        )
    return tuple(ClaimUse(use.name, use.template or kept.get(use.name)) for use in found)


def device_uses(spec: FieldView, status: FieldView) -> tuple[DeviceUse, ...]:
    """Read the resource claims of a pod; the name of a claim created from a template is in the pod's status."""
    statuses = {view.text("name"): view for view in status.views("resourceClaimStatuses")}
    found = []
    for use in spec.views("resourceClaims"):
        name = use.text("name")
        if name in statuses and "resourceClaimName" not in statuses[name]:
            continue  # the resource claim controller decided that the pod needs no claim here
        found.append(DeviceUse(name, use.text("resourceClaimName") or created_claim(statuses.get(name))))
    return tuple(found)


def created_claim(status: FieldView | None) -> str:
    return "" if status is None else status.text("resourceClaimName")


def named_extended_claim(status: FieldView) -> str:
    """Return the name of the claim for extended resources in the status of a pod, "" if it names none."""
    return status.view("extendedResourceClaimStatus").text("resourceClaimName")


def add_unsupported(spec: FieldView, problems: list[Problem]) -> None:
    fields: list[str] = []
    for position, volume in enumerate(spec.views("volumes")):
        fields.extend(f"volumes[{position}].{source}" for source in _PLACED_VOLUMES if source in volume)
    for field in fields:
        problems.append(not_supported(f"spec.{field}"))


def not_supported(field: str) -> Problem:
    """Return the problem of a pod that uses a scheduling feature which is not implemented."""
    return Problem("FeatureNotSupported", field, Message("scheduling by {text} is not supported", text=field))


def running_allocation(
    annotations: dict[str, str], requests: dict[str, int], problems: list[Problem]
) -> Allocation | None:
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
