"""File trees of /proc and /sys, built from documents that describe machines."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset

MACHINES = Path(__file__).parent / "machines"
CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
Plain = dict[str, Any]


def write(root: Path, **files: object) -> None:
    """Write files below `root`; `__` in a name is replaced by a slash."""
    for name, content in files.items():
        put(root, name.replace("__", "/"), content)


def put(root: Path, path: str, content: object) -> None:
    """Write one file with a final newline; nothing is written if the content is None."""
    if content is not None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


@cache
def machine(kind: str, name: str) -> Plain:
    """Return the document of a machine; callers must not change it."""
    found: Plain = json.loads((MACHINES / kind / f"{name}.json").read_text())
    return found


def names(kind: str, suffix: str) -> list[str]:
    return sorted(path.name.removesuffix(suffix) for path in (MACHINES / kind).glob(f"*{suffix}"))


def unpacked(root: Path, dump: str) -> Tree:
    """Unpack the CPU nodes, the memory nodes and the procfs of a dump."""
    with tarfile.open(MACHINES / "dumps" / f"{dump}.tar.bz2") as archive:
        for member in archive.getmembers():
            path = member.name.split("/", 1)[-1]
            read = "/cpufreq/" not in path and "/cpuidle/" not in path and path.startswith((CPUS, NODES, "proc/"))
            if member.isfile() and read:
                file = archive.extractfile(member)
                assert file is not None
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(file.read())
    return Tree(root)


def built(root: Path, document: Plain) -> Tree:
    """Build the tree of a machine in `sysfs/`; old kernels have no lists of online nodes and CPUs."""
    cpus, nodes = document["cpus"], document["nodes"]
    listed = document["online_nodes"] is not None
    online = [cpu["cpu"] for cpu in cpus if cpu["online"] != "0"]
    put(root, f"{CPUS}/online", format_cpuset(online) if listed else None)
    put(root, f"{NODES}/online", document["online_nodes"])
    put(root, f"{NODES}/possible", document["possible_nodes"])
    for cpu in cpus:
        folder = f"{CPUS}/cpu{cpu['cpu']}"
        (root / folder).mkdir(parents=True)
        put(root, f"{folder}/online", cpu["online"])
        put(root, f"{folder}/topology/thread_siblings_list", cpu["thread_siblings"])
        put(root, f"{folder}/topology/core_id", cpu["core"])
        put(root, f"{folder}/topology/physical_package_id", cpu["package"])
        put(root, f"{folder}/topology/die_id", cpu["die"])
        put(root, f"{folder}/topology/cluster_id", cpu["cluster"])
        put_cache(root, cpu["cpu"], cpu["l3_shared"])
    for node in nodes:
        pages = {size: there["total"] for size, there in node["hugepages"].items()}
        put_node(root, node["id"], node["cpus"], node["mem_total_kb"], node["distance"], pages)
    return Tree(root)


def put_cache(root: Path, cpu: int, shared: str | None, level: int = 3) -> None:
    folder = f"{CPUS}/cpu{cpu}/cache/index{level}"
    put(root, f"{folder}/shared_cpu_list", shared)
    put(root, f"{folder}/level", None if shared is None else level)
    put(root, f"{folder}/type", None if shared is None else "Unified")


def put_node(
    root: Path, node: int, cpus: Iterable[int], memory_kib: int, distances: Sequence[int], pages: Plain | None = None
) -> None:
    folder = f"{NODES}/node{node}"
    put(root, f"{folder}/cpulist", format_cpuset(cpus))
    put(root, f"{folder}/distance", " ".join(map(str, distances)))
    put(root, f"{folder}/meminfo", f"Node {node} MemTotal:       {memory_kib} kB\nNode {node} MemFree:  1 kB")
    for size, count in (pages or {}).items():
        put(root, f"{folder}/hugepages/hugepages-{size}/nr_hugepages", count)


def put_cpu(root: Path, cpu: int, siblings: str, package: int, **more: int) -> None:
    """Write the topology of an online CPU; `more` are additional files."""
    folder = f"{CPUS}/cpu{cpu}/topology"
    put(root, f"{folder}/thread_siblings_list", siblings)
    put(root, f"{folder}/physical_package_id", package)
    for name, value in more.items():
        put(root, f"{folder}/{name}", value)


def from_hwloc(root: Path, document: Plain) -> Tree:
    """Build a tree from which hwloc would have read such a machine; each CPU belongs to the lowest node of its
    locality.
    """
    cpus = sorted(parse_cpuset(document["cpus"]))
    put(root, f"{CPUS}/online", document["cpus"])
    for cpu in cpus:
        (root / f"{CPUS}/cpu{cpu}").mkdir(parents=True)
        for path, key in (
            ("thread_siblings_list", "cores"), ("core_siblings_list", "packages"), ("die_cpus_list", "dies"),
        ):  # fmt: skip
            put(root, f"{CPUS}/cpu{cpu}/topology/{path}", _holding(cpu, document[key]))
        for path, key in (("physical_package_id", "packages"), ("die_id", "dies")):
            group = _holding(cpu, document[key])
            put(root, f"{CPUS}/cpu{cpu}/topology/{path}", None if group is None else document[key].index(group))
        put_cache(root, cpu, _holding(cpu, document["caches"]))
    nodes = document["nodes"]
    order = [node["id"] for node in nodes]
    put(root, f"{NODES}/online", format_cpuset(order))
    taken: frozenset[int] = frozenset()
    for node in nodes:
        own = parse_cpuset(node["locality"]) - taken
        taken |= own
        put_node(root, node["id"], own, node["memory"] // 1024, distances_of(document, node["id"]))
    return Tree(root)


def distances_of(document: Plain, node: int) -> list[int]:
    """Return a row of distances in the order of node ids; if hwloc did not record distances, they are 10 and 20."""
    order = [other["id"] for other in document["nodes"]]
    if "distances" not in document:
        return [10 if other == node else 20 for other in order]
    listed = document["distances"]["nodes"]
    row = document["distances"]["rows"][listed.index(node)]
    return [row[listed.index(other)] for other in order]


def _holding(cpu: int, groups: list[str]) -> str | None:
    return next((group for group in groups if cpu in parse_cpuset(group)), None)
