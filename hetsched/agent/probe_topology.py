"""CPUs, cores, caches and NUMA zones of a machine.

IDs are assigned differently by each vendor and have gaps, CPUs and memory can be offline, zones may have memory but no
CPUs, kernels omit facts, and a copied tree may be inconsistent. A core is identified by its lowest thread and a
last-level cache by its lowest CPU, because `core_id` and cache IDs are unique only within a package, if at all. A
distance row has one entry per online node, in the order of IDs. A machine without a `node` folder has the single zone
0. A fact that the kernel does not report, or that two files report differently, is None and is listed as a problem; all
other facts are used.
Source: Linux Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/cputopology.rst.
Invariant: each online CPU is in at most one zone, and a zone's CPUs are online.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import MachineCpu, MachineProblem, MachineZone

from .tree import Tree

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
MOST_CPUS = 8192  # largest value of the build option in Linux
MOST_ZONES = 1024
_CPU = re.compile(r"cpu(\d{1,5})", re.ASCII)
_NODE = re.compile(r"node(\d{1,5})", re.ASCII)
_INDEX = re.compile(r"index\d{1,3}", re.ASCII)
_PAGES = re.compile(r"hugepages-(\d{1,12}kB)", re.ASCII)
_TOTAL = re.compile(r"^(?:Node \d+ )?MemTotal:\s+(\d{1,18}) kB", re.MULTILINE | re.ASCII)
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8})*", re.ASCII)
_LARGE = re.compile(r"[0-9]{4,}", re.ASCII)
_MOST_ID = 2**31
_MOST_PAGES = 2**52
_NO_CLUSTER = 65535  # x86 kernels write this value if the cluster is unknown

Cpus = frozenset[int]
_NONE: Cpus = frozenset()


class _CpuTopology(NamedTuple):
    """Topology of one online CPU."""

    siblings: Cpus | None
    socket: int | None
    die: int | None
    cluster: int | None
    cache: int | None


def probe_topology(tree: Tree) -> tuple[tuple[MachineZone, ...] | None, tuple[MachineCpu, ...] | None]:
    """Return the NUMA zones and the CPUs of a machine; each is None if it cannot be read."""
    known = _read_numbers(tree, CPUS, _CPU, MOST_CPUS)
    if not known:
        _problem(tree, "CpusUnknown", CPUS, "no CPU is listed" if known is not None else f"more than {MOST_CPUS} CPUs")
        return None, None
    online = _online(tree, known)
    zones, zone_of = _zones(tree, online)
    places = {cpu: _place(tree, cpu) for cpu in sorted(online)}
    cores = _cores(tree, {cpu: place.siblings for cpu, place in places.items()})
    cpus = tuple(_cpu(cpu, places.get(cpu), cores.get(cpu), zone_of.get(cpu)) for cpu in sorted(known))
    _report_unknown(tree, cpus, zoned=zones is not None)
    _report_split_cores(tree, cpus, cores)
    return zones, cpus


def topology_fingerprint(tree: Tree) -> str:
    """Return a text that changes when the CPUs or memory nodes change; the function reads six files."""
    texts = [tree.text(f"{CPUS}/{name}") for name in ("online", "present", "smt/active")]
    texts += [tree.text(f"{NODES}/{name}") for name in ("online", "has_cpu", "has_memory")]
    return hashlib.sha256(repr(texts).encode()).hexdigest()


def _cpu(cpu: int, place: _CpuTopology | None, core: Cpus | None, zone: int | None) -> MachineCpu:
    if place is None:
        return MachineCpu(cpu, None, None, zone, None, online=False)
    return MachineCpu(
        id=cpu,
        core=min(core) if core else None,
        socket=place.socket,
        zone=zone,
        siblings=format_cpuset(core) if core else None,
        die=place.die,
        cluster=place.cluster,
        cache=place.cache,
    )


# -- CPUs --------------------------------------------------------------------------------------------------------------


def _online(tree: Tree, known: Cpus) -> Cpus:
    """Return which of the known CPUs are online, by the kernel's list or else by each CPU's own file."""
    online = _read_cpu_list(tree, f"{CPUS}/online")
    if online is None:
        return frozenset(cpu for cpu in known if tree.text(f"{CPUS}/cpu{cpu}/online", 64) != "0")
    if online - known:
        missing = format_cpuset(online - known)
        _problem(tree, "CpusContradict", CPUS, f"CPUs {missing} are online but have no folder")
    return online & known


def _place(tree: Tree, cpu: int) -> _CpuTopology:
    folder = f"{CPUS}/cpu{cpu}/topology"
    siblings = _cpus(tree, folder, "thread_siblings_list", "core_cpus_list", mask="thread_siblings")
    if siblings is not None and cpu not in siblings:
        _problem(
            tree, "CpusContradict", folder, f"CPU {cpu} is not in its own list of siblings {format_cpuset(siblings)}"
        )
        siblings = None
    cluster = _id(tree, f"{folder}/cluster_id")
    return _CpuTopology(
        siblings=siblings,
        socket=_id(tree, f"{folder}/physical_package_id"),
        die=_id(tree, f"{folder}/die_id"),
        cluster=None if cluster == _NO_CLUSTER else cluster,
        cache=_last_cache(tree, cpu),
    )


def _last_cache(tree: Tree, cpu: int) -> int | None:
    """Return the lowest CPU that shares the CPU's highest-level cache."""
    folder = f"{CPUS}/cpu{cpu}/cache"
    levels: list[tuple[int, str]] = []
    for name in tree.names(folder):
        if _INDEX.fullmatch(name) and tree.text(f"{folder}/{name}/type", 64) != "Instruction":
            levels.append((_id(tree, f"{folder}/{name}/level") or 0, name))
    if not levels:
        return None
    shared = _cpus(tree, f"{folder}/{max(levels)[1]}", "shared_cpu_list", mask="shared_cpu_map")
    if shared is None:
        return None
    if cpu not in shared:
        _problem(
            tree, "CpusContradict", folder, f"CPU {cpu} is not in the list of CPUs that share its last-level cache"
        )
        return None
    return min(shared)


