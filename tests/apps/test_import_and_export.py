"""An import replaces a whole cluster or nothing, keeps our placements, and an export equals the import."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import (
    Allocation,
    CardGrant,
    ClaimedDevices,
    DeviceMapping,
    ExtendedClaim,
    ZoneGrant,
)
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import OutboxEvent
from hetsched.placement.actions import export_cluster, import_cluster
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries import topics
from hetsched.placement.queries.invariants import check_invariants
from hetsched.policies.models import PolicyRevision
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.listener import Listener
from tests.situations import ALICE, a_cluster, placed, placing, recorded, submitted

pytestmark = pytest.mark.django_db


def _content(*nodes: NodeBuilder, running: tuple[PodBuilder, ...] = (), **more: Any) -> ClusterContent:
    pods = tuple(pod.build() for pod in running)
    return ClusterContent(nodes=tuple(node.build() for node in nodes), running=pods, **more)


def _import(content: ClusterContent, name: str = "fleet") -> Cluster:
    return import_cluster(content, name=name, actor=ALICE)


def test_running_pods_of_the_file_use_capacity() -> None:
    running = (a_pod("db").cpu("2").running_on("n1"), a_pod("web").cpu("500m").running_on("n1"))
    cluster = a_cluster(a_node("n1"), running=running)
    node = Node.objects.get()
    assert (node.pods, node.requested["cpu"]) == (2, 2500)
    assert cluster.requested["cpu"] == 2500
    assert set(Pod.objects.values_list("state", "origin")) == {("running", "imported")}
    assert check_invariants() == []


def test_running_pods_without_a_gpu_index_use_the_lowest_free_one() -> None:
    running = (a_pod("named").gpu(1).running_on("n1", CardGrant(0, 1000, 40960)), a_pod("any").gpu(1).running_on("n1"))
    a_cluster(a_node("n1").gpus(3), running=running)
    held = {r.pod.name: [card.index for card in r.allocation.gpus] for r in Reservation.objects.select_related("pod")}
    assert held == {"named": [0], "any": [1]}


def test_two_running_pods_on_one_card_refuse_the_file() -> None:
    card = CardGrant(0, 1000, 40960)
    running = (a_pod("a").gpu(1).running_on("n1", card), a_pod("b").gpu(1).running_on("n1", card))
    with pytest.raises(InputError) as refused:
        a_cluster(a_node("n1").gpus(1), running=running)
    assert refused.value.code == "CardHeldTwice"
    assert not Cluster.objects.exists()


def test_running_pod_on_a_missing_node_reserves_nothing() -> None:
    a_cluster(a_node("n1"), running=(a_pod("lost").running_on("elsewhere"),))
    assert Pod.objects.get().node is None
    assert not Reservation.objects.exists()
    assert check_invariants() == []


def test_reimport_replaces_nodes_and_foreign_pods_and_keeps_our_placements() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"), running=(a_pod("old").running_on("n2"),))
    placed(cluster, "n1", a_pod("ours"))
    _import(_content(a_node("n1").labelled(rack="a"), a_node("n3"), running=(a_pod("new").running_on("n3"),)))
    assert set(Node.objects.values_list("name", "pods")) == {("n1", 1), ("n3", 1)}
    assert set(Pod.objects.values_list("name", flat=True)) == {"ours", "new"}
    assert Node.objects.get(name="n1").report.labels["rack"] == "a"
    assert check_invariants() == []


def test_node_that_returns_is_published_to_its_subscribers() -> None:
    a_cluster(a_node("n1"), a_node("n2"))
    client = Listener("node:fleet/n2")
    _import(_content(a_node("n1")))
    _import(_content(a_node("n1"), a_node("n2").labelled(rack="a")))
    client.listen()
    assert client.document == topics.snapshot("node:fleet/n2").data


@pytest.mark.parametrize(
    "smaller",
    [a_node("n1").zone("zone-0", "0-1"), a_node("n1").zone("zone-0", "0-3").pods(0)],
    ids=["its CPUs", "its place among the pods"],
)
def test_node_without_the_resources_of_our_pods_rejects_the_file(smaller: NodeBuilder) -> None:
    cluster = a_cluster(a_node("n1").zone("zone-0", "0-3"))
    submitted(cluster, a_pod("ours"))
    allocation = Allocation(zones=(ZoneGrant("zone-0", "2-3"),), cpu_policy="exclusive")
    recorded(cluster, [msgspec.structs.replace(result, allocation=allocation) for result in placing(cluster, "n1")])
    with pytest.raises(InputError) as refused:
        _import(_content(smaller))
    assert refused.value.code == "NodeTooSmall"
    assert check_invariants() == []


def test_placement_on_devices_needs_no_amount_of_the_node() -> None:
    """Devices serve the resource, of which the device plugin of the node reports none."""
    resource = "example.com/gpu"
    claim = ExtendedClaim("c", (ClaimedDevices("r", "gpu", 1),), (DeviceMapping("main", resource, "r"),))
    cluster = a_cluster(a_node("n1").offering(resource, 0))
    submitted(cluster, a_pod("ours").requesting(resource, 1))
    served = Allocation(extended=claim)
    recorded(cluster, [msgspec.structs.replace(result, allocation=served) for result in placing(cluster, "n1")])
    _import(_content(a_node("n1").offering(resource, 0)))
    assert Reservation.objects.get(active=True).allocation.extended == claim
    with pytest.raises(InputError, match="NodeTooSmall"):
        _import(_content(a_node("n1").offering(resource, 0).cpu("100m")))
    assert check_invariants() == []


def test_cordon_of_an_operator_survives_an_import() -> None:
    cluster = a_cluster(a_node("n1"))
    cordon(cluster, "n1", actor=ALICE, reason="disk")
    _import(_content(a_node("n1")))
    node = Node.objects.get()
    assert (node.unschedulable, node.cordoned_by_operator) == (True, True)
    assert load_state(cluster.pk).state.reports[0].unschedulable


@pytest.mark.parametrize(
    ("nodes", "running", "code"),
    [
        ((), (), "ClusterEmpty"),
        ((a_node("n2"),), (), "NodeHoldsPods"),
        ((a_node("n1").cpu("1"),), (), "NodeTooSmall"),
        ((a_node("n1"), a_node("n2")), (a_pod("ours").running_on("n2"),), "PodExists"),
        ((a_node("n1"),), (a_pod("waits").running_on("n1"),), "PodExists"),
    ],
    ids=["no node", "node is gone", "node shrank", "our pod runs elsewhere", "waiting pod's name"],
)
def test_contradictory_import_changes_nothing(nodes: Any, running: Any, code: str) -> None:
    cluster = a_cluster(a_node("n1"))
    placed(cluster, "n1", a_pod("ours").cpu("3"))
    submitted(cluster, a_pod("waits"))
    before = (Cluster.objects.get().revision, OutboxEvent.objects.count(), Node.objects.get().report)
    with pytest.raises(InputError) as refused:
        _import(_content(*nodes, running=running))
    assert refused.value.code == code
    assert (Cluster.objects.get().revision, OutboxEvent.objects.count(), Node.objects.get().report) == before
    assert check_invariants() == []


def test_pods_of_the_file_that_do_not_run_are_submitted() -> None:
    a_cluster(a_node("n1"))
    _import(_content(a_node("n1"), pending=(a_pod("waits").build(),)))
    assert Pod.objects.get().state == "pending"


def test_new_policy_is_activated_and_a_changed_one_stays_a_draft() -> None:
    mine = PolicySpec("mine", (PluginUse("resource-fit"),))
    a_cluster(a_node("n1"))
    _import(_content(a_node("n1"), policies=(mine,)))
    _import(_content(a_node("n1"), policies=(msgspec.structs.replace(mine, description="other"),)))
    states = PolicyRevision.objects.filter(policy__name="mine").order_by("version").values_list("state", flat=True)
    assert list(states) == ["active", "draft"]


def test_referenced_objects_are_stored_with_the_cluster() -> None:
    file = b"""
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 100
---
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {tier: gold}, annotations: {hetsched.io/policy: spread}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/arch: amd64}}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}, conditions: [{type: Ready, status: "True"}]}
"""
    a_cluster(name="other")
    cluster = _import(parse_cluster([("cluster.yaml", file)]))
    known = Cluster.objects.get(pk=cluster.pk).definitions
    assert known.priority_classes["high"].value == 100
    assert known.namespaces["team"] == {"tier": "gold"}
    assert submitted(cluster, a_pod("p", "team")).pods.get().policy == "spread"


def test_exported_cluster_is_imported_with_the_same_state() -> None:
    cluster = a_cluster(
        a_node("n1").gpus(2).using(cpu="1", memory="1Gi"),
        a_node("n2").arch("riscv64", "rv64gc"),
        running=(a_pod("db").cpu("2").running_on("n1"),),
    )
    placed(cluster, "n1", a_pod("ours").cpu("1500m"))
    submitted(cluster, a_pod("waits").priority(3))
    text = write_cluster(export_cluster(Cluster.objects.get()))
    copy = _import(parse_cluster([("export.json", text)]), name="copy")
    state, two = load_state(cluster.pk).state, load_state(copy.pk).state
    assert {key: placed.allocation for key, placed in state.placed_pods.items()} == {
        key: placed.allocation for key, placed in two.placed_pods.items()
    }
    assert (state.columns.static == two.columns.static).all()
    assert (state.columns.load == two.columns.load).all()
    assert Pod.objects.get(cluster=copy, name="waits").priority == 3
    assert Pod.objects.get(cluster=copy, name="ours").state == "running"
    assert check_invariants() == []


def test_reimported_export_keeps_placements() -> None:
    cluster = a_cluster(a_node("n1"))
    pods = placed(cluster, "n1", a_pod("ours"))
    content = msgspec.structs.replace(export_cluster(Cluster.objects.get()), pending=())
    _import(content)
    assert [(pod.pk, pod.state) for pod in Pod.objects.all()] == [(pods[0].pk, "placed")]
    assert check_invariants() == []
