"""Discovery writes agents' reports to the cluster as labels and objects, and keeps the labels of users.

Real here: the API server with its field managers, RBAC and the admission policy; the reports are stored as those of
agents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.conf import LazySettings

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.connections.access_review import DISCOVERY_RIGHTS
from hetsched.adapters.kubernetes.leader_lease import Election
from hetsched.adapters.kubernetes.resources import NODE_GPUS, NODES, TOPOLOGIES
from hetsched.contracts.api.discovery import Discovery
from hetsched.contracts.messages.agent_message import AgentMessage, digest_of, steady_parts
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    EmulatedIsa,
    KubeletState,
    MachineCard,
    MachineIsa,
    MachineUsage,
    MachineZone,
)
from hetsched.inventory import agent_messages, connections
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import connect
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.journal.audit import SYSTEM
from tests.kube import discovery_account, kinds
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import an_informer, eventually, make, make_node
from tests.kube.test_rbac_permissions import Grant, grant
from workers import discover

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
K1 = "rv64imafdcv_zicbom_zicboz_zicond_zba_zbb_zbc_zbs_zkt_zve32f_zvfh_zvkt_sscofpmf_sstc_svinval_svnapot_svpbmt"


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Return the kubeconfig of discovery's account, on an API server with all CRDs that discovery writes."""
    served = kinds.installed(plane, discovery_account.written_kinds())
    with served, discovery_account.discovering(plane) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def live(
    api: Api, plane: ControlPlane, account: dict[str, Any], cluster: Cluster, settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cluster]:  # fmt: skip
    """Return a cluster that this installation schedules, with a node `n1`, also connected for discovery."""
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})
    kubeconfigs = {"kubeconfig": plane.kubeconfig(), "discovery_kubeconfig": account}
    connect(cluster, **kubeconfigs, actor=SYSTEM, reason="test")
    election = Election(str(Connection.objects.get(cluster=cluster).installation))
    assert election.acquire(api, 1) == ""
    make_node(api, "n1", **{"kubernetes.io/arch": "riscv64"})
    sync_nodes(api, cluster)
    yield cluster
    election.step_down(api, 1)
    for kind in (TOPOLOGIES, NODE_GPUS):
        plane.call("DELETE", kind.path())


def sync_nodes(api: Api, cluster: Cluster) -> None:
    """Run the informer until the nodes are in the database."""
    names = {item["metadata"]["name"] for item in json.loads(api.get(NODES.path()))["items"]}
    Connection.objects.filter(cluster=cluster).update(follower_until=None)
    follower = an_informer(api, cluster)
    eventually(follower, lambda: set(Node.objects.values_list("name", flat=True)) == names and follower.has_applied)
    follower.ended.set()


def report(cluster: Cluster, **changes: Any) -> None:
    """Store a report of n1's agent."""
    agent_report = AgentReport(
        node="n1",
        isa=MachineIsa("riscv", K1, emulated=(EmulatedIsa("x86-64-v2", "qemu-x86_64", "7.2"),)),
        zones=(MachineZone(0, "0-3", 16384, (10, 20)), MachineZone(1, "4-7", 16384, (20, 10))),
        cpus=(),
        gpus=(MachineCard(0, "GPU-a", "NVIDIA A10", 23028, (), zone=1, healthy=True, vendor="nvidia"),),
        kubelet=KubeletState(cpu_manager_policy="static", reserved_cpus="0", topology_manager_policy="restricted"),
        usage=MachineUsage({"cpu": 100}, {"hetsched.io/network-mbps": 10000, "hetsched.io/disk-mbps": 900}),
        memory_mib=32768,
    )
    agent_report = msgspec.structs.replace(agent_report, **changes)
    row = NodeFacts.objects.filter(node__name="n1").first()
    if row is not None:
        NodeFacts.objects.update(reported_at=None)  # however soon after the last report
    sequence = 1 if row is None else row.sequence + 1
    digest = digest_of(steady_parts(agent_report))
    agent_messages.receive(cluster, AgentMessage("n1", "start", "2026-11-21T10:00:00Z", sequence, digest, agent_report))


def found(cluster: Cluster) -> Discovery:
    looked = Connection.objects.get(cluster=cluster).discovery
    assert looked is not None
    return looked


def used(plane: ControlPlane, *, since: int) -> set[Grant]:
    """Return the permissions that discovery's account used, from the API server's own audit log."""
    named = {(right.resource.plural, right.verb): right.name for right in DISCOVERY_RIGHTS}
    calls = set()
    for call in plane.audited()[since:]:
        what = call.get("objectRef")
        if what is None or what["resource"] == "selfsubjectaccessreviews":
            continue
        part = f"/{what['subresource']}" if "subresource" in what else ""
        name = named.get((what["resource"], call["verb"]), "")
        calls.add((what.get("apiGroup", ""), what["resource"] + part, call["verb"], name))
        if call["verb"] == "patch" and call["responseStatus"]["code"] == 201:
            # Applying an absent object creates it, for which the API server checks the create permission.
            calls.add((what.get("apiGroup", ""), what["resource"], "create", ""))
    return calls


