"""What is asked for: one pod, reduced to what can influence where it runs.

Problem: the same pod arrives as Kubernetes YAML, as a trace row or over REST; the engine must see one shape.
Rule: `PodSpec` holds checked values in base units (millicores, bytes). `Shape` is the part that decides feasibility
and score; pods with equal shapes share cached results, so identity (names, labels, times) stays out of it.
Invariants: all structs are frozen; a pod with `problems` is never placed.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from .allocation import Allocation
from .errors import Problem

SCHEDULER_NAME = "hetsched"


def is_ours(scheduler_name: str) -> bool:
    """Tell whether a pod asks to be placed by us, under our name or that of one of our policies."""
    return scheduler_name == SCHEDULER_NAME or scheduler_name.startswith(f"{SCHEDULER_NAME}-")


class Toleration(msgspec.Struct, frozen=True):
    """A Kubernetes toleration; empty `key` with `Exists` tolerates everything, empty `effect` every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True):
    """A selector requirement: In, NotIn, Exists, DoesNotExist, and for nodes Gt and Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(msgspec.Struct, frozen=True):
    """All `expressions` (labels) and `fields` (metadata.name) must hold; a term without any matches nothing."""

    expressions: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


class PreferredNodeTerm(msgspec.Struct, frozen=True):
    weight: int
    term: NodeTerm


class LabelSelector(msgspec.Struct, frozen=True):
    """A label selector as expressions only (`matchLabels` become `In`); null selects nothing, empty everything."""

    expressions: tuple[Expression, ...] = ()


class PodTerm(msgspec.Struct, frozen=True):
    """A pod (anti-)affinity term. Empty `namespaces` without a namespace selector means the pod's own namespace.

    `weight` is 0 in required terms, 1 to 100 in preferred ones, and -1 to -100 in preferred anti-affinity.
    """

    topology_key: str
    selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    weight: int = 0


class SpreadConstraint(msgspec.Struct, frozen=True):
    """A topology spread constraint; `hard` is DoNotSchedule."""

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
    """What a volume must be like. `storage_class` None: the default one; empty: a volume without a class."""

    storage_class: str | None = None
    request_bytes: int = 0
    modes: tuple[str, ...] = ()
    block: bool = False
    selector: LabelSelector | None = None


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim in the pod's namespace by its name; `template` is what is asked for where the pod brings its own."""

    name: str
    template: ClaimRequest | None = None


class DeviceUse(msgspec.Struct, frozen=True):
    """A resource claim of a pod: what the pod calls it, and the claim's name, empty while nobody has made it."""

    name: str
    claim: str = ""


class GpuDemand(msgspec.Struct, frozen=True):
    """`count` cards, each with these facts; `milli` < 1000 shares one card, `vendor` is set by the resource asked."""

    count: int
    milli: int = 1000
    memory_mib: int = 0
    cores: int = 0
    models: tuple[str, ...] = ()
    exact_models: bool = False
    vendor: str = ""


class ImageFacts(msgspec.Struct, frozen=True):
    """The platforms (`linux/arm64/v8`) that one image offers; `unknown` says why nobody knows them."""

    image: str
    platforms: tuple[str, ...] = ()
    unknown: str = ""


class ImageDemand(msgspec.Struct, frozen=True):
    """Where a pod's images can run, whatever else it asks for.

    `floors`: each architecture (Kubernetes' names) that all known images offer, with the requirement string of the one
    that needs most there; empty where none is known for that architecture. None: no image is known.
    `unknown`: of some image nothing is known.
    """

    floors: tuple[tuple[str, str], ...] | None = None
    unknown: bool = False


class IsaDemand(msgspec.Struct, frozen=True):
    """Requirement strings already checked by `hetsched.isa`; `emulated` allows binfmt, `cross` a toolchain.

    `qemu` is ISAMatch's label, which allows either. `source` says what stated `native`: `annotation hetsched.io/isa`,
    `label hetsched.io/isa`, `label ARCH` or `kubernetes.io/arch` (a selector). `images` narrows all of that.
    """

    native: str = ""
    emulated: str = ""
    cross: str = ""
    qemu: str = ""
    source: str = ""
    images: ImageDemand | None = None

    @property
    def is_stated(self) -> bool:
        """Tell whether the pod itself asks for an instruction set, natively or not."""
        return bool(self.native or self.emulated or self.cross or self.qemu)


