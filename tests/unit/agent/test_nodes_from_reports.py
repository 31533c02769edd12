"""From a machine's tree through the agent's report to a node on which the engine places pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.agent.machine import read_machine
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.engine.cluster.state import ClusterState
from tests.builders import a_node
from tests.unit.agent import trees
from tests.unit.agent.trees import machine, names, put
from tests.unit.engine.fleet import cluster


def facts(tree: Tree) -> NodeReport:
    return node_facts(read_machine(tree, node="n"))


def state_of(report: NodeReport) -> ClusterState:
    return cluster([a_node("n").having(numa=report.numa, gpus=report.gpus, isa=report.isa)], [])


@pytest.mark.parametrize("name", names("sysfs", ".json"))
def test_machine_becomes_a_node_with_its_zones(tmp_path: Path, name: str) -> None:
    document = machine("sysfs", name)
    report = facts(trees.built(tmp_path, document))
    online = {cpu["cpu"] for cpu in document["cpus"] if cpu["online"] != "0"}
    expected = {f"node-{node['id']}": set(node["cpus"]) & online for node in document["nodes"]}
    assert report.numa is not None
    assert {zone.name: set(parse_cpuset(zone.cpus or "")) for zone in report.numa.zones} == expected
    assert {zone.name: zone.capacity["cpu"] for zone in report.numa.zones} == {
        name: 1000 * len(cpus) for name, cpus in expected.items()
    }
    assert report.allocatable["cpu"] == 1000 * sum(map(len, expected.values()))
    assert report.allocatable["memory"] == sum(node["mem_total_kb"] // 1024 for node in document["nodes"]) * 2**20
    state = state_of(report)
    assert state.zones.nodes[0].names == tuple(expected)
    columns = state.columns.field("zone_cpu")[:, 0].tolist()
    assert columns == [1000 * len(cpus) for cpus in expected.values()]


def test_cores_reach_the_engine(tmp_path: Path) -> None:
    state = state_of(facts(trees.built(tmp_path, machine("sysfs", "ibm-power7-8n-256t"))))
    zones = state.zones.nodes[0]
    # POWER7: 8 cores of 4 threads in each zone, ids of zones with gaps
    assert zones.names == ("node-0", "node-1", "node-4", "node-5", "node-8", "node-9", "node-12", "node-13")
    assert [len(cores) for cores in zones.cores] == [8] * 8
    assert zones.cores[2][0] == (64, 65, 66, 67)


def test_distances_reach_the_engine_by_name(tmp_path: Path) -> None:
    report = facts(trees.built(tmp_path, machine("sysfs", "huawei-kunpeng920-2p4n-128c")))
    assert report.numa is not None
    assert report.numa.zones[0].costs == {"node-0": 10, "node-1": 16, "node-2": 32, "node-3": 33}


@pytest.mark.parametrize("name", names("hwloc", ".json"))
def test_hwlocs_machines_are_nodes_too(tmp_path: Path, name: str) -> None:
    document = machine("hwloc", name)
    report = facts(trees.from_hwloc(tmp_path, document))
    assert report.numa is not None
    assert len(report.numa.zones) == len(document["nodes"])
    state = state_of(report)
    cpus = sum(len(usable or ()) for usable in state.zones.nodes[0].usable)
    assert cpus == len(parse_cpuset(document["cpus"]))


def test_reserved_cpus_and_policies_reach_the_engine(tmp_path: Path) -> None:
    put(
        tmp_path,
        "var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\ncpuManagerPolicy: static\ntopologyManagerPolicy: restricted\n"
        "reservedSystemCPUs: 0,1\n",
    )
    state = state_of(facts(trees.built(tmp_path, machine("sysfs", "intel-4p4n-40c"))))
    # CPUs 0-3 lie in zones 0-3: one of the ten CPUs is reserved in zone 0 and in zone 1
    assert state.columns.field("zone_cpus_usable")[:, 0].tolist() == [9, 9, 10, 10]


def test_sparse_machine_becomes_a_node_with_its_zones(tmp_path: Path) -> None:
    report = facts(trees.unpacked(tmp_path, "48amd64-4pa2n6c-sparse"))
    assert report.numa is not None
    assert [zone.name for zone in report.numa.zones][3:6] == ["node-33", "node-34", "node-45"]
    assert any(problem.startswith("UsageNotMeasured") for problem in report.problems)
    assert state_of(report).columns.field("zone_cpus")[:, 0].tolist() == [6] * 8