def get(api: Api, kind: Resource, name: str = "n1") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(api.get(kind.path(name=name)))
    return document


def change(api: Api, body: dict[str, Any], manager: str = "kubectl-label", part: str = "") -> None:
    api.send(
        "PATCH", NODES.path(name="n1", part=part), json.dumps(body).encode(), query={"fieldManager": manager},
        content="application/merge-patch+json",
    )  # fmt: skip


def test_report_is_written_to_the_cluster_and_round_trips(api: Api, plane: ControlPlane, live: Cluster) -> None:
    report(live)
    since = len(plane.audited())
    reported = Node.objects.get(name="n1").report
    # Labels and annotations, the node's resources, its zones, its GPUs: four writes; then nothing is left to write.
    assert discover.run() == 4
    assert found(live).failures == ()
    assert discover.run() == 0
    assert used(plane, since=since) == set(map(grant, DISCOVERY_RIGHTS))
    node = get(api, NODES)
    labels, annotations = node["metadata"]["labels"], node["metadata"]["annotations"]
    assert (labels["ARCH"], labels["QEMU"]) == ("RV64IMAFDCBV", "X86")
    assert labels["hetsched.io/riscv.zba"] == "true"
    assert annotations["hetsched.io/isa"] == K1
    for part in ("capacity", "allocatable"):
        assert node["status"][part]["hetsched.io/network-mbps"] == "10k"
        assert node["status"][part]["hetsched.io/disk-mbps"] == "900"
    zones = get(api, TOPOLOGIES)
    assert [zone["name"] for zone in zones["zones"]] == ["node-0", "node-1"]
    assert get(api, NODE_GPUS)["spec"]["cards"][0]["uuid"] == "GPU-a"
    for item in (zones, get(api, NODE_GPUS)):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
    # An installation without that agent reads the same facts from these objects.
    Node.objects.all().delete()
    sync_nodes(api, live)
    read = Node.objects.get(name="n1").report
    assert read.isa.native == reported.isa.native
    assert (read.isa.emulated, read.isa.cross, read.isa.complete) == (reported.isa.emulated, reported.isa.cross, True)
    assert (read.numa, read.gpus) == (reported.numa, reported.gpus)
    assert read.allocatable["hetsched.io/network-mbps"] == 10000


def test_nodes_without_an_agent_get_only_an_architecture_label(api: Api, live: Cluster) -> None:
    nfd = {"feature.node.kubernetes.io/cpu-cpuid.X86_64_V3": "true", "kubernetes.io/arch": "amd64"}
    make(api, NODES, "n2", metadata={"labels": nfd})
    discover.run()
    assert get(api, NODES, "n2")["metadata"]["labels"]["ARCH"] == "X86"
    assert get(api, NODES)["metadata"]["labels"]["ARCH"] == "RV64I"
    sync_nodes(api, live)
    isa = Node.objects.get(name="n2").report.isa
    # Our label does not hide the report of a better source, and does not claim to be complete.
    assert (isa.native, isa.complete) == ("x86-64-v3", False)


def test_deleted_label_is_restored_and_foreign_labels_stay(api: Api, live: Cluster) -> None:
    report(live)
    change(api, {"metadata": {"labels": {"team": "a", "node.kubernetes.io/pool": "b"}}})
    discover.run()
    change(api, {"metadata": {"labels": {"ARCH": None}}})
    assert discover.run() == 1
    labels = get(api, NODES)["metadata"]["labels"]
    assert (labels["ARCH"], labels["team"], labels["node.kubernetes.io/pool"]) == ("RV64IMAFDCBV", "a", "b")


def test_label_of_a_user_has_precedence(api: Api, live: Cluster) -> None:
    report(live)
    discover.run()
    change(api, {"metadata": {"labels": {"ARCH": "RV64IM"}}})
    discover.run()
    meta = get(api, NODES)["metadata"]
    assert meta["labels"]["ARCH"] == "RV64IM"
    assert "hetsched.io/isa" not in meta["annotations"]
    assert "hetsched.io/riscv.zba" not in meta["labels"]
    assert meta["labels"]["QEMU"] == "X86"  # which no other source reported
    (conflict,) = found(live).kept
    assert (conflict.what, conflict.theirs, conflict.ours, conflict.by) == (
        "label ARCH",
        "RV64IM",
        "RV64IMAFDCBV",
        "kubectl-label",
    )
    assert discover.run() == 0


