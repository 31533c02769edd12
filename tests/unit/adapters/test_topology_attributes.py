"""Attributes and zones of a NodeResourceTopology for the prediction of the kubelet's admission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.adapters.node_facts.report_merge import merge_reports
from hetsched.adapters.objects.export.cluster import topology_object
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.node_topology import numa
from hetsched.contracts.cpuset import format_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    KubeletState,
    MachineCpu,
    MachineIsa,
    MachineZone,
)
from hetsched.contracts.objects.node_report import KubeletGrant, NodeReport, NumaReport, NumaZone


def topology(*attributes: tuple[str, str], **zone: Any) -> dict[str, Any]:
    named = [{"name": name, "value": value} for name, value in attributes]
    return {"attributes": named, "zones": [{"name": "node-0", "type": "Node", **zone}]}


def read(content: dict[str, Any]) -> NumaReport:
    return numa(FieldView(content), [])


def test_options_are_attributes() -> None:
    found = read(
        topology(
            ("cpuManagerPolicyOptions", "full-pcpus-only=true,strict-cpu-reservation=false"),
            ("topologyManagerPolicyOptions", "prefer-closest-numa-nodes=true"),
        )
    )
    assert found.cpu_manager_options == {"full-pcpus-only": "true", "strict-cpu-reservation": "false"}
    assert found.topology_manager_options == {"prefer-closest-numa-nodes": "true"}


def test_available_amounts_and_the_parent_of_a_zone_are_read() -> None:
    resources = [
        {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "0"},
        {"name": "example.com/nic", "capacity": "2", "allocatable": "2", "available": "1"},
    ]
    (zone,) = read(topology(resources=resources, parent="socket-0")).zones
    assert zone.available == {"cpu": 0, "example.com/nic": 1}
    assert zone.parent == "socket-0"


def test_fully_available_zone_has_unknown_use() -> None:
    resources = [{"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}]
    (zone,) = read(topology(resources=resources)).zones
    assert zone.available == {}


def test_topology_export_round_trip() -> None:
    zone = NumaZone(
        "node-0", "0-3", "0,2;1,3", {"cpu": 4000}, {"cpu": 3000}, None, {"node-0": 10}, {"cpu": 1000}, "socket-0"
    )
    facts = NumaReport(
        (zone,), "static", "restricted", "pod", "0", None, {"full-pcpus-only": "true"},
        {"max-allowable-numa-nodes": "16"}, "Static", "0-3", "0-1;2-3",
        (KubeletGrant("uid-1", "2", "a/b", ("GPU-1",), {"node-0": {"example.com/nic": 1}}, True),),
    )  # fmt: skip
    assert read(topology_object(facts, None)) == facts


@pytest.mark.parametrize(
    "text", ["{", "[{}]", '[{"pod": "u", "cpus": "3-1"}]', '[{"pod":"u","devices":{"z":{"r":-1}}}]']
)
def test_grants_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        read(topology(("hetsched.io/kubelet-grants", text)))


def test_agent_report_replaces_available_amounts() -> None:
    cpus = tuple(MachineCpu(cpu, cpu // 2 * 2, 0, 0, f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}", cache=0) for cpu in range(4))
    kubelet = KubeletState("static", {"full-pcpus-only": "true"}, exclusive={"uid-1": {"a": "2", "b": "3"}})
    report = AgentReport("n", MachineIsa("x86", None), (MachineZone(0, "0-3", 1024),), cpus, None, kubelet)
    below = NodeReport("n", numa=NumaReport((NumaZone("node-0", allocatable={"cpu": 4000}, available={"cpu": 0}),)))
    found = merge_reports(below, node_facts(report)).numa
    assert found is not None
    assert found.zones[0].available == {}
    assert (found.sockets, found.caches) == ("0-3", "0-3")
    assert found.cpu_manager_options == {"full-pcpus-only": "true"}
    assert found.grants == (KubeletGrant("uid-1", "2-3"),)


def reserving(number: int | None) -> AgentReport:
    """Return the report of a machine with 2 sockets of 2 zones, with 2, 4 | 3 and 3 CPUs, of which 5 are reserved."""
    zones = (range(2), range(2, 6), range(6, 9), range(9, 12))
    cpus = tuple(MachineCpu(cpu, cpu, at // 2, at, str(cpu), cache=at) for at, zone in enumerate(zones) for cpu in zone)
    options = dict.fromkeys(("align-by-socket", "distribute-cpus-across-numa"), "true")
    kubelet = KubeletState("static", options, reserved_cpus="2-4,6-7", reserved_number=number)
    listed = tuple(MachineZone(at, format_cpuset(zone), 1024) for at, zone in enumerate(zones))
    return AgentReport("n", MachineIsa("x86", None), listed, cpus, None, kubelet)


@pytest.mark.parametrize(
    ("number", "version", "reserved"),
    [(5, "v1.37.2", "0-4"), (5, "v1.36.3", "2-4,6-7"), (5, "", "2-4,6-7"), (None, "v1.37.2", "2-4,6-7"),
     (-5, "v1.37.2", "2-4,6-7"), (99, "v1.37.2", "2-4,6-7")],
)  # fmt: skip
def test_cpus_reserved_by_number_depend_on_the_kubelet_version(number: int | None, version: str, reserved: str) -> None:
    found = node_facts(reserving(number), kubelet_version=version).numa
    assert found is not None
    assert found.reserved_cpus == reserved
    assert sum(zone.allocatable["cpu"] for zone in found.zones) == 7000


def test_offline_cpus_do_not_limit_the_selection_of_reserved_cpus() -> None:
    report = reserving(5)
    offline = tuple(MachineCpu(cpu, cpu, 1, cpu, str(cpu), online=False) for cpu in range(12, 24))
    report = msgspec.structs.replace(report, cpus=(*(report.cpus or ()), *offline))
    found = node_facts(report, kubelet_version="v1.37.2").numa
    assert found is not None
    assert found.reserved_cpus == "0-4"


def test_sockets_are_unknown_if_one_cpu_has_no_socket() -> None:
    cpus = (MachineCpu(0, 0, 0, 0, "0"), MachineCpu(1, 1, None, 0, "1"))
    report = AgentReport("n", MachineIsa("x86", None), (MachineZone(0, "0-1", 1024),), cpus, None)
    found = node_facts(report).numa
    assert found is not None
    assert found.sockets is None
