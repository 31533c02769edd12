"""Report of the node agent about its machine, as printed by `hetsched agent --once -o json` and sent in messages.

Amounts are integers in the unit given in their name. An unknown value is null, and `problems` has an entry with the
reason. A list that could not be read is null; an empty list means that the machine has no such items.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec
from msgspec import UNSET, UnsetType


class MachineProblem(msgspec.Struct, frozen=True):
    """Reason why a fact of a machine is unknown or was not accepted; `about` is the source that was read."""

    code: str
    message: str
    about: str = ""


class IsaSource(msgspec.Struct, frozen=True, rename="camel"):
    """Instruction set of the machine according to one source.

    `canonical` is None if the source could not be read. `bound` is "exact", or "lower" if the machine may have more
    features than the source lists. `conflict` describes how the source contradicts the accepted source, if it does.
    """

    source: str
    text: str
    canonical: str | None = None
    bound: str = "exact"
    conflict: str | None = None


class EmulatedIsa(msgspec.Struct, frozen=True, rename="camel"):
    """Emulated instruction set; `slowdown` is emulated time / native time, or None if it was not measured."""

    isa: str
    by: str
    version: str | None = None
    slowdown: float | None = None


class MachineIsa(msgspec.Struct, frozen=True, rename="camel"):
    """Instruction set of a machine.

    RISC-V machines have `extensions`, including implied extensions; other machines have `level` and `features`, with
    the kernel's names. `cross` lists the instruction sets that a cross toolchain on the machine compiles for.
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
    """One NUMA zone; `cpus` lists its online CPUs and is empty for a zone without CPUs.

    `distances` are in the order of the zones. `steal_ratio` is the share of the zone's CPU time that the hypervisor
    gave to other guests, and `offline_capacity_millis` is the CPU capacity of the zone without that share, in
    millicores.
    """

    id: int
    cpus: str
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    distances: tuple[int, ...] | None = None
    hugepages: dict[str, int] = {}
    steal_ratio: float | None = None
    offline_capacity_millis: int | None = None


class MachineCpu(msgspec.Struct, frozen=True, rename="camel"):
    """One hardware thread.

    `core` is the lowest CPU ID among the threads of the same core, and `cache` the lowest CPU ID among the threads that
    share its last-level cache.
    """

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
    """One MIG instance of a GPU."""

    uuid: str | None
    profile: str | None
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")


class MachineLink(msgspec.Struct, frozen=True, rename="camel"):
    """Link to another GPU of the machine.

    `kind` is one of `node_report.LINK_KINDS`. `bandwidth_gbs` is the bandwidth of one direction in GB/s.
    """

    to: int
    kind: str
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")


class MachineCard(msgspec.Struct, frozen=True, rename="camel"):
    """One physical GPU; `memory_mib` is the driver's value. `mig_devices` is None if its MIG state is unknown."""

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


class MemoryBlock(msgspec.Struct, frozen=True):
    """Memory of one kind (`memory` or `hugepages-<size>`) on the NUMA nodes `zones` together; `size` is in bytes."""

    zones: tuple[int, ...]
    kind: str
    size: int


class KubeletState(msgspec.Struct, frozen=True, rename="camel"):
    """Configuration of the machine's kubelet and the resources that it assigned to pods.

    `reserved_number` is the number of reserved CPUs if the kubelet selects them itself and the agent knows only this
    number; `reserved_cpus` is then the selection of kubelets before 1.37.
    `exclusive` maps pod UID -> container -> CPUs, and `devices` maps pod UID -> container -> resource -> device IDs,
    from the kubelet's podresources API. `device_zones` maps resource -> device ID -> zones near the device,
    for all healthy devices. `memory` maps NUMA node -> kind of memory -> bytes that the static memory manager may
    assign, or is null if unknown; `memory_blocks` maps pod UID -> container -> assigned memory. `pod_names` maps pod
    UID -> `namespace/name`. `foreign` lists the pods (`holders`) that are unknown to the control plane; it is filled in
    by the server and not by the agent.
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
    topology_manager_options: dict[str, str] = {}
    device_zones: dict[str, dict[str, tuple[int, ...]]] = {}
    pod_names: dict[str, str] = {}
    foreign: tuple[str, ...] = ()
    memory: dict[str, dict[str, int]] | None = None
    memory_blocks: dict[str, dict[str, tuple[MemoryBlock, ...]]] = {}
    reserved_number: int | None = None

    @property
    def holders(self) -> Set[str]:
        """The pods with exclusive CPUs, devices or memory, by UID, or by `namespace/name` if the UID is unknown."""
        return self.exclusive.keys() | self.devices.keys() | self.memory_blocks.keys()


class MachineUsage(msgspec.Struct, frozen=True, rename="camel"):
    """Usage over the last `window_seconds`, and capacity, by resource in base units (millicores, bytes, Mbit/s, MB/s).

    A resource that is not in `amounts` was not measured.
    """

    amounts: dict[str, int] = {}
    capacity: dict[str, int] = {}
    window_seconds: float | None = None
    observed_at: str = ""


class PinnedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """Granted and actual CPUs of a container; `drift` describes the difference, if there is one."""

    pod_uid: str
    container: str
    predicted: str
    actual: str | None
    by: str = ""
    drift: str = ""


class AgentReport(msgspec.Struct, frozen=True, rename="camel"):
    """Everything about one machine at one time.

    `usage` is None if it was not measured. `pinned` is None if the agent does not pin CPUs.
    """

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