def test_foreign_objects_are_unchanged(api: Api, live: Cluster) -> None:
    report(live)
    make(api, TOPOLOGIES, "n1", zones=[{"name": "node-0", "type": "Node"}])
    make(api, NODE_GPUS, "n1", spec={"cards": []})
    discover.run()
    assert [zone["name"] for zone in get(api, TOPOLOGIES)["zones"]] == ["node-0"]
    assert get(api, NODE_GPUS)["spec"]["cards"] == []
    assert [conflict.what for conflict in found(live).kept] == ["NodeResourceTopology", "NodeGpu"]


def test_silent_agent_is_marked_and_its_objects_stay(api: Api, live: Cluster) -> None:
    report(live)
    discover.run()
    late = NodeFacts.objects.get().reported_at - timedelta(hours=1)
    NodeFacts.objects.update(reported_at=late)
    discover.run()
    meta = get(api, NODES)["metadata"]
    assert meta["annotations"]["hetsched.io/facts-stale-since"] == found(live).silent[0].since
    assert meta["labels"]["ARCH"] == "RV64IMAFDCBV"
    assert get(api, NODE_GPUS)["spec"]["cards"][0]["uuid"] == "GPU-a"
    sync_nodes(api, live)
    assert any(problem.startswith("FactsStale") for problem in Node.objects.get().report.problems)
    report(live)
    discover.run()
    assert "hetsched.io/facts-stale-since" not in get(api, NODES)["metadata"]["annotations"]


def test_cordoned_node_is_labelled(api: Api, live: Cluster) -> None:
    report(live)
    change(api, {"spec": {"unschedulable": True}})
    assert discover.run() == 4
    assert get(api, NODES)["spec"]["unschedulable"] is True


def test_quarantined_fact_is_left_unchanged(api: Api, live: Cluster) -> None:
    report(live)
    discover.run()
    report(live, gpus=())  # the only GPU disappeared
    assert [item.fact for item in NodeFacts.objects.get().quarantined] == ["gpu"]
    discover.run()
    assert [card["uuid"] for card in get(api, NODE_GPUS)["spec"]["cards"]] == ["GPU-a"]


def test_discovery_without_account_or_lease_does_not_write(api: Api, plane: ControlPlane, live: Cluster) -> None:
    report(live)
    connect(live, discovery_kubeconfig="", actor=SYSTEM, reason="test")
    assert discover.run() == 0
    assert "ARCH" not in get(api, NODES)["metadata"]["labels"]
    assert found(live).reason == "the connection has no kubeconfig for discovery"
    assert found(live).differing == 4
    (said,) = [check for check in check_cluster(live) if check.check == "discovery"]
    assert "4 differences, but nothing was written" in said.detail
    connect(live, discovery_kubeconfig=discovery_account.access.as_account(plane, discovery_account.NAME),
            actor=SYSTEM, reason="test")  # fmt: skip
    Connection.objects.update(installation="00000000-0000-4000-8000-000000000000")
    assert discover.run() == 0
    assert found(live).reason.startswith("another installation schedules the cluster")


def test_each_missing_permission_is_named(api: Api, plane: ControlPlane, live: Cluster) -> None:
    report(live)
    plane.call("POST", "/api/v1/namespaces/hetsched/serviceaccounts", {"metadata": {"name": "other"}})
    try:
        other = discovery_account.access.as_account(plane, "other")
        make_binding(plane)
        connect(live, discovery_kubeconfig=other, actor=SYSTEM, reason="test")
        assert discover.run() == 0
        missing = {check.check for check in check_cluster(live) if not check.ok}
        assert "discovery's right to patch nodes/status" in missing
        assert "discovery's right to create nodegpus.hetsched.io" in missing
        assert "discovery's right to list nodes" not in missing
    finally:
        plane.call("DELETE", "/api/v1/namespaces/hetsched/serviceaccounts/other")
        for kind in ("clusterroles", "clusterrolebindings"):
            plane.call("DELETE", f"{discovery_account.access.RBAC}/{kind}/looks")


def make_binding(plane: ControlPlane) -> None:
    """Allow the account `other` to read nodes and their objects, and nothing else."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["get", "list"]},
        {"apiGroups": ["topology.node.k8s.io", "hetsched.io"], "resources": ["*"], "verbs": ["list"]},
    ]
    rbac = discovery_account.access.RBAC
    plane.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": "looks"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looks"}
    subject = {"kind": "ServiceAccount", "name": "other", "namespace": "hetsched"}
    binding = {"metadata": {"name": "looks"}, "roleRef": role, "subjects": [subject]}
    plane.call("POST", f"{rbac}/clusterrolebindings", binding)


def test_cluster_without_an_admission_policy_is_not_written_to(api: Api, plane: ControlPlane, live: Cluster) -> None:
    report(live)
    # An administrator has all permissions, and the admission policy applies only to discovery's account.
    connect(live, discovery_kubeconfig=plane.kubeconfig(), actor=SYSTEM, reason="test")
    assert discover.run() == 0
    assert found(live).reason == "the admission policy of deploy/discovery is not active"
    assert "ARCH" not in get(api, NODES)["metadata"]["labels"]