def _cores(tree: Tree, siblings: Mapping[int, Cpus | None]) -> dict[int, Cpus]:
    """Return the core of each CPU as the set of its online threads; CPUs with inconsistent siblings are omitted."""
    online = {cpu: group & siblings.keys() for cpu, group in siblings.items() if group is not None}
    odd = {cpu for cpu, group in online.items() if any(online.get(other, group) != group for other in group)}
    cores = {cpu: frozenset(group) for cpu, group in online.items() if cpu not in odd}
    if odd:
        _problem(tree, "CpusContradict", CPUS, f"CPUs {format_cpuset(odd)} report inconsistent siblings")
    return cores


def _report_unknown(tree: Tree, cpus: Iterable[MachineCpu], *, zoned: bool) -> None:
    """Report unknown facts of CPUs."""
    offline = [cpu.id for cpu in cpus if not cpu.online]
    if offline:
        what = f"CPUs {format_cpuset(offline)} are offline: their core, socket and siblings are unknown"
        _problem(tree, "CpusOffline", CPUS, what)
    facts = ("core", "siblings", "socket", "die", "cluster", "cache", *(("zone",) if zoned else ()))
    lacking: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for fact in facts:
        without = tuple(cpu.id for cpu in cpus if cpu.online and getattr(cpu, fact) is None)
        if without:
            lacking[without].append(fact)
    for numbers, named in lacking.items():
        what = f"CPUs {format_cpuset(numbers)}: the kernel reports no valid {', '.join(named)}"
        _problem(tree, "CpuFactUnknown", CPUS, what)


def _report_split_cores(tree: Tree, cpus: Iterable[MachineCpu], cores: Mapping[int, Cpus]) -> None:
    """Report cores with threads in several sockets or zones."""
    of = {cpu.id: cpu for cpu in cpus}
    for group in sorted(set(cores.values()), key=min):
        if len({(of[cpu].socket, of[cpu].zone) for cpu in group}) > 1:
            what = f"CPUs {format_cpuset(group)} form one core, but are in several sockets or zones"
            _problem(tree, "CpusContradict", CPUS, what)


# -- zones -------------------------------------------------------------------------------------------------------------


def _zones(tree: Tree, online: Cpus) -> tuple[tuple[MachineZone, ...] | None, dict[int, int]]:
    """Return the zones, and the zone of each CPU that belongs to one."""
    known = _read_numbers(tree, NODES, _NODE, MOST_ZONES)
    if not known:
        if known is None or tree.exists(NODES):
            _problem(tree, "ZonesUnknown", NODES, f"the folder contains no memory node or more than {MOST_ZONES}")
            return None, {}
        return (_whole_machine(tree, online),), dict.fromkeys(online, 0)
    order = _read_cpu_list(tree, f"{NODES}/online") or known
    if order - known:
        missing = format_cpuset(order - known)
        _problem(tree, "ZonesContradict", NODES, f"memory nodes {missing} are online but have no folder")
    zone_of: dict[int, int] = {}
    found: list[MachineZone] = []
    for zone in sorted(order & known):
        claimed = _cpus_of_zone(tree, zone)
        twice = claimed & zone_of.keys()
        if twice:
            _problem(tree, "ZonesContradict", _node(zone), f"CPUs {format_cpuset(twice)} are also in another zone")
        zone_of.update(dict.fromkeys(claimed - twice, zone))
        found.append(
            MachineZone(
                id=zone,
                cpus=format_cpuset((claimed - twice) & online),
                memory_mib=_memory_mib(tree, f"{_node(zone)}/meminfo"),
                distances=_distances(tree, zone, sorted(order), known),
                hugepages=_huge_pages(tree, f"{_node(zone)}/hugepages"),
            )
        )
    return tuple(found), zone_of


def _node(zone: int) -> str:
    return f"{NODES}/node{zone}"