class NumaDemand(msgspec.Struct, frozen=True):
    """Topology awareness (None: the node decides) and the CPU policy none, exclusive, immovable or numa."""

    aware: bool | None = None
    cpu_policy: str = "none"


class ContainerDemand(msgspec.Struct, frozen=True):
    """What a node can align for one container: whole `cpus` with an equal limit (0: it shares), and `cards`.

    `init`: it ends before the pod's own containers start, and leaves them what it held.
    """

    cpus: int = 0
    memory_bytes: int = 0
    cards: int = 0
    init: bool = False


class PodGroup(msgspec.Struct, frozen=True):
    """A gang as an object declares it; `timeout_seconds` null: the policy decides how long members wait.

    `native`: it is one of Kubernetes' own; `unsupported` is a field of it that we do not implement.
    """

    min_member: int = 1
    timeout_seconds: int | None = None
    min_resources: tuple[tuple[str, int], ...] = ()
    native: bool = False
    unsupported: str = ""


class GangMember(msgspec.Struct, frozen=True):
    """The gang a pod belongs to, and how many members must be placed together; 0: nobody said how many.

    `timeout_seconds` and `min_resources` are those of its PodGroup, where it has one.
    """

    name: str
    min_available: int = 0
    timeout_seconds: int | None = None
    min_resources: tuple[tuple[str, int], ...] = ()


class Shape(msgspec.Struct, frozen=True):
    """Everything about a pod that can change which nodes fit it or how they score.

    `containers` are those that ask for whole CPUs or cards, in start order. `guaranteed`: the pod is of that class and
    has a container with whole CPUs, so that a kubelet that pins gives it CPUs of its own. `expected_watts` None: nobody
    said what it will draw.
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
    gpu: GpuDemand | None = None
    isa: IsaDemand | None = None
    numa: NumaDemand | None = None
    containers: tuple[ContainerDemand, ...] = ()
    guaranteed: bool = False
    expected_usage: tuple[tuple[str, int], ...] = ()
    load_profile: str = ""
    expected_watts: int | None = None
    required_node: str = ""

    def request(self, resource: str) -> int:
        """Return the amount of one resource asked for, 0 if none."""
        return next((amount for name, amount in self.requests if name == resource), 0)


class PodSpec(msgspec.Struct, frozen=True):
    """One pod: who it is, what it needs, and, if it already runs, where and with what.

    `container_names` are those of the shape's `containers`, in the same order; empty where nobody names them.
    `policy` is the policy it names, `policy_rule` how: `annotation` or `scheduler-name`. `controller` is `Kind/name`.
    `preempts` false: it waits rather than evict others; `preemptible` false: nobody evicts it. `stays` says why it is
    not to be moved for the sake of order: `annotation` or `local-volume`; of room that is held, `hold`.
    One with `gates` is not to be placed before somebody has taken them all away. `image_facts` are about its `images`,
    as far as somebody looked; `pull_secrets` are names of secrets of its namespace that may read them.
    `expected_basis` says what the shape's expected use was learnt from, where the pod did not declare it.
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

    @property
    def key(self) -> str:
        """`namespace/name`, as results name the pod."""
        return f"{self.namespace}/{self.name}"

    @property
    def policy_field(self) -> str:
        """The field by which it names a policy."""
        return "spec.schedulerName" if self.policy_rule == "scheduler-name" else "hetsched.io/policy"

    @property
    def owner(self) -> str:
        """Who makes the next pod of its kind: its controller, by uid; else who asks for the same in its namespace."""
        if self.controller_uid:
            return self.controller_uid
        asked = msgspec.json.encode((self.shape, self.images))
        return f"{self.namespace}/{blake2b(asked, digest_size=12).hexdigest()}"

    @property
    def ready(self) -> bool:
        """Tell whether it may be tried: nothing is wrong with what it asks, and no gate holds it back."""
        return not self.problems and not self.gates
