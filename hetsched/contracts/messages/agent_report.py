"""Report of the node agent about its machine: the output of `hetsched agent --once -o json`, and part of its messages.

Amounts are integers in the unit that their name states. An unknown value is null, and `problems` has an entry with the
reason. A list that could not be read is null; an empty list means that the machine has no such items.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class MachineProblem(msgspec.Struct, frozen=True):
    """Reason why a fact of a machine is unknown or was not accepted; `about` names the place where it was read."""

    code: str
    message: str
    about: str = ""


class IsaSource(msgspec.Struct, frozen=True, rename="camel"):
    """One source of the instruction set, as it was read.

    `canonical` None: the source could not be read. `bound` is exact, or lower if the machine may have more features
    than the source names. `conflict` describes the contradiction to the accepted source.
    """

    source: str
    text: str
    canonical: str | None = None
    bound: str = "exact"
    conflict: str | None = None


class EmulatedIsa(msgspec.Struct, frozen=True, rename="camel"):
    """Instruction set that runs by emulation; `slowdown` is time emulated / time native, None without a measurement."""

    isa: str
    by: str
    version: str | None = None
    slowdown: float | None = None


class MachineIsa(msgspec.Struct, frozen=True, rename="camel"):
    """RISC-V machines have `extensions`, with the implied ones; others `level` and `features`, with the kernel's names.

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

    `steal_ratio` is the share of its CPU time that the hypervisor gave to other guests, `offline_capacity_millis` the
    rest that remains for this machine.
    """

    id: int
    cpus: str
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    distances: tuple[int, ...] | None = None
    hugepages: dict[str, int] = {}
    steal_ratio: float | None = None
    offline_capacity_millis: int | None = None


class MachineCpu(msgspec.Struct, frozen=True, rename="camel"):
    """One hardware thread. `core` is the lowest ID of its siblings, `cache` the lowest ID on its last-level cache."""

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
    """Link of a GPU to another GPU of its machine: a kind of `node_report.LINK_KINDS`, GB/s in one direction."""

    to: int
    kind: str
    bandwidth_gbs: float | None = msgspec.field(default=None, name="bandwidthGBs")


class MachineCard(msgspec.Struct, frozen=True, rename="camel"):
    """One physical GPU; `memory_mib` is the driver's value. `mig_devices` None: its MIG state is unknown."""

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
    """Configuration of the machine's kubelet and its assignments. `exclusive`: pod UID -> container -> CPUs.

    `devices`: pod UID -> container -> resource -> device IDs, from the kubelet's podresources API. `device_zones`:
    resource -> device ID -> near zones, of all healthy devices. `pod_names`: pod UID -> `namespace/name`. `foreign` are
    the pods (keys of `exclusive` and `devices`) that the control plane does not know: the server, not the agent, fills
    it in.
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


class MachineUsage(msgspec.Struct, frozen=True, rename="camel"):
    """Use over the last `window_seconds`, and capacity: resource -> base units (millicores, bytes, Mbit/s, MB/s).

    A resource that is not in `amounts` was not measured.
    """

    amounts: dict[str, int] = {}
    capacity: dict[str, int] = {}
    window_seconds: float | None = None
    observed_at: str = ""


class PinnedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """Granted and actual CPUs of a container; `drift` describes the difference in a sentence."""

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
