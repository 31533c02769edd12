"""Inventory over REST: clusters as files, nodes with the source and time of each fact, actions with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.adapters.files import parse_cluster
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.contracts.times import rfc3339
from hetsched.inventory.models import Node
from hetsched.journal.models import AuditEntry
from hetsched.placement.models import Pod

from .conftest import POD, Api

FILE = """\
apiVersion: v1
kind: Node
metadata:
  name: gpu-node-0
  labels: {kubernetes.io/arch: riscv64, hetsched.io/isa: rv64gc_v}
status:
  allocatable: {cpu: "4", memory: 16Gi, pods: "110", nvidia.com/gpu: "1", hetsched.io/network-mbps: "1000"}
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: hetsched.io/v1alpha1
kind: NodeGpu
metadata: {name: gpu-node-0}
spec:
  cards:
  - {index: 0, uuid: GPU-1, model: A100-SXM4-80GB, memoryMiB: 81920, cores: 6912, numaZone: node-0, healthy: true}
---
apiVersion: hetsched.io/v1alpha1
kind: NodeUsage
metadata: {name: gpu-node-0}
usage: {cpu: 3500m, memory: 512Mi, hetsched.io/network-mbps: "40"}
observedAt: 2026-11-20T10:00:00Z
---
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: gpu-node-0}
zones:
- {name: node-0, type: Node, attributes: [{name: hetsched.io/cpus, value: 0-3}]}
---
apiVersion: v1
kind: Pod
metadata: {name: runs, annotations: {hetsched.io/gpu-milli: "400"}}
spec:
  nodeName: gpu-node-0
  containers: [{name: main, resources: {requests: {cpu: "1", memory: 1Gi}}}]