def _whole_machine(tree: Tree, online: Cpus) -> MachineZone:
    return MachineZone(
        id=0,
        cpus=format_cpuset(online),
        memory_mib=_memory_mib(tree, "/proc/meminfo"),
        distances=(10,),
        hugepages=_huge_pages(tree, "/sys/kernel/mm/hugepages"),
    )


def _cpus_of_zone(tree: Tree, zone: int) -> Cpus:
    """Return the CPUs of a memory node, including offline CPUs; old kernels have only links to the CPUs."""
    listed = _cpus(tree, _node(zone), "cpulist", mask="cpumap")
    if listed is not None:
        return listed
    return _read_numbers(tree, _node(zone), _CPU, MOST_CPUS) or _NONE


def _memory_mib(tree: Tree, path: str) -> int | None:
    match = _TOTAL.search(tree.text(path) or "")
    if match is None:
        _problem(tree, "MemoryUnknown", path, "the total memory is missing")
        return None
    return int(match[1]) // 1024


def _distances(tree: Tree, zone: int, order: list[int], known: Cpus) -> tuple[int, ...] | None:
    """Return the distances to the reported zones, or None if the row does not match the online nodes."""
    path = f"{_node(zone)}/distance"
    text = tree.text(path)
    if not text:
        _problem(tree, "DistancesUnknown", path, "the file is missing or empty")
        return None
    row = text.split()
    own = order.index(zone)
    if all(entry.isascii() and entry.isdigit() and len(entry) < 6 for entry in row):
        if len(row) == len(order) and int(row[own]) == 10:
            return tuple(int(entry) for number, entry in zip(order, row, strict=True) if number in known)
        possible = sorted(_read_cpu_list(tree, f"{NODES}/possible") or ())
        if len(row) == len(possible) and zone in possible and int(row[possible.index(zone)]) == 10:
            what = (
                f"{len(row)} distances for {len(order)} online nodes; they are used for the {len(row)} possible nodes"
            )
            _problem(tree, "DistancesContradict", path, what)
            return tuple(int(e) for number, e in zip(possible, row, strict=True) if number in order and number in known)
    what = f"{text[:80]!r} is not a row of {len(order)} distances whose entry {own + 1} is 10"
    _problem(tree, "DistancesContradict", path, what)
    return None


def _huge_pages(tree: Tree, folder: str) -> dict[str, int]:
    """Return the number of huge pages by size, such as 2048kB in the kernel's notation."""
    found: dict[str, int] = {}
    for name in tree.names(folder):
        match = _PAGES.fullmatch(name)
        count = tree.number(f"{folder}/{name}/nr_hugepages") if match else None
        if match and count is not None and 0 <= count < _MOST_PAGES:
            found[match[1]] = count
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_numbers(tree: Tree, folder: str, pattern: re.Pattern[str], most: int) -> Cpus | None:
    """Return the numbers that `pattern` captures from the names in a folder, or None if there are more than `most`."""
    matches = (pattern.fullmatch(name) for name in tree.names(folder))
    numbers = frozenset(int(match[1]) for match in matches if match and int(match[1]) < MOST_CPUS)
    return numbers if len(numbers) <= most else None


def _id(tree: Tree, path: str) -> int | None:
    number = tree.number(path)
    return number if number is not None and 0 <= number < _MOST_ID else None


def _cpus(tree: Tree, folder: str, *lists: str, mask: str) -> Cpus | None:
    """Return the CPUs in the first list that exists, or else in the mask."""
    for name in lists:
        found = _read_cpu_list(tree, f"{folder}/{name}")
        if found is not None:
            return found
    return _parse_mask(tree, f"{folder}/{mask}")


def _read_cpu_list(tree: Tree, path: str) -> Cpus | None:
    text = tree.text(path)
    if text is None:
        return None
    if any(len(number) > 5 or int(number) >= MOST_CPUS for number in set(_LARGE.findall(text))):
        _problem(tree, "ListUnreadable", path, f"a CPU number is too large: at most {MOST_CPUS - 1} is supported")
        return None
    try:
        return parse_cpuset(text)
    except InputError as error:
        _problem(tree, "ListUnreadable", path, error.message)
        return None


def _parse_mask(tree: Tree, path: str) -> Cpus | None:
    """Parse a CPU mask: hexadecimal 32-bit words separated by commas, most significant word first."""
    text = tree.text(path)
    if not text:
        return None
    if not _MASK.fullmatch(text.lower()):
        _problem(tree, "ListUnreadable", path, f"{text[:80]!r} is not a CPU mask")
        return None
    bits = int("".join(word.zfill(8) for word in text.lower().split(",")), 16)
    return frozenset(cpu for cpu, bit in enumerate(f"{bits:b}"[: -MOST_CPUS - 1 : -1]) if bit == "1")


def _problem(tree: Tree, code: str, path: str, why: str) -> None:
    tree.problems.append(MachineProblem(code, f"{path}: {why}", path))
