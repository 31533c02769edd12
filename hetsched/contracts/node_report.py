"""What a node says about itself, whoever said it: a file, the API server, a trace or the node agent.

Rule: amounts are integers in base units (millicores, bytes). A fact nobody stated is None, never 0 and never "no":
an unknown does not satisfy a positive demand and never makes a pod *never fits*.
"""

from __future__ import annotations

import msgspec


class Taint(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


LINK_KINDS = ("nvlink", "switch", "zone", "system")


class CardLink(msgspec.Struct, frozen=True, rename="camel"):
    """How a card reaches another of its node: one of `LINK_KINDS`, and GB/s in one direction where that is known."""

    to: int
    kind: str
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")


class GpuCard(msgspec.Struct, frozen=True, rename="camel"):
    """One whole card. `vendor` is nvidia, amd or empty when unknown; `numa_zone` is a zone's name.

    `links` are those that somebody stated, at either end. `maintenance`: an operator keeps new pods off a card that has
    nothing the matter; it is not `healthy` meanwhile, and there again in a cluster that is thought empty.
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


class NumaZone(msgspec.Struct, frozen=True, rename="camel"):
    """One NUMA zone; `cpus` null means that the zone's CPUs are counted, not named."""

    name: str
    cpus: str | None = None
    siblings: str | None = None
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    offline_capacity_millis: int | None = None
    costs: dict[str, int] = {}


class NumaReport(msgspec.Struct, frozen=True, rename="camel"):
    """A node's zones and how its kubelet is set up; policies are None where nobody stated them.

    `lost_cpus` were there and are reported no more: they are in no zone, and whoever holds some of them holds them on.
    """

    zones: tuple[NumaZone, ...] = ()
    cpu_manager_policy: str | None = None
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    reserved_cpus: str | None = None
    lost_cpus: str | None = None


POWER_STATES = ("on", "saving", "capped", "off", "maintenance")


class PowerReport(msgspec.Struct, frozen=True, rename="camel"):
    """What a node's power supply allows: one of `POWER_STATES`, and the watts it could draw on top of what it does."""

    state: str | None = None
    headroom_watts: int | None = None


class IsaReport(msgspec.Struct, frozen=True, rename="camel"):
    """ISA strings checked by `hetsched.isa`: native, and what emulation or a cross toolchain adds.

    `native` None is unknown. `source` says where the native string was read. Where `complete` is false the native
    string is a lower bound (an architecture label, a feature label set with a deny list): what it names is there, what
    it does not name is unknown. `arch` is the architecture by its Kubernetes name where nothing else is known of it.
    """

    native: str | None = None
    emulated: tuple[str, ...] = ()
    cross: tuple[str, ...] = ()
    source: str = ""
    complete: bool = True
    arch: str = ""


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """Measured use at one moment, integer base units.

    `source` says who measured. `stale`: whoever keeps it knows that it is too old to count; requests stand for it.
    """

    amounts: dict[str, int] = {}
    observed_at: str = ""
    source: str = ""
    stale: bool = False


class NodeReport(msgspec.Struct, frozen=True, rename="camel"):
    """All facts about one node. `gpus` None: nobody listed cards, so allocatable counts them without facts.

    `attach_limits` is how many volumes each storage driver can attach to it, where the driver says. `addresses` are
    those under which it is known besides its name.
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


CONDITION_TAINTS = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready", "unreachable", "memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable",
        "unschedulable",
    )
)  # fmt: skip