"""
SAMPLED = "2026-11-20T10:00:00Z"
OPENB = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0,64000,262144,2,P100\n"


@pytest.fixture
def imported(operator: Api, policies: None) -> Api:
    operator("POST", "clusters/", {"name": "site", "reason": "first"}, status=201)
    recent = FILE.replace(SAMPLED, rfc3339(timezone.now()))
    operator("POST", "clusters/site/import/?reason=first", recent, kind="application/yaml", status=200)
    return operator


def test_new_cluster_is_empty_and_has_its_location(operator: Api, policies: None) -> None:
    made = operator("POST", "clusters/", {"name": "site", "kind": "demo", "reason": "to try"}, status=201)
    assert made["Location"] == "/api/v1/clusters/site/"
    shown = operator("GET", "clusters/site/")
    assert (shown.json(), shown["ETag"]) == (made.json(), made["ETag"])
    assert (shown.json()["kind"], shown.json()["nodeCount"]) == ("demo", 0)
    entry = AuditEntry.objects.get(action="cluster.create")
    assert (entry.object_name, entry.reason, entry.role) == ("site", "to try", "operator")


def test_names_are_unique(operator: Api, cluster: Any) -> None:
    problem = operator("POST", "clusters/", {"name": "lab", "reason": "x"}, status=409).json()
    assert problem["code"] == "ClusterExists"


def test_unknown_default_policy_is_rejected(operator: Api, policies: None) -> None:
    body = {"name": "site", "reason": "x", "policy": "none"}
    assert operator("POST", "clusters/", body, status=400).json()["code"] == "PolicyUnknown"


def test_import_creates_nodes_and_their_running_pods(imported: Api) -> None:
    cluster = imported.get("clusters/site/")
    assert (cluster["nodeCount"], cluster["cardCount"], cluster["capacity"]["memory"]) == (1, 1, "16Gi")
    node = imported.get("nodes/gpu-node-0/")
    assert (node["family"], node["pods"], node["requested"]["cpu"]) == ("riscv", ["default/runs"], "1")
    assert AuditEntry.objects.get(action="cluster.import").reason == "first"


@pytest.mark.parametrize(
    ("body", "kind"), [(OPENB, "text/csv"), ({"manifest": OPENB, "reason": "x"}, "application/json")]
)
def test_openb_node_list_is_imported(operator: Api, cluster: Any, body: Any, kind: str) -> None:
    operator("POST", "clusters/lab/import/?reason=trace", body, kind=kind, if_match="*", status=200)
    assert [node["name"] for node in operator.get("nodes/")["items"]] == ["openb-node-0"]


def test_invalid_file_changes_nothing(imported: Api) -> None:
    before = imported.tag("clusters/site/")
    wrong = FILE.replace("81920", "-1")
    imported("POST", "clusters/site/import/?reason=x", wrong, kind="application/yaml", if_match="*", status=400)
    assert imported.tag("clusters/site/") == before


def test_import_cannot_remove_nodes_with_our_pods(operator: Api, decided: str) -> None:
    answer = operator("POST", "clusters/lab/import/?reason=x", OPENB, kind="text/csv", if_match="*", status=409)
    assert answer.json()["code"] == "NodeHoldsPods"
    assert Pod.objects.get(name="web").state == "placed"


def test_export_round_trip(imported: Api) -> None:
    answer = imported("GET", "clusters/site/export/?reason=backup", status=200)
    assert answer["Content-Disposition"] == 'attachment; filename="site.json"'
    imported("POST", "clusters/", {"name": "copy", "reason": "x"}, status=201)
    imported("POST", "clusters/copy/import/?reason=x", answer.content, status=200)
    again = imported("GET", "clusters/copy/export/", status=200)
    assert parse_cluster([("a", answer.content)]) == parse_cluster([("a", again.content)])
    assert AuditEntry.objects.filter(action="cluster.export", reason="backup", object_name="site").exists()


def test_anonymised_export_has_no_names_and_can_be_imported(imported: Api) -> None:
    answer = imported("GET", "clusters/site/export/?anonymise=true&reason=support", status=200)
    assert answer["Content-Disposition"] == 'attachment; filename="cluster.json"'
    assert not [name for name in (b"gpu-node-0", b"GPU-1", b"runs", b"site") if name in answer.content]
    imported("POST", "clusters/", {"name": "copy", "reason": "x"}, status=201)
    imported("POST", "clusters/copy/import/?reason=x", answer.content, status=200)
    (pod,) = Pod.objects.filter(cluster__name="copy")
    assert (pod.name, pod.node.name, pod.allocation.gpus[0].milli) == ("pod-0001", "node-0001", 400)


def test_anonymised_export_is_audited_as_such(imported: Api) -> None:
    imported("GET", "clusters/site/export/?anonymise=true&reason=support", status=200)
    imported("GET", "clusters/site/export/?anonymise=false&reason=backup", status=200)
    entries = AuditEntry.objects.filter(action="cluster.export").values_list("reason", "details")
    assert dict(entries) == {"support": {"anonymised": True}, "backup": {}}


def test_invalid_anonymise_value_is_rejected(imported: Api) -> None:
    answer = imported("GET", "clusters/site/export/?anonymise=perhaps", status=400)
    assert (answer.json()["code"], answer.json()["place"]) == ("QueryInvalid", "anonymise")
    assert not AuditEntry.objects.filter(action="cluster.export").exists()


def test_node_isa_shows_implied_extensions_and_source(imported: Api) -> None:
    isa = imported.get("nodes/gpu-node-0/isa/")
    assert {"m", "a", "f", "d", "c", "v", "zicsr"} <= set(isa["extensions"])
    assert isa["origin"]["source"] == "label hetsched.io/isa"
    assert isa["origin"]["ageSeconds"] >= 0


def test_node_gpus_are_shown_with_their_holders(imported: Api) -> None:
    (shown,) = imported.get("nodes/gpu-node-0/gpu/")["cards"]
    assert (shown["card"]["uuid"], shown["freeMilli"]) == ("GPU-1", 600)
    # A shared GPU without a stated amount is charged its share: 81,920 MiB x 0.4 = 32,768.
    holder = {"pod": "default/runs", "milli": 400, "memoryMiB": 32768, "handedOut": None}
    assert shown["holders"] == [holder]
    assert shown["freeMemoryMiB"] == 81920 - 32768


def test_node_zones_are_shown_as_reported(imported: Api) -> None:
    (zone,) = imported.get("nodes/gpu-node-0/numa/")["zones"]
    assert (zone["name"], zone["cpus"]) == ("node-0", "0-3")
    assert (zone["offlineCapacity"], zone["short"], zone["atRisk"]) == (None, None, [])


def test_balance_equals_the_manual_calculation(imported: Api) -> None:
    shown = imported.get("nodes/gpu-node-0/balance/")
    # Measured: CPU 3.5 of 4 = 0.875, memory 0.5 of 16 Gi = 0.03125, network 40 of 1000 = 0.04; no disk.
    # Mean 0.315417, variance (0.313134 + 0.080751 + 0.075854) / 3 = 0.156580, balance 0.843420.
    assert [use["ratio"] for use in shown["resources"].values()] == [0.875, 0.03125, 0.04]
    assert shown["balance"] == pytest.approx(0.843420, abs=1e-6)
    sampled = Node.objects.get(name="gpu-node-0").report.usage.observed_at
    assert (shown["origin"]["source"], shown["origin"]["observedAt"]) == ("usage", sampled)
    whole = imported.get("metrics/balance/")
    assert whole["nodes"] == {"gpu-node-0": shown["balance"]}
    assert whole["metrics"]["gpuAllocation"] == 0.4


def test_unreported_fact_is_null(operator: Api, cluster: Any) -> None:
    assert operator.get("nodes/n1/numa/")["zones"] is None
    assert operator.get("nodes/n1/gpu/")["cards"] == []


def test_operator_cordons_and_uncordons_with_a_reason(operator: Api, cluster: Any) -> None:
    for action, unschedulable in (("cordon", True), ("uncordon", False)):
        answer = operator("POST", "nodes/n1/actions/", {"action": action, "reason": "disk"}, if_match="*", status=200)
        assert answer.json()["unschedulable"] is unschedulable
        assert answer["ETag"] == operator.tag("nodes/n1/")
        entry = AuditEntry.objects.get(action=f"node.{action}")
        assert (entry.object_name, entry.reason) == ("lab/n1", "disk")


def test_operator_trusts_a_node_with_contradicted_facts(operator: Api, cluster: Any) -> None:
    tag = operator.tag("nodes/n1/")
    Node.objects.filter(name="n1").update(
        doubts=(FactConflict("numa", "2026-11-21T10:00:00Z", "default/p", "Refused"),)
    )
    assert operator.tag("nodes/n1/") != tag
    assert [doubt["fact"] for doubt in operator.get("nodes/n1/")["doubts"]] == ["numa"]
    trust = {"action": "trust", "reason": "new firmware"}
    answer = operator("POST", "nodes/n1/actions/", trust, if_match="*", status=200)
    assert answer.json()["doubts"] == []
    entry = AuditEntry.objects.get(action="node.trust")
    assert (entry.object_name, entry.reason, entry.details["numa"]) == ("lab/n1", "new firmware", "default/p: Refused")
    assert operator("POST", "nodes/n1/actions/", trust, if_match="*", status=400).json()["code"] == "NothingInDoubt"


def test_cordoned_node_gets_no_pods(operator: Api, cluster: Any) -> None:
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "disk"}, if_match="*", status=200)
    answer = operator("POST", "what-if/", POD, kind="application/yaml", status=200).json()
    assert answer["placements"][0]["node"] == "n2"


def test_plugins_have_a_parameter_schema(operator: Api) -> None:
    binpack = operator.get("plugins/binpack/")
    assert binpack["params"]["type"] == "object"
    assert set(binpack["defaults"]) == set(binpack["params"]["properties"])
    assert "score" in binpack["points"]


def test_cluster_is_selected_by_query_parameter(imported: Api, cluster: Any) -> None:
    assert imported("GET", "nodes/", status=400).json()["code"] == "ClusterAmbiguous"
    assert [node["name"] for node in imported.get("nodes/", cluster="site")["items"]] == ["gpu-node-0"]
    assert imported.get("nodes/n1/", cluster="lab")["cluster"] == "lab"
    assert imported("GET", "nodes/n1/?cluster=site", status=404)


def test_list_tile_equals_the_live_grid_tile(operator: Api, decided: str, cluster: Any) -> None:
    from hetsched.placement.queries.topics import snapshot

    live = msgspec.json.decode(encode(snapshot("cluster:lab").data))["nodes"]
    listed = {row["name"]: {k: v for k, v in row.items() if v is not None} for row in operator.get("nodes/")["items"]}
    assert listed == live
