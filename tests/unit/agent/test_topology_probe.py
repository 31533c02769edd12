"""CPUs, cores, caches and zones of real machines, and of odd and contradictory trees."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hetsched.agent.probe_topology import probe_topology, topology_fingerprint
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.messages.agent_report import MachineCpu, MachineZone
from tests.unit.agent import trees
from tests.unit.agent.trees import CPUS, NODES, Plain, machine, names, put

OFFLINE = "intel-offline-cpu0-node0"
DUMPS = {
    "128arm-2pa2n8cluster4co": "huawei-kunpeng920-2p4n-128c",
    "16amd64-8n2c": "amd-opteron-8p8n-16c",
    "40intel64-2g2n4c+pcilocality": "intel-xeon-2p4n-40t-pci",
    "48amd64-4pa2n6c-sparse": "amd-magnycours-4p8n-48c-sparse",
    "nvidia-dgx-gb10": "nvidia-dgx-spark-gb10",
    "offline-cpu0-node0": OFFLINE,
}


def read(tree: Tree) -> tuple[tuple[MachineZone, ...], tuple[MachineCpu, ...]]:
    zones, cpus = probe_topology(tree)
    assert zones is not None
    assert cpus is not None
    return zones, cpus


def codes(tree: Tree) -> set[str]:
    return {problem.code for problem in tree.problems}


# -- real machines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("sysfs", ".json"))
def test_cpus_are_as_documented(tmp_path: Path, name: str) -> None:
    document = machine("sysfs", name)
    _, cpus = read(trees.built(tmp_path, document))
    assert [plain_cpu(cpu) for cpu in cpus] == [expected_cpu(cpu) for cpu in document["cpus"]]


def plain_cpu(cpu: MachineCpu) -> Plain:
    siblings = None if cpu.siblings is None else parse_cpuset(cpu.siblings)
    return {"id": cpu.id, "core": cpu.core, "siblings": siblings, "socket": cpu.socket, "die": cpu.die,
            "cluster": cpu.cluster, "cache": cpu.cache, "zone": cpu.zone, "online": cpu.online}  # fmt: skip


def expected_cpu(cpu: Plain) -> Plain:
    online = cpu["online"] != "0"

    def known(key: str) -> int | None:
        return cpu[key] if online and cpu[key] is not None and cpu[key] >= 0 else None

    siblings = parse_cpuset(cpu["thread_siblings"]) if online else None
    shared = cpu["l3_shared"] if online else None
    return {"id": cpu["cpu"], "core": siblings and min(siblings), "siblings": siblings, "socket": known("package"),
            "die": known("die"), "cluster": known("cluster"), "cache": shared and min(parse_cpuset(shared)),
            "zone": cpu["node"], "online": online}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in names("sysfs", ".json") if name != OFFLINE])
def test_zones_are_as_documented(tmp_path: Path, name: str) -> None:
    document = machine("sysfs", name)
    zones, _ = read(trees.built(tmp_path, document))
    assert zones == tuple(
        MachineZone(
            node["id"],
            format_cpuset(node["cpus"]),
            node["mem_total_kb"] // 1024,
            tuple(node["distance"]),
            {size: pages["total"] for size, pages in node["hugepages"].items()},
        )
        for node in document["nodes"]
    )


def test_machine_with_node_0_and_cpu_0_offline(tmp_path: Path) -> None:
    tree = trees.built(tmp_path, machine("sysfs", OFFLINE))
    zones, cpus = read(tree)
    # CPUs 4-20 are online; node 1 has the odd ones, and node 0, which had the even ones, is missing. Its row still has
    # the two entries of the possible nodes: 21 to node 0, 10 to itself.
    assert zones == (MachineZone(1, "5,7,9,11,13,15,17,19", 65536, (10,), {"1048576kB": 0, "2048kB": 0}),)
    assert [cpu.id for cpu in cpus if cpu.online] == list(range(4, 21))
    assert [cpu.id for cpu in cpus if cpu.online and cpu.zone is None] == list(range(4, 21, 2))
    assert codes(tree) == {"DistancesContradict", "CpusOffline", "CpuFactUnknown"}


@pytest.mark.parametrize(("dump", "name"), DUMPS.items())
def test_topology_matches_the_dump(tmp_path: Path, dump: str, name: str) -> None:
    zones, cpus = read(trees.unpacked(tmp_path / "dump", dump))
    documented_zones, documented = read(trees.built(tmp_path / "document", machine("sysfs", name)))
    assert zones == documented_zones
    if name == "amd-opteron-8p8n-16c":  # the document leaves out the second level, which is the last one here
        assert [cpu.cache for cpu in cpus] == list(range(16))
        assert [plain_cpu(cpu) | {"cache": None} for cpu in cpus] == [plain_cpu(cpu) for cpu in documented]
    else:
        assert cpus == documented


@pytest.mark.parametrize("name", names("lscpu", ".csv"))
def test_topology_matches_lscpu_tables(tmp_path: Path, name: str) -> None:
    with (trees.MACHINES / "lscpu" / f"{name}.csv").open() as file:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    members: Callable[[str, int], list[int]] = lambda key, value: [row["cpu"] for row in rows if row[key] == value]  # noqa: E731
    nodes = sorted({row["node"] for row in rows})
    put(tmp_path, f"{CPUS}/online", format_cpuset(row["cpu"] for row in rows))
    put(tmp_path, f"{NODES}/online", format_cpuset(nodes))
    for row in rows:
        trees.put_cpu(tmp_path, row["cpu"], format_cpuset(members("core", row["core"])), row["socket"])
    for node in nodes:
        trees.put_node(tmp_path, node, members("node", node), 2**20, [10 if n == node else 20 for n in nodes])
    zones, cpus = read(Tree(tmp_path))
    first = {row["core"]: min(members("core", row["core"])) for row in rows}
    assert [(cpu.id, cpu.core, cpu.socket, cpu.zone) for cpu in cpus] == [
        (row["cpu"], first[row["core"]], row["socket"], row["node"]) for row in rows
    ]
    assert [parse_cpuset(zone.cpus) for zone in zones] == [frozenset(members("node", node)) for node in nodes]
    if name == "milkv-pioneer-sg2042":
        assert [zone.cpus for zone in zones] == ["0-7,16-23", "8-15,24-31", "32-39,48-55", "40-47,56-63"]
    if name == "amd-epyc-7451-2p8n":
        assert (len(zones), cpus[50].siblings, cpus[50].core) == (8, "2,50", 2)


@pytest.mark.parametrize("name", names("hwloc", ".json"))
def test_hwloc_counts_the_same(tmp_path: Path, name: str) -> None:
    document = machine("hwloc", name)
    zones, cpus = read(trees.from_hwloc(tmp_path, document))
    counts = {key: len(document[key]) for key in ("packages", "cores", "dies", "caches", "nodes")}
    assert counts == {
        "packages": len({cpu.socket for cpu in cpus} - {None}),
        "cores": len({cpu.core for cpu in cpus} - {None}),
        "dies": len({cpu.die for cpu in cpus} - {None}),
        "caches": len({cpu.cache for cpu in cpus} - {None}),
        "nodes": len(zones),
    }
    assert format_cpuset(cpu.id for cpu in cpus) == document["cpus"]
    assert [zone.memory_mib for zone in zones] == [node["memory"] // 2**20 for node in document["nodes"]]
    assert [list(zone.distances or ()) for zone in zones] == [
        trees.distances_of(document, node["id"]) for node in document["nodes"]
    ]


def test_memory_without_cpus_is_a_zone_without_cpus(tmp_path: Path) -> None:
    zones, cpus = read(trees.from_hwloc(tmp_path, machine("hwloc", "64intel64-heteromem")))
    # four nodes with 16 CPUs each, and four memory-only nodes of fast memory
    assert [len(parse_cpuset(zone.cpus)) for zone in zones] == [16, 16, 16, 16, 0, 0, 0, 0]
    assert {cpu.zone for cpu in cpus} == {0, 1, 2, 3}


@pytest.mark.skipif(not os.path.exists("/usr/bin/lscpu"), reason="needs lscpu")
def test_topology_of_this_machine_matches_lscpu() -> None:
    listed = subprocess.run(["lscpu", "-J", "-e=CPU,CORE,SOCKET,NODE,ONLINE"], capture_output=True, check=True)
    rows = json.loads(listed.stdout)["cpus"]
    zones, cpus = read(Tree())
    online = {row["cpu"]: row for row in rows if row["online"]}
    found = {cpu.id: cpu for cpu in cpus if cpu.online}
    assert found.keys() == online.keys()
    for one in found.values():
        assert one.zone == (online[one.id].get("node") or 0)
        if one.siblings is not None:
            core, socket = online[one.id]["core"], online[one.id]["socket"]
            threads = {cpu for cpu, row in online.items() if (row["core"], row["socket"]) == (core, socket)}
            assert parse_cpuset(one.siblings) == threads
    assert sum(len(parse_cpuset(zone.cpus)) for zone in zones) == len(online)


# -- odd trees ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Tree:
    """A machine with two zones of two cores with two threads, siblings `i, i + 4`."""
    put(tmp_path, f"{CPUS}/online", "0-7")
    put(tmp_path, f"{NODES}/online", "0-1")
    for cpu in range(8):
        trees.put_cpu(tmp_path, cpu, f"{cpu % 4},{cpu % 4 + 4}", cpu % 4 // 2, die_id=0, cluster_id=cpu % 4)
        trees.put_cache(tmp_path, cpu, "0-1,4-5" if cpu % 4 < 2 else "2-3,6-7")
    trees.put_node(tmp_path, 0, (0, 1, 4, 5), 4 * 2**20, (10, 21))
    trees.put_node(tmp_path, 1, (2, 3, 6, 7), 4 * 2**20, (21, 10))
    return Tree(tmp_path)


def test_plain_machine_has_no_problems(plain: Tree) -> None:
    zones, cpus = read(plain)
    assert zones == (MachineZone(0, "0-1,4-5", 4096, (10, 21)), MachineZone(1, "2-3,6-7", 4096, (21, 10)))
    assert cpus[6] == MachineCpu(6, 2, 1, 1, "2,6", True, 0, 2, 2)
    assert plain.problems == []


def test_machine_without_numa_nodes_is_one_zone(tmp_path: Path) -> None:
    put(tmp_path, f"{CPUS}/online", "0-1,3")
    for cpu in range(4):
        trees.put_cpu(tmp_path, cpu, str(cpu), 0)
    put(tmp_path, "proc/meminfo", "MemTotal:        2097152 kB")
    put(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", 3)
    zones, cpus = read(Tree(tmp_path))
    assert zones == (MachineZone(0, "0-1,3", 2048, (10,), {"2048kB": 3}),)
    assert [cpu.zone for cpu in cpus] == [0, 0, None, 0]


def test_tree_without_cpus_reports_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert probe_topology(tree) == (None, None)
    assert codes(tree) == {"CpusUnknown"}


def test_old_kernels_have_masks_only(plain: Tree) -> None:
    for cpu in range(8):
        folder = plain.root / CPUS / f"cpu{cpu}"
        (folder / "topology/thread_siblings_list").unlink()
        (folder / "cache/index3/shared_cpu_list").unlink()
        put(folder, "topology/thread_siblings", f"00000000,{1 << cpu % 4 | 16 << cpu % 4:08x}")
        put(folder, "cache/index3/shared_cpu_map", "33" if cpu % 4 < 2 else "cc")
    for node, bits in ((0, "33"), (1, "0000,000000cc")):
        (plain.root / NODES / f"node{node}/cpulist").unlink()
        put(plain.root, f"{NODES}/node{node}/cpumap", bits)
    zones, cpus = read(plain)
    assert [zone.cpus for zone in zones] == ["0-1,4-5", "2-3,6-7"]
    assert [(cpu.siblings, cpu.cache) for cpu in cpus[:4]] == [("0,4", 0), ("1,5", 0), ("2,6", 2), ("3,7", 2)]


def test_newer_names_of_lists_are_read(plain: Tree) -> None:
    for cpu in range(8):
        folder = plain.root / CPUS / f"cpu{cpu}/topology"
        (folder / "thread_siblings_list").rename(folder / "core_cpus_list")
    assert [cpu.siblings for cpu in read(plain)[1]][:4] == ["0,4", "1,5", "2,6", "3,7"]


def test_instruction_cache_is_not_the_last_level_cache(plain: Tree) -> None:
    trees.put_cache(plain.root, 0, "0", level=4)
    put(plain.root, f"{CPUS}/cpu0/cache/index4/type", "Instruction")
    assert read(plain)[1][5].cache == read(plain)[1][0].cache == 0


@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        (f"{CPUS}/online", "0-8", "CpusContradict"),
        (f"{CPUS}/online", "0-7,", "ListUnreadable"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "0,4", "CpusContradict"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "0-1,4-5", "CpusContradict"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "1,5,2", "CpusContradict"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "all", "ListUnreadable"),
        (f"{CPUS}/cpu1/topology/physical_package_id", "one", "FileNotNumber"),
        (f"{CPUS}/cpu1/topology/physical_package_id", "1", "CpusContradict"),
        (f"{CPUS}/cpu1/topology/physical_package_id", "-1", "CpuFactUnknown"),
        (f"{CPUS}/cpu1/topology/cluster_id", "65535", "CpuFactUnknown"),
        (f"{CPUS}/cpu1/cache/index3/shared_cpu_list", "0,4", "CpusContradict"),
        (f"{CPUS}/cpu1/topology/physical_package_id", "9" * 40, "CpuFactUnknown"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "9" * 9000, "ListUnreadable"),
        (f"{CPUS}/cpu1/topology/thread_siblings_list", "1,5,9999", "ListUnreadable"),
        (f"{NODES}/online", "0-2", "ZonesContradict"),
        (f"{NODES}/online", "0-1,3-2", "ListUnreadable"),
        (f"{NODES}/node1/cpulist", "1-3,6-7", "ZonesContradict"),
        (f"{NODES}/node1/distance", "21", "DistancesContradict"),
        (f"{NODES}/node1/distance", "10 21", "DistancesContradict"),
        (f"{NODES}/node1/distance", "21 ten", "DistancesContradict"),
        (f"{NODES}/node1/distance", "", "DistancesUnknown"),
        (f"{NODES}/node1/meminfo", "Node 1 MemFree: 1 kB", "MemoryUnknown"),
        (f"{NODES}/node1/hugepages/hugepages-2048kB/nr_hugepages", "many", "FileNotNumber"),
    ],
)
def test_odd_parts_are_reported_and_the_rest_is_read(plain: Tree, path: str, content: str, code: str) -> None:
    put(plain.root, path, content)
    zones, cpus = read(plain)
    assert code in codes(plain)
    assert len(zones) == 2
    assert [cpu.id for cpu in cpus] == list(range(8))
    assert (cpus[6].core, cpus[6].socket, zones[0].cpus) == (2, 1, "0-1,4-5")


def test_no_cpu_is_in_two_zones(plain: Tree) -> None:
    put(plain.root, f"{NODES}/node1/cpulist", "1-3,6-7")
    zones, cpus = read(plain)
    assert [zone.cpus for zone in zones] == ["0-1,4-5", "2-3,6-7"]
    assert cpus[1].zone == 0


def test_contradictory_siblings_are_unknown(plain: Tree) -> None:
    put(plain.root, f"{CPUS}/cpu1/topology/thread_siblings_list", "1")
    _, cpus = read(plain)
    assert [(cpus[cpu].siblings, cpus[cpu].core) for cpu in (0, 1, 5)] == [("0,4", 0), ("1", 1), (None, None)]


def test_empty_numa_node_folder_gives_unknown_zones(plain: Tree) -> None:
    for node in (0, 1):
        (plain.root / NODES / f"node{node}").rename(plain.root / NODES / f"gone{node}")
    zones, cpus = probe_topology(plain)
    assert zones is None
    assert cpus is not None
    assert "ZonesUnknown" in codes(plain)


@pytest.mark.timeout(20)
def test_huge_cpu_lists_are_cheap(plain: Tree) -> None:
    everything = "0-65535"
    put(plain.root, f"{CPUS}/online", everything)
    put(plain.root, f"{NODES}/online", everything)
    for cpu in range(8):
        put(plain.root, f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", everything)
    assert [zone.cpus for zone in read(plain)[0]] == ["0-1,4-5", "2-3,6-7"]


def test_numbers_beyond_linux_limits_are_no_cpus(plain: Tree) -> None:
    (plain.root / CPUS / "cpu8192").mkdir()
    (plain.root / CPUS / "cpu8191").mkdir()
    put(plain.root, f"{CPUS}/online", "0-7,8192")
    assert [cpu.id for cpu in read(plain)[1]][7:] == [7, 8191]
    assert "ListUnreadable" in codes(plain)


def test_fingerprint_changes_when_cpus_disappear(plain: Tree) -> None:
    before = topology_fingerprint(plain)
    assert topology_fingerprint(plain) == before
    put(plain.root, f"{CPUS}/online", "0-6")
    assert topology_fingerprint(plain) != before
