"""What the node agent says about its machine: the document of `hetsched agent --once -o json`, and what it sends.

Rule: amounts are integers in the unit of their name. What cannot be known is null and has an entry in `problems` that
says why; a list that could not be read is null, an empty one says that there is nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class MachineProblem(msgspec.Struct, frozen=True):
    """Why something of a machine is not known, or not believed; `about` names the place it was looked for."""

    code: str
    message: str
    about: str = ""


class IsaSource(msgspec.Struct, frozen=True, rename="camel"):
    """One place that tells the instruction set, as it was read.

    `canonical` None: it could not be read. `bound` is exact, or lower where more may be there than it names. `conflict`
    says in what it contradicts the source that was believed.
    """

    source: str
    text: str
    canonical: str | None = None
    bound: str = "exact"
    conflict: str | None = None


class EmulatedIsa(msgspec.Struct, frozen=True, rename="camel"):
    """What can be run by emulation; `slowdown` is time emulated / time native, None where nobody measured it."""

    isa: str
    by: str
    version: str | None = None
    slowdown: float | None = None


class MachineIsa(msgspec.Struct, frozen=True, rename="camel"):
    """RISC-V machines have `extensions`, with what they imply; others `level` and `features`, as the kernel has them.

    `cross` are instruction sets that a cross toolchain on the machine compiles for.
    """

    family: str | None
    canonical: str | None
    extensions: tuple[str, ...] | UnsetType = UNSET
    level: str | None | UnsetType = UNSET
    features: tuple[str, ...] | UnsetType = UNSET
    sources: tuple[IsaSource, ...] = ()
    emulated: tuple[EmulatedIsa, ...] = ()
    cross: tuple[str, ...] = ()


class MachineZone(msgspec.Struct, frozen=True, rename="camel"):
    """One NUMA zone; `cpus` are its online CPUs, empty for memory without CPUs. `distances` are in the order of zones.

    `steal_ratio` is the share of its CPU time that the hypervisor gave to others, `offline_capacity_millis` what
    remains for us by that.
    """

    id: int
    cpus: str
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    distances: tuple[int, ...] | None = None
    hugepages: dict[str, int] = {}
    steal_ratio: float | None = None
    offline_capacity_millis: int | None = None


class MachineCpu(msgspec.Struct, frozen=True, rename="camel"):
    """One hardware thread. `core` is the lowest id of its siblings, `cache` of those on its last-level cache."""

    id: int
    core: int | None
    socket: int | None
    zone: int | None
    siblings: str | None
    online: bool = True
    die: int | None = None
    cluster: int | None = None
    cache: int | None = None


class MigDevice(msgspec.Struct, frozen=True, rename="camel"):
    """One instance of a card that is split by MIG."""

    uuid: str | None
    profile: str | None
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")


class MachineLink(msgspec.Struct, frozen=True, rename="camel"):
    """How a card reaches another of its machine: a kind of `node_report.LINK_KINDS`, GB/s in one direction."""

    to: int
    kind: str
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")


class MachineCard(msgspec.Struct, frozen=True, rename="camel"):
    """One physical card; `memory_mib` is what its driver shows. `mig_devices` None: whether it is split is unknown."""

    index: int
    uuid: str | None
    model: str | None
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    mig_devices: tuple[MigDevice, ...] | None = None
    zone: int | None = None
    pci_address: str | None = None
    healthy: bool | None = None
    vendor: str = ""
    cores: int | None = None
    fp32_tflops: float | None = None
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")
    clock_mhz: int | None = msgspec.field(default=None, name="clockMHz")
    links: tuple[MachineLink, ...] = ()
    processes: int | None = None


class KubeletState(msgspec.Struct, frozen=True, rename="camel"):
    """How the kubelet of the machine is set up and what it gave out. `exclusive`: pod uid -> container -> CPUs.

    `devices`: pod uid -> container -> resource -> device ids, by the kubelet's podresources.
    """

    cpu_manager_policy: str | None = None
    cpu_manager_options: dict[str, str] = {}
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    memory_manager_policy: str | None = None
    reserved_cpus: str | None = None
    shared_cpus: str | None = None
    exclusive: dict[str, dict[str, str]] = {}
    devices: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    sources: tuple[str, ...] = ()


class MachineUsage(msgspec.Struct, frozen=True, rename="camel"):
    """Use over the last `window_seconds`, and what there is: resource -> base units (millicores, bytes, Mbit/s, MB/s).

    A resource that is not in `amounts` was not measured.
    """

    amounts: dict[str, int] = {}
    capacity: dict[str, int] = {}
    window_seconds: float | None = None
    observed_at: str = ""


class PinnedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """What a container was granted and what it has; `drift` says in a sentence how they differ."""

    pod_uid: str
    container: str
    predicted: str
    actual: str | None
    by: str = ""
    drift: str = ""


class AgentReport(msgspec.Struct, frozen=True, rename="camel"):
    """Everything about one machine at one moment; `usage` None: not measured. `pinned` None: the agent does not pin."""

    node: str
    isa: MachineIsa
    zones: tuple[MachineZone, ...] | None
    cpus: tuple[MachineCpu, ...] | None
    gpus: tuple[MachineCard, ...] | None
    kubelet: KubeletState | None = None
    usage: MachineUsage | None = None
    problems: tuple[MachineProblem, ...] = ()
    pinned: tuple[PinnedContainer, ...] | None = None
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    agent: str = ""
