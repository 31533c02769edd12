"""Zones that an agent reports are written to a NodeResourceTopology and read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hetsched.adapters.kubernetes.node_discovery import AcceptedNodeFacts, PublishedNode, ServedKinds, plan
from hetsched.adapters.kubernetes.resources import TOPOLOGIES
from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.adapters.objects import keys
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.node_topology import numa
from hetsched.agent.probe_topology import probe_topology
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineIsa
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.units import parse_amount
from tests.unit.agent.trees import built, machine

FOLDER = Path(__file__).parent / "nrt"
NODE = {"metadata": {"name": "n1", "uid": "u1", "labels": {}}, "status": {}}


def objects(facts: NodeReport, node: dict[str, Any] = NODE) -> dict[str, dict[str, Any]]:
    """Return the objects to write for a node without any, by kind."""
    writes, conflicts = plan(PublishedNode(node), AcceptedNodeFacts(facts), ServedKinds())
    assert conflicts == []
    return {write.what: write.body for write in writes}


def facts_of(name: str, folder: Path, **kubelet: Any) -> NodeReport:
    zones, cpus = probe_topology(built(folder, machine("sysfs", name)))
    report = AgentReport("n1", MachineIsa(None, None), zones, cpus, None, kubelet=KubeletState(**kubelet))
    return node_facts(report)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_zones_of_published_machine_dumps(name: str, tmp_path: Path) -> None:
    facts = facts_of(name, tmp_path)
    body = objects(facts)[TOPOLOGIES.kind]
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    assert [zone["name"] for zone in body["zones"]] == [zone["name"] for zone in expected["zones"]]
    for zone, known in zip(body["zones"], expected["zones"], strict=True):
        assert zone["costs"] == known.get("costs", [])
        amounts, theirs = (
            {resource["name"]: parse_amount(resource["name"], resource["capacity"]) for resource in side["resources"]}
            for side in (zone, known)
        )
        assert amounts.get("cpu", 0) == theirs.get("cpu", 0)
        # Ours is whole MiB.
        assert 0 <= theirs.get("memory", 0) - amounts.get("memory", 0) < 2**20
        assert all(resource["available"] == resource["allocatable"] for resource in zone["resources"])
    problems: list[str] = []
    assert numa(FieldView(body), problems) == facts.numa
    assert problems == []


def test_offline_capacity_is_written_in_tenths(tmp_path: Path) -> None:
    facts = facts_of("intel-xeon-2p4n-40t-pci", tmp_path)
    assert facts.numa is not None
    zones = tuple(msgspec.structs.replace(zone, offline_capacity_millis=8467) for zone in facts.numa.zones)
    busy = msgspec.structs.replace(facts, numa=msgspec.structs.replace(facts.numa, zones=zones))
    first = objects(busy)[TOPOLOGIES.kind]["zones"][0]
    assert {"name": "offline_capacity", "value": "8400m"} in first["attributes"]


def test_unchanged_object_is_not_written(tmp_path: Path) -> None:
    facts = facts_of("intel-2p2n-16c-nvme-mic", tmp_path, reserved_cpus="0", cpu_manager_policy="static")
    body = objects(facts)[TOPOLOGIES.kind]
    writes, conflicts = plan(PublishedNode(NODE, topology=body), AcceptedNodeFacts(facts), ServedKinds())
    assert ([write.what for write in writes], conflicts) == ([], [])
    # The node was created again with the same name: the object is to be deleted with this one.
    recreated = {**NODE, "metadata": {**NODE["metadata"], "uid": "u2"}}  # type: ignore[dict-item]
    (write,), _ = plan(PublishedNode(recreated, topology=body), AcceptedNodeFacts(facts), ServedKinds())
    assert write.body["metadata"]["ownerReferences"][0]["uid"] == "u2"


def test_unserved_kind_is_not_written(tmp_path: Path) -> None:
    facts = facts_of("intel-2p2n-16c-nvme-mic", tmp_path)
    assert plan(PublishedNode(NODE), AcceptedNodeFacts(facts), ServedKinds(topologies=False)) == ([], [])


@pytest.mark.parametrize(("doubted", "expected"), [((), ["capacity"]), (("hetsched.io/network-mbps",), [])])
def test_quarantined_amount_is_left_unchanged(doubted: tuple[str, ...], expected: list[str]) -> None:
    name = "hetsched.io/network-mbps"
    applied = {"f:status": {part: {f"f:{name}": {}} for part in ("f:capacity", "f:allocatable")}}
    manager = {"manager": keys.DISCOVERY, "operation": "Apply", "subresource": "status", "fieldsV1": applied}
    status = {part: {name: "1k"} for part in ("capacity", "allocatable")}
    node = {"metadata": {**NODE["metadata"], "managedFields": [manager]}, "status": status}  # type: ignore[dict-item]
    known = AcceptedNodeFacts(NodeReport("n1", allocatable={name: 100_000}), doubted=frozenset(doubted))
    writes, conflicts = plan(PublishedNode(node), known, ServedKinds())
    assert ([write.what for write in writes], conflicts) == (expected, [])


def test_published_objects_are_read() -> None:
    zones = {}
    for document in yaml.safe_load_all((FOLDER / "published.yaml").read_text()):
        found = numa(FieldView(document), [])
        zones[document["metadata"]["name"]] = [(zone.name, zone.allocatable["cpu"]) for zone in found.zones]
        assert (found.topology_manager_policy, found.topology_manager_scope) == ("single-numa-node", "container")
    assert zones == {
        "kwok-numa-0": [("node-0", 16000), ("node-1", 16000)],
        "node1": [("node-0", 12000), ("node-1", 24000)],
        "node1-nfd": [("node-0", 16000), ("node-1", 30000)],
    }
