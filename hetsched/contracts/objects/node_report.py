"""Report about a node from any source: a file, the API server, a trace or the node agent.

Amounts are integers in base units (millicores, bytes). A fact that no source reports is None and not 0 or false: an
unknown value does not satisfy a demand, but it does not make a pod *never fits* either.
"""

from __future__ import annotations

import msgspec

from .pinned_memory import MemoryGrant

HARD_EFFECTS = ("NoSchedule", "NoExecute")  # effects that keep pods without a matching toleration away


def zone_name(zone: int | str) -> str:
    """Return the name of the NUMA zone with an ID in the engine and the API."""
    return f"node-{zone}"


class Taint(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


LINK_KINDS = ("nvlink", "switch", "zone", "system")


class CardLink(msgspec.Struct, frozen=True, rename="camel"):
    """Link to another GPU of the node: one of `LINK_KINDS`, and the bandwidth of one direction in GB/s if known."""

    to: int
    kind: str
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")


class GpuCard(msgspec.Struct, frozen=True, rename="camel"):
    """One whole GPU. `vendor` is nvidia, amd, or empty if unknown; `numa_zone` is a zone's name.

    `links` contains the links reported at either end. `maintenance` means that an operator keeps new pods off a working
    GPU. The GPU is not `healthy` until the maintenance ends, but the check against an empty cluster treats it as
    available.
    """

    index: int
    uuid: str | None = None
    model: str | None = None
    vendor: str = ""
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    cores: int | None = None
    fp32_tflops: float | None = None
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")
    clock_mhz: int | None = msgspec.field(default=None, name="clockMHz")
    numa_zone: str | None = None
    healthy: bool = True
    links: tuple[CardLink, ...] = ()
    maintenance: bool = False


class KubeletGrant(msgspec.Struct, frozen=True, rename="camel"):
    """Exclusive resources that the kubelet assigned to one pod: CPUs, GPUs by UUID, other devices by zone, and memory.

    `pod` is its UID, or `namespace/name` if the UID is unknown; `name` is `namespace/name` if known in addition to the
    UID. `foreign` means that the control plane does not know the pod, so the assignment is counted separately.
    """

    pod: str
    cpus: str = ""
    name: str = ""
    gpus: tuple[str, ...] = ()
    devices: dict[str, dict[str, int]] = {}
    foreign: bool = False
    memory: tuple[MemoryGrant, ...] = ()


class NumaZone(msgspec.Struct, frozen=True, rename="camel"):
    """One NUMA zone; `cpus` is null if only the number of the zone's CPUs is known.

    `available` is the free amount in NodeResourceTopology, or empty without such an object. Extended resources in
    `allocatable` are devices near this zone. `parent` is the zone that contains it, usually a socket. `assignable` is
    the memory, in bytes by kind, that the kubelet's static memory manager may assign, or None if it is unknown.
    """

    name: str
    cpus: str | None = None
    siblings: str | None = None
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    offline_capacity_millis: int | None = None
    costs: dict[str, int] = {}
    available: dict[str, int] = {}
    parent: str | None = None
    assignable: dict[str, int] | None = None


class NumaReport(msgspec.Struct, frozen=True, rename="camel"):
    """Zones of a node and its kubelet's configuration; unknown policies are None.

    `lost_cpus` are CPUs that are no longer reported: they do not belong to a zone, but pods that use them keep them.
    `sockets` and `caches` group the CPUs of the node (`0-3;4-7`) in the order of their IDs, or are None if unknown.
    `grants` contains the kubelet's assignments to pods.
    """

    zones: tuple[NumaZone, ...] = ()
    cpu_manager_policy: str | None = None
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    reserved_cpus: str | None = None
    lost_cpus: str | None = None
    cpu_manager_options: dict[str, str] = {}
    topology_manager_options: dict[str, str] = {}
    memory_manager_policy: str | None = None
    sockets: str | None = None
    caches: str | None = None
    grants: tuple[KubeletGrant, ...] = ()


POWER_STATES = ("on", "saving", "capped", "off", "maintenance")
# Problem code of a node with a zone whose `offline_capacity` is not a valid quantity, so that the zone is not used.
ZONE_PROBLEM = "ZoneCapacityUnreadable"


def zone_problem(zone: str, message: str) -> str:
    """Return the problem text of a zone whose `offline_capacity` is not a valid quantity."""
    return f"{ZONE_PROBLEM}: zone {zone}: {message}"


def is_unreadable(zone: str, problems: tuple[str, ...]) -> bool:
    """Return whether the problems of a node include that the zone's `offline_capacity` is not a valid quantity."""
    return any(problem.startswith(zone_problem(zone, "")) for problem in problems)


class PowerReport(msgspec.Struct, frozen=True, rename="camel"):
    """Power state of a node (one of `POWER_STATES`), and the watts that it may draw in addition to its current draw."""

    state: str | None = None
    headroom_watts: int | None = None


class IsaReport(msgspec.Struct, frozen=True, rename="camel"):
    """ISA strings checked by `hetsched.isa`: the native one, and those added by emulation or a cross toolchain.

    `native` is None if unknown. `source` is the label, annotation or other source of the native string. If `complete`
    is false, the native string is a lower bound, because its source (an architecture label, or feature labels with a
    deny list) does not list every feature. The node then has the listed features, lacks the features and levels in
    `absent` (`avx2`, `x86-64-v3`), which the source would have listed, and may have any other feature. `arch` is the
    Kubernetes name of the architecture if nothing else is known.
    """

    native: str | None = None
    emulated: tuple[str, ...] = ()
    cross: tuple[str, ...] = ()
    source: str = ""
    complete: bool = True
    arch: str = ""
    absent: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """Measured usage at one time, in integer base units.

    `source` names the source of the measurement. `stale` means that the sample is too old, so that requests are used
    instead.
    """

    amounts: dict[str, int] = {}
    observed_at: str = ""
    source: str = ""
    stale: bool = False


class NodeReport(msgspec.Struct, frozen=True, rename="camel"):
    """All facts about one node. `gpus` is None if no source lists GPUs; only their allocatable number is known then.

    `attach_limits` is the number of volumes that each storage driver can attach, if the driver reports it. `addresses`
    lists its known addresses. `declared_features` contains the features of its kubelet that pods can require.
    `image_sizes` holds the sizes of its images in the form of `node_images`. `kubelet_version` is the version of its
    kubelet, as in `v1.37.2`, empty if unknown.
    """

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: dict[str, int] = {}
    isa: IsaReport = IsaReport()
    gpus: tuple[GpuCard, ...] | None = None
    numa: NumaReport | None = None
    power: PowerReport | None = None
    attach_limits: dict[str, int] = {}
    usage: Usage | None = None
    problems: tuple[str, ...] = ()
    source: str = ""
    observed_at: str = ""
    addresses: tuple[str, ...] = ()
    declared_features: tuple[str, ...] = ()
    image_sizes: bytes = b""
    kubelet_version: str = ""


CONDITION_TAINTS = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready", "unreachable", "memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable",
        "unschedulable",
    )
)  # fmt: skip
