"""Policy options of the kubelet's CPU and topology managers that the prediction of kubelet admission supports.

An option with an unknown name, or with a value that the kubelet cannot read, is reported as unknown and ignored by the
prediction. The same applies to an option that depends on facts which the machine does not report: the threads of each
core, sockets, caches or distances. Booleans are parsed like Go's `strconv.ParseBool`.
Source: kubernetes pkg/kubelet/cm/{cpumanager,topologymanager}/policy_options.go (1.36), and for `limit_equal_parts`
cpumanager/cpu_assignment.go (1.37).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..booleans import BOOLEANS
from ..cpuset import parse_cpuset
from ..units import CPU, is_extended
from .node_report import NumaReport, NumaZone
from .pinned_memory import STATIC

DEFAULT_MAX_NUMA_NODES = 8
# On machines with more NUMA nodes, only the policy `single-numa-node` is modelled, and CPUs are not distributed: other
# policies and the distribution compare all sets of NUMA nodes, whose number grows exponentially.
MOST_MODELLED_NUMA_NODES = 12
CPU_MANAGER_OPTIONS = (
    "full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket", "distribute-cpus-across-cores",
    "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache",
)  # fmt: skip
PREFER_CLOSEST, MAX_NUMA_NODES = "prefer-closest-numa-nodes", "max-allowable-numa-nodes"
_OF_SETS = ("best-effort", "restricted")  # policies that admit pods whose hints contain several NUMA nodes
_MAX_ITEMS = 32
_LIMITED_SINCE = (1, 37)
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})", re.ASCII)


class KubeletOptions(NamedTuple):
    """The enabled options; `unknown` lists options that are set but not modelled, as `name=value`.

    `limit_equal_parts` follows from the other options and the version of the kubelet: if it distributes CPUs over NUMA
    nodes, it takes from each of them at most the available CPUs.
    """

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False
    prefer_closest_numa_nodes: bool = False
    max_allowable_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    unknown: tuple[str, ...] = ()
    limit_equal_parts: bool = False

    @property
    def prefer_one_socket(self) -> bool:
        """Whether the kubelet distributes CPUs over NUMA nodes of one socket if it can."""
        return self.align_by_socket and self.limit_equal_parts


def read_options(
    cpu_manager: Mapping[str, str], topology_manager: Mapping[str, str], kubelet_version: str = ""
) -> KubeletOptions:
    """Read the policy options of the CPU manager and the topology manager.

    `kubelet_version` is the kubelet's version, as in `v1.37.2`, empty if unknown: then the options have the effect of
    Kubernetes 1.36.
    """
    found: dict[str, bool | int] = {}
    unknown: list[str] = []
    for name, value in sorted(cpu_manager.items()):
        if name in CPU_MANAGER_OPTIONS and value in BOOLEANS:
            found[name.replace("-", "_")] = BOOLEANS[value]
        else:
            unknown.append(_shown(name, value))
    for name, value in sorted(topology_manager.items()):
        if name == PREFER_CLOSEST and value in BOOLEANS:
            found["prefer_closest_numa_nodes"] = BOOLEANS[value]
        elif name == MAX_NUMA_NODES and value.isdecimal() and DEFAULT_MAX_NUMA_NODES <= int(value[:6]) == int(value):
            found["max_allowable_numa_nodes"] = int(value)
        else:
            unknown.append(_shown(name, value))
    options = KubeletOptions(**found, unknown=tuple(unknown))  # type: ignore[arg-type]
    limits = options.distribute_cpus_across_numa and minor_version(kubelet_version) >= _LIMITED_SINCE
    return options._replace(limit_equal_parts=limits)


def minor_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, or (0, 0) if it is unknown."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_options(text: str) -> dict[str, str]:
    """Parse options written as `name=value,name=value`, as in kubelet flags and NodeResourceTopology attributes."""
    pairs = (item.partition("=") for item in text.split(",") if item.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def format_options(options: Mapping[str, str]) -> str | None:
    """Return options in the format of `parse_options`, or None if there are no options."""
    return ",".join(f"{name}={value}" for name, value in sorted(options.items())) or None


def bounded(options: Mapping[str, str]) -> dict[str, str]:
    """Keep at most 32 options, and 100 characters of each name and value, because node reports are untrusted."""
    return {name[:100]: value[:100] for name, value in list(options.items())[:_MAX_ITEMS]}


def _shown(name: str, value: str) -> str:
    return f"{name[:100]}={value[:100]}"


def unknown_options(cpu_manager: Mapping[str, str], topology_manager: Mapping[str, str]) -> Iterable[str]:
    """Yield the options that are set but not modelled, as `name=value`."""
    yield from read_options(cpu_manager, topology_manager).unknown


def unmodelled(numa: NumaReport) -> Iterable[str]:
    """Yield the kubelet settings of a node that the prediction of kubelet admission ignores, as `name=value`."""
    options = read_options(numa.cpu_manager_options, numa.topology_manager_options)
    yield from options.unknown
    zones = zones_with_cpus(numa)
    names = {zone.name for zone in zones}
    needed = {
        "full-pcpus-only": (options.full_pcpus_only, all(map(_cores_known, zones))),
        "distribute-cpus-across-numa": (options.distribute_cpus_across_numa, is_distribution_modelled(len(zones))),
        "distribute-cpus-across-cores": (options.distribute_cpus_across_cores, all(map(_cores_known, zones))),
        "align-by-socket": (options.align_by_socket, bool(numa.sockets) or all(zone.parent for zone in zones)),
        "prefer-align-cpus-by-uncorecache": (options.prefer_align_cpus_by_uncorecache, bool(numa.caches)),
        PREFER_CLOSEST: (options.prefer_closest_numa_nodes, all(names <= zone.costs.keys() for zone in zones)),
    }
    for name, (on, known) in needed.items():
        if on and not known:
            yield f"{name}=true"
    policy = (numa.topology_manager_policy or "none").lower()
    is_modelled = policy not in _OF_SETS or len(_zones_with_resources(numa)) <= MOST_MODELLED_NUMA_NODES
    if policy != "none" and not (is_modelled and len(numa.zones) <= options.max_allowable_numa_nodes):
        yield f"topologyManagerPolicy={policy}"
    if numa.memory_manager_policy not in (None, "", "None") and not assigns_memory(numa):
        yield f"memoryManagerPolicy={numa.memory_manager_policy[:100]}"


def zones_with_cpus(numa: NumaReport) -> list[NumaZone]:
    """Return the zones that have online CPUs."""
    return [zone for zone in numa.zones if zone.cpus or zone.capacity.get(CPU) or zone.allocatable.get(CPU)]


def _zones_with_resources(numa: NumaReport) -> list[NumaZone]:
    """Return the zones that have online CPUs, or devices of extended resources."""
    with_cpus = {zone.name for zone in zones_with_cpus(numa)}
    return [zone for zone in numa.zones if zone.name in with_cpus or any(map(is_extended, zone.allocatable))]


def is_distribution_modelled(numa_nodes: int) -> bool:
    """Return whether the model distributes CPUs over this number of NUMA nodes, of those with online CPUs."""
    return numa_nodes <= MOST_MODELLED_NUMA_NODES


def assigns_memory(numa: NumaReport) -> bool:
    """Return whether the memory manager of the kubelet is static, and the prediction models it.

    The assignable memory of each NUMA node must be known, and their number is limited under every topology policy: the
    memory manager always compares all sets of NUMA nodes.
    """
    return (
        numa.memory_manager_policy == STATIC
        and 0 < len(numa.zones) <= MOST_MODELLED_NUMA_NODES
        and all(zone.assignable is not None for zone in numa.zones)
    )


def _cores_known(zone: NumaZone) -> bool:
    """Return whether the report assigns each CPU of a zone to a core."""
    groups = (zone.siblings or "").split(";")
    return zone.cpus is not None and parse_cpuset(zone.cpus) <= frozenset[int]().union(*map(parse_cpuset, groups))
