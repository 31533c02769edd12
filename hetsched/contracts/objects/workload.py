"""Specification of one pod, reduced to the parts that influence where it runs.

Pods are read from Kubernetes YAML, trace rows and REST requests; the engine uses one type for all of them. `PodSpec`
holds validated values in base units (millicores, bytes). `Shape` is the part that determines feasibility and score.
Pods with equal shapes share cached results, so a shape does not contain the pod's identity (names, labels, times).
Invariants: all structs are frozen; a pod with `problems` is never placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import msgspec

from hetsched.contracts.documents import encode

from ..errors import Problem
from ..message import Message
from .allocation import Allocation
from .devices import ExtendedRequest
from .node_constraints import Expression, NodeTerm, Toleration
from .wishes import GANG_MIN_AVAILABLE, GROUP_MIN_COUNT, GROUP_MIN_MEMBER

# The label or field with the minimum number of gang members that run together.
MinField = Literal[
    "pod-group.scheduling.sigs.k8s.io/min-available", "spec.minMember", "spec.schedulingPolicy.gang.minCount"
]
# Whether running members of a gang may be preempted one by one, or only together.
DisruptionMode = Literal["Single", "All"]

SCHEDULER_NAME = "hetsched"


def is_ours(scheduler_name: str) -> bool:
    """Return whether hetsched schedules a pod, by its scheduler name or the name of one of its policies."""
    return scheduler_name == SCHEDULER_NAME or scheduler_name.startswith(f"{SCHEDULER_NAME}-")


GRACE_SECONDS = 30  # the default of terminationGracePeriodSeconds


class PreferredNodeTerm(msgspec.Struct, frozen=True):
    weight: int
    term: NodeTerm


class LabelSelector(msgspec.Struct, frozen=True):
    """Label selector as expressions (`matchLabels` become `In`); null matches nothing, empty matches everything."""

    expressions: tuple[Expression, ...] = ()


class PodTerm(msgspec.Struct, frozen=True):
    """Pod (anti-)affinity term.

    A term without `namespaces` and without a namespace selector applies to the pod's own namespace. `weight` is 0 in
    required terms, 1 to 100 in preferred ones, and -1 to -100 in preferred anti-affinity.
    """

    topology_key: str
    selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    weight: int = 0


class SpreadConstraint(msgspec.Struct, frozen=True):
    """Topology spread constraint; `hard` means `whenUnsatisfiable: DoNotSchedule`."""

    topology_key: str
    max_skew: int
    hard: bool
    selector: LabelSelector | None = None
    min_domains: int = 1
    honor_node_affinity: bool = True
    honor_taints: bool = False


class HostPort(msgspec.Struct, frozen=True):
    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"  # noqa: S104 - Kubernetes' own wildcard, not a bind address


class ClaimRequest(msgspec.Struct, frozen=True):
    """Request of a volume claim. `storage_class` is None for the default class, or "" for volumes without a class."""

    storage_class: str | None = None
    request_bytes: int = 0
    modes: tuple[str, ...] = ()
    block: bool = False
    selector: LabelSelector | None = None


class ClaimUse(msgspec.Struct, frozen=True):
    """Volume claim that a pod uses, by name; `template` is the request if the claim is created for the pod."""

    name: str
    template: ClaimRequest | None = None


class DeviceUse(msgspec.Struct, frozen=True):
    """Resource claim of a pod: its name in the pod spec, and the name of the claim object (empty until that exists)."""

    name: str
    claim: str = ""


class GpuDemand(msgspec.Struct, frozen=True):
    """Demand for `count` GPUs with these properties, or for a share of one GPU (`milli` < 1000, in thousandths).

    `vendor` follows from the name of the requested resource.
    """

    count: int
    milli: int = 1000
    memory_mib: int = 0
    cores: int = 0
    models: tuple[str, ...] = ()
    exact_models: bool = False
    vendor: str = ""


class ImageFacts(msgspec.Struct, frozen=True):
    """The platforms (`linux/arm64/v8`) that one image offers; `unknown` is the reason why they are unknown."""

    image: str
    platforms: tuple[str, ...] = ()
    unknown: Message = Message("")


class ImageDemand(msgspec.Struct, frozen=True):
    """Requirements of a pod's images, in addition to its other requirements.

    `floors` has a pair for each architecture (Kubernetes' names) that all known images offer. The pair consists of the
    architecture and the requirement string of the most demanding image, which is "" if no requirement is known.
    `floors` is None if no image is known. `unknown` means that the facts of some image are missing. `variants_only`
    lists (architecture, image) for images whose index has only CPU variants of the architecture, which a stock
    containerd refuses on a node without such a variant in its platform.
    """

    floors: tuple[tuple[str, str], ...] | None = None
    unknown: bool = False
    variants_only: tuple[tuple[str, str], ...] = ()


class IsaDemand(msgspec.Struct, frozen=True):
    """Requirement strings validated by `hetsched.isa`; `emulated` allows binfmt, `cross` allows a toolchain.

    `qemu` is the value of ISAMatch's label, which allows both. `source` is the origin of `native`:
    `annotation hetsched.io/isa`, `label hetsched.io/isa`, `label ARCH` or `kubernetes.io/arch` (a selector). `images`
    adds the requirements of the pod's images.
    """

    native: str = ""
    emulated: str = ""
    cross: str = ""
    qemu: str = ""
    source: str = ""
    images: ImageDemand | None = None

    @property
    def is_stated(self) -> bool:
        """Return whether the pod specification requires an instruction set (native, emulated or cross)."""
        return bool(self.native or self.emulated or self.cross or self.qemu)


class NumaDemand(msgspec.Struct, frozen=True):
    """Requested topology awareness (None: the node's default) and CPU policy (none, exclusive, immovable or numa)."""

    aware: bool | None = None
    cpu_policy: str = "none"


class ContainerDemand(msgspec.Struct, frozen=True):
    """Resources that a node can align for one container.

    `cpus` is the number of whole CPUs with an equal limit (0 for shared CPUs), and `cards` the number of GPUs. `init`
    marks an init container, which ends before the other containers start and reuse its resources. `devices` contains
    the other requested extended resources, ordered by name. `memory` contains the bytes by kind (`memory`,
    `hugepages-<size>`) that a static memory manager would assign; it is empty unless the pod is Guaranteed.
    """

    cpus: int = 0
    memory_bytes: int = 0
    cards: int = 0
    init: bool = False
    devices: tuple[tuple[str, int], ...] = ()
    memory: tuple[tuple[str, int], ...] = ()


class GangTopology(msgspec.Struct, frozen=True):
    """Topology levels of a gang: keys of node labels, the narrowest level first.

    A domain of a level consists of the nodes with equal values of its label and of the labels of all wider levels. If
    `required` is not empty, all members run in one domain of its first level; its other levels only distinguish domains
    with the same name. The `preferred` levels are narrower.
    """

    preferred: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """The levels to try, the narrowest first; each as its label and the labels of all wider levels."""
        levels = (*self.preferred, *self.required)
        return tuple(levels[position:] for position in range(len(self.preferred) + bool(self.required)))


class PodGroup(msgspec.Struct, frozen=True):
    """Gang declared by a PodGroup object. If `timeout_seconds` is null, the policy decides how long members wait.

    `native` marks a PodGroup of Kubernetes itself. `unsupported` names a field that is set but not implemented.
    `required_topology` is the label of the domain in which all members must run ("" for none). `disruption_mode` is
    that of a native PodGroup; other gangs are preempted as a whole.
    """

    min_member: int = 1
    timeout_seconds: int | None = None
    min_resources: tuple[tuple[str, int], ...] = ()
    native: bool = False
    unsupported: str = ""
    required_topology: str = ""
    disruption_mode: DisruptionMode = "All"

    @property
    def min_field(self) -> MinField:
        """The field of the object that contains `min_member`."""
        return GROUP_MIN_COUNT if self.native else GROUP_MIN_MEMBER


class GangMember(msgspec.Struct, frozen=True):
    """Gang of a pod, and the number of members that must be placed together (0 if not specified).

    `timeout_seconds` and `min_resources` are those of its PodGroup, if it has one. `min_field` is the label or the
    field of the PodGroup that contains the minimum. `topology` is None if the members may run in different domains.
    `disruption_mode` is "Single" if running members may be preempted one by one, and "All" if only together.
    """

    name: str
    min_available: int = 0
    timeout_seconds: int | None = None
    min_resources: tuple[tuple[str, int], ...] = ()
    min_field: MinField = GANG_MIN_AVAILABLE
    topology: GangTopology | None = None
    disruption_mode: DisruptionMode = "All"


class Shape(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """All properties of a pod that determine which nodes fit it and how they score.

    `containers` lists the containers that request whole CPUs or GPUs, in start order. `guaranteed` means that the pod
    is of that QoS class and has a container with whole CPUs, so that a kubelet with the static policy assigns exclusive
    CPUs. `expected_watts` is None if the expected power draw is unknown. `node_features` lists the features that the
    node's kubelet must declare, ordered by name. `images` lists the names with tags of the images of all containers and
    image volumes, ordered and with repetitions. `extended` lists the extended resources of the containers, in start
    order.
    """

    requests: tuple[tuple[str, int], ...] = ()
    nonzero_cpu_millis: int = 100
    nonzero_memory_bytes: int = 200 * 1024 * 1024
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    preferred_nodes: tuple[PreferredNodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    extended: tuple[ExtendedRequest, ...] = ()
    gpu: GpuDemand | None = None
    isa: IsaDemand | None = None
    numa: NumaDemand | None = None
    containers: tuple[ContainerDemand, ...] = ()
    guaranteed: bool = False
    expected_usage: tuple[tuple[str, int], ...] = ()
    load_profile: str = ""
    expected_watts: int | None = None
    required_node: str = ""
    node_features: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def request(self, resource: str) -> int:
        """Return the requested amount of one resource, or 0 if it is not requested."""
        return next((amount for name, amount in self.requests if name == resource), 0)


# Labels of the node that the API server copies to a pod when it is bound (admission plugin PodTopologyLabels).
COPIED_NODE_LABELS = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})


def copied_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the API server copies from a node with these labels to its pods."""
    return {name: value for name, value in labels.items() if name in COPIED_NODE_LABELS}


class PodSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One pod: identity, requirements, and, if it already runs, its node and allocation.

    `container_names` are the names of the shape's `containers` in the same order, or empty if unknown. `policy` is the
    policy that the pod names by `policy_rule` (`annotation` or `scheduler-name`). `controller` is `Kind/name`. If
    `preempts` is false, it waits instead of preempting; if `preemptible` is false, it is never preempted. `stays` is
    the reason why rebalancing does not move it: `annotation`, `local-volume`, or `hold` for reserved capacity. A pod
    with `gates` is not scheduled until all of its gates are removed. `image_facts` describes the `images` that were
    looked up; `pull_secrets` contains the names of the secrets, in the pod's namespace, for pulling the images.
    `grace_seconds` is how long its containers may run after its deletion starts, and `terminating` is True after that.
    `extended_claim` is the claim for extended resources that the status of a pod without a node names: its kubelet will
    use this claim instead of a device plugin.
    `expected_basis` is the basis of the shape's expected usage if this usage was learned and not declared by the pod.
    """

    namespace: str
    name: str
    shape: Shape
    uid: str = ""
    labels: dict[str, str] = {}
    priority: int = 0
    qos: str = "BestEffort"
    created_at: str = ""
    scheduler_name: str = "hetsched"
    policy: str = ""
    policy_rule: str = ""
    controller: str = ""
    controller_uid: str = ""
    gang: GangMember | None = None
    gates: tuple[str, ...] = ()
    preemptible: bool = True
    stays: str = ""
    preempts: bool = True
    node_name: str = ""
    allocation: Allocation | None = None
    container_names: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    image_facts: tuple[ImageFacts, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    expected_basis: str = ""
    grace_seconds: int = GRACE_SECONDS
    terminating: bool = False
    extended_claim: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, the pod's key in results."""
        return f"{self.namespace}/{self.name}"

    @property
    def policy_field(self) -> str:
        """The field in which the pod names a policy."""
        return "spec.schedulerName" if self.policy_rule == "scheduler-name" else "hetsched.io/policy"

    @property
    def owner(self) -> str:
        """Owner of similar pods: the UID of the controller, or else the namespace with a digest of shape and images."""
        if self.controller_uid:
            return self.controller_uid
        asked = encode((self.shape, self.images))
        return f"{self.namespace}/{blake2b(asked, digest_size=12).hexdigest()}"

    @property
    def ready(self) -> bool:
        """Return whether the pod may be scheduled: its request has no problem, and the pod has no gate."""
        return not self.problems and not self.gates
