"""Objects of a live API server become rows: our pods are queued, others are charged, ended pods release resources."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.contracts.objects.allocation import Allocation, ClaimedDevices, DeviceMapping, ExtendedClaim
from hetsched.contracts.objects.observed import Changes, ContainerEnd, DeviceHealth, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node, Sync
from hetsched.inventory.node_events import is_synced
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import Topic
from hetsched.placement.actions import apply_changes, begin_binding
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.topics import snapshot
from tests.builders import PodBuilder, a_node, a_pod
from tests.builtins import builtin_policies
from tests.listener import Listener
from tests.situations import placing, recorded

pytestmark = pytest.mark.django_db
GPU = "example.com/gpu"
SERVED = Allocation(extended=ExtendedClaim("c", (ClaimedDevices("r", "gpu", 1),), (DeviceMapping("main", GPU, "r"),)))


@pytest.fixture
def cluster() -> Cluster:
    """Return a live cluster with two nodes of 8 CPUs, with an informer under epoch 1."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    seen(made, nodes=[a_node("n1").build(), a_node("n2").build()])
    return made


def seen(cluster: Cluster, **changes: Any) -> Any:
    return apply_changes(cluster.pk, Changes(**changes), epoch=1)


def an_observed_pod(pod: PodBuilder, scheduler: str = "hetsched", **more: Any) -> ObservedPod:
    spec = pod.having(uid=more.pop("uid", "u1"), node_name=more.get("node_name", "")).build()
    return ObservedPod(
        spec.namespace, spec.name, spec.uid, scheduler_name=scheduler, spec=None if more.get("ended") else spec, **more
    )


def placed_on(cluster: Cluster, node: str) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("p"))])
    recorded(cluster, placing(cluster, node))
    begin_binding(cluster.pk, Pod.objects.values_list("id", flat=True))


def state_of(name: str = "p") -> str:
    return Pod.objects.filter(name=name).latest("id").state


def test_pod_with_our_scheduler_name_is_queued_by_controller(cluster: Cluster) -> None:
    ours = an_observed_pod(a_pod("web-1").having(controller="ReplicaSet/web"))
    seen(cluster, pods=[ours, an_observed_pod(a_pod("theirs"), scheduler="default-scheduler", uid="u2")])
    assert [(pod.name, pod.uid, pod.state, pod.origin) for pod in Pod.objects.all()] == [
        ("web-1", "u1", "pending", "watched")
    ]
    assert Workload.objects.get().name == "web"
    seen(cluster, pods=[ours])
    assert Pod.objects.count() == 1


def test_pod_on_a_node_is_charged_for_any_scheduler(cluster: Cluster) -> None:
    foreign = an_observed_pod(a_pod("theirs").cpu(3), scheduler="default-scheduler", node_name="n1", phase="Running")
    seen(cluster, pods=[foreign])
    assert Node.objects.get(name="n1").requested["cpu"] == 3000
    assert load_state(cluster.pk).state.placed_pods["default/theirs"].row == 0
    seen(cluster, pods=[foreign])
    assert Node.objects.get(name="n1").requested["cpu"] == 3000
    seen(cluster, pods_gone=["default/theirs"], stopped={"u1"})
    assert Node.objects.get(name="n1").requested["cpu"] == 0
    assert check_invariants() == []


def test_terminating_pod_on_a_node_is_charged(cluster: Cluster) -> None:
    leaving = an_observed_pod(a_pod("theirs").cpu(3), scheduler="default-scheduler", node_name="n1", deleting=True)
    seen(cluster, pods=[leaving])
    assert Node.objects.get(name="n1").requested["cpu"] == 3000


def test_our_pod_is_bound_runs_and_ends_by_watch_events(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Pending")])
    assert state_of() == "bound"
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Running")])
    assert state_of() == "running"
    end = ContainerEnd("main", 137, "OOMKilled")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Failed", ended="failed", end=end)])
    pod = Pod.objects.get()
    assert (pod.state, pod.message) == ("failed", "container main ended with exit code 137 (OOMKilled)")
    assert not Reservation.objects.filter(active=True).exists()
    assert check_invariants() == []


def test_merged_events_have_the_same_effect(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Succeeded", ended="succeeded")])
    assert state_of() == "succeeded"
    assert Node.objects.get(name="n1").pods == 0


def test_terminating_pod_keeps_its_reservation(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Running", deleting=True)])
    assert state_of() == "running"
    assert Reservation.objects.filter(active=True).count() == 1
    seen(cluster, pods_gone=["default/p"], stopped={"u1"})
    assert state_of() == "cancelled"
    assert not Reservation.objects.filter(active=True).exists()


@pytest.mark.parametrize(
    ("ended", "deleting", "state"),
    [("failed", True, "cancelled"), ("failed", False, "failed"), ("succeeded", True, "succeeded")],
)
def test_container_ended_by_its_deletion_did_not_fail(cluster: Cluster, ended: str, deleting: bool, state: str) -> None:
    # Kubelets report the end of the containers before the deletion of the pod; both may arrive together or separately.
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase="Running")])
    phase = ended.capitalize()
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", phase=phase, ended=ended, deleting=deleting)])
    assert state_of() == state
    assert Node.objects.get(name="n1").requested.get("cpu", 0) == 0
    seen(cluster, pods_gone=["default/p"])
    assert state_of() == state
    assert check_invariants() == []


def test_pod_bound_by_another_scheduler_is_charged_on_its_node(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n2", phase="Running")])
    assert [(pod.state, pod.origin) for pod in Pod.objects.order_by("id")] == [
        ("cancelled", "watched"),
        ("running", "imported"),
    ]
    assert {node.name: node.pods for node in Node.objects.all()} == {"n1": 0, "n2": 1}
    assert check_invariants() == []


def test_recreated_pod_with_another_uid_is_a_new_pod(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), uid="u2")], stopped={"u1"})
    assert [(pod.uid, pod.state) for pod in Pod.objects.order_by("id")] == [("u1", "cancelled"), ("u2", "pending")]
    assert not Reservation.objects.filter(active=True).exists()


def test_allocation_annotation_of_a_foreign_pod_is_ignored(cluster: Cluster) -> None:
    from hetsched.contracts.objects.allocation import Allocation, CardGrant

    claimed = Allocation(gpus=(CardGrant(0, 1000, 0),))
    liar = an_observed_pod(a_pod("liar"), scheduler="default-scheduler", node_name="n1")
    assert liar.spec is not None
    spec = msgspec.structs.replace(liar.spec, allocation=claimed)
    seen(cluster, pods=[msgspec.structs.replace(liar, spec=spec)])
    assert Reservation.objects.get().allocation.gpus == ()


def test_deleted_node_stays_while_it_has_reservations(cluster: Cluster) -> None:
    placed_on(cluster, "n1")
    seen(cluster, nodes_gone=["n1", "n2"])
    (node,) = Node.objects.all()
    assert (node.name, node.gone, node.ready) == ("n1", True, False)
    seen(cluster, pods_gone=["default/p"], stopped={"u1"})
    assert not Node.objects.exists()
    assert check_invariants() == []


def test_events_of_a_former_informer_are_not_written(cluster: Cluster) -> None:
    Connection.objects.update(follower_epoch=2)
    with pytest.raises(Conflict):
        seen(cluster, nodes=[a_node("n3").build()])
    assert Node.objects.count() == 2


def a_sync(cluster: Cluster, **more: Any) -> None:
    now = timezone.now()
    Sync.objects.create(
        **{"cluster": cluster, "resource": "pods", "epoch": 1, "synced_at": now, "alive_at": now, **more}
    )


def test_nothing_is_decided_before_every_required_kind_is_known(cluster: Cluster) -> None:
    assert not is_synced(cluster)
    a_sync(cluster)
    assert is_synced(cluster)
    a_sync(cluster, resource="nodes", synced_at=None)
    assert not is_synced(cluster)


def test_stale_facts_are_not_used(cluster: Cluster) -> None:
    a_sync(cluster, alive_at=timezone.now() - timedelta(seconds=91))
    assert not is_synced(cluster)


def test_knowledge_of_an_earlier_informer_is_not_used(cluster: Cluster) -> None:
    a_sync(cluster)
    Connection.objects.update(follower_epoch=2)
    assert not is_synced(cluster)


def test_optional_kind_is_not_required_for_the_sync(cluster: Cluster) -> None:
    a_sync(cluster)
    a_sync(cluster, resource="nodegpus", required=False, synced_at=None)
    assert is_synced(cluster)


def test_pod_is_not_displaced_by_amounts_that_devices_serve(cluster: Cluster) -> None:
    """The device plugin of the node runs, but reports no devices."""
    seen(cluster, nodes=[a_node("n1").offering(GPU, 0).build()])
    ours = [an_observed_pod(a_pod(name).requesting(GPU, 1), uid=name) for name in ("one", "two")]
    seen(cluster, pods=ours)
    results = [msgspec.structs.replace(result, allocation=SERVED) for result in placing(cluster, "n1")]
    recorded(cluster, results)
    seen(cluster, pods=[an_observed_pod(a_pod("theirs"), uid="u9", scheduler="other", node_name="n1", phase="Pending")])
    assert dict(Pod.objects.values_list("name", "state")) == {"one": "placed", "two": "placed", "theirs": "running"}
    assert check_invariants() == []
    # A pod whose amount no device serves is displaced.
    seen(cluster, pods=[an_observed_pod(a_pod("plugin").requesting(GPU, 1), uid="u10")])
    recorded(cluster, placing(cluster, "n1"))
    theirs = an_observed_pod(a_pod("others"), uid="u11", scheduler="other", node_name="n1", phase="Pending")
    seen(cluster, pods=[theirs])
    assert (state_of("plugin"), state_of("one"), state_of("two")) == ("pending", "placed", "placed")


@pytest.mark.parametrize(
    ("health", "text", "message"),
    [
        ("Unhealthy", "ECC errors", "device gpu-0 (example.com/gpu) of container main is unhealthy (ECC errors)"),
        ("Unknown", "", "the health of device gpu-0 (example.com/gpu) of container main is unknown"),
    ],
)
def test_health_of_devices_is_the_message_of_a_running_pod(
    cluster: Cluster, health: str, text: str, message: str
) -> None:
    placed_on(cluster, "n1")
    there = {"node_name": "n1", "phase": "Running"}
    device = DeviceHealth("main", GPU, "gpu-0", health, text)
    seen(cluster, pods=[an_observed_pod(a_pod("p"), devices=(device,), **there)])
    assert (state_of(), str(Pod.objects.get().message)) == ("running", message)
    seen(cluster, pods=[an_observed_pod(a_pod("p"), devices=(device,) * 5, **there)])
    assert str(Pod.objects.get().message) == "; ".join([*[message] * 3, "2 more devices are not healthy"])
    seen(cluster, pods=[an_observed_pod(a_pod("p"), **there)])
    assert Pod.objects.get().message == ""


def test_pod_moves_when_another_scheduler_filled_its_node(cluster: Cluster) -> None:
    # n1 has 8 CPUs: 2 + 3 + 3 of ours; 4 of another scheduler's pod leave 4.
    ours = [an_observed_pod(a_pod(name).cpu(cpu), uid=name) for name, cpu in (("bound", 2), ("first", 3), ("last", 3))]
    seen(cluster, pods=ours)
    recorded(cluster, placing(cluster, "n1"))
    begin_binding(cluster.pk, [Pod.objects.get(name="bound").pk])
    theirs = an_observed_pod(a_pod("theirs").cpu(4), uid="u9", scheduler="other", node_name="n1", phase="Pending")
    seen(cluster, pods=[theirs])
    # Without the last one 9 of 8 are requested, without the first one too 6.
    states = dict(Pod.objects.values_list("name", "state"))
    assert states == {"bound": "binding", "first": "pending", "last": "pending", "theirs": "running"}
    assert Pod.objects.get(name="last").message == "n1 was filled by default/theirs before the pod was bound"
    assert Node.objects.get(name="n1").requested["cpu"] == 6000
    assert check_invariants() == []
    smaller = an_observed_pod(a_pod("small").cpu(2), uid="u10")
    seen(cluster, pods=[smaller])
    recorded(cluster, [result for result in placing(cluster, "n1") if result.waiting.spec.name == "small"])
    fits = an_observed_pod(a_pod("none").cpu(0), uid="u11", scheduler="other", node_name="n1", phase="Pending")
    seen(cluster, pods=[fits])
    assert state_of("small") == "placed"  # it still fits


def test_deltas_contain_the_pods_that_arrive_with_their_node(cluster: Cluster) -> None:
    clients = [Listener("cluster:live"), Listener("node:live/n1")]
    pod = an_observed_pod(a_pod("p").cpu(2), scheduler="default-scheduler", node_name="n1", phase="Running")
    seen(cluster, nodes=[a_node("n1").labelled(x="1").build()], pods=[pod])
    for client in clients:
        client.listen()
        assert client.document == snapshot(client.topic).data


def test_node_is_removed_from_the_grid_when_its_last_pod_ends(cluster: Cluster) -> None:
    running = an_observed_pod(a_pod("p"), scheduler="default-scheduler", node_name="n1", phase="Running")
    seen(cluster, pods=[running])
    seen(cluster, nodes_gone=["n1"])
    client = Listener("cluster:live")
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", ended="succeeded")])
    client.listen()
    assert client.document == snapshot(client.topic).data


def test_added_node_has_no_event_unless_its_topic_exists(cluster: Cluster) -> None:
    client = Listener("node:live/n1")
    seen(cluster, nodes=[a_node("n3").build()])
    assert not Topic.objects.filter(name="node:live/n3").exists()
    seen(cluster, nodes_gone=["n1"])
    seen(cluster, nodes=[a_node("n1").cpu(4).build()])
    client.listen()
    assert client.document == snapshot(client.topic).data


def test_node_document_follows_a_node_that_returns(cluster: Cluster) -> None:
    """Regression: the pods of a node that was deleted with its last pod were shown on the next node of its name."""
    seen(cluster, nodes=[a_node("n1").labelled(rack="r1").build()])
    seen(cluster, pods=[an_observed_pod(a_pod("p"), scheduler="default-scheduler", node_name="n1", phase="Running")])
    client = Listener("node:live/n1")
    seen(cluster, nodes_gone=["n1"])
    seen(cluster, pods=[an_observed_pod(a_pod("p"), node_name="n1", ended="succeeded")])
    client.listen()
    assert client.document == {}
    seen(cluster, nodes=[a_node("n1").labelled(zone="z1").build()])
    client.listen()
    assert client.document == snapshot(client.topic).data


def test_removed_label_leaves_the_node_document(cluster: Cluster) -> None:
    """Regression: live pages of a node kept a removed label."""
    seen(cluster, nodes=[a_node("n1").labelled(rack="r1").build()])
    client = Listener("node:live/n1")
    seen(cluster, nodes=[a_node("n1").labelled(zone="z1").build()])
    client.listen()
    assert client.document == snapshot(client.topic).data
