"""Allocations of other schedulers' pods are completed once, when the pods are charged, and stored."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.actions.watch import foreign_pods
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Reservation, ReservedCard
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    return a_live_cluster()


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def runs(cluster: Cluster, pod: PodBuilder, node: str) -> None:
    """Report a running pod of kube-scheduler."""
    name = pod.build().name
    spec = pod.having(uid=f"uid-{name}", node_name=node).build()
    seen(
        cluster,
        pods=[
            ObservedPod("default", name, spec.uid, "", "default-scheduler", node_name=node, phase="Running", spec=spec)
        ],
    )


def ends(cluster: Cluster, name: str) -> None:
    seen(cluster, pods_gone=[f"default/{name}"], stopped={f"uid-{name}"})


def assert_cache_equals_loaded_state(cluster: Cluster) -> None:
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert check_invariants() == []


def pinning(name: str) -> NodeBuilder:
    """Return a node of two zones with 4 CPUs each, whose kubelet assigns Guaranteed pods CPUs of one zone."""
    return a_node(name).zone("node-0", "0-3").zone("node-1", "4-7").kubelet("static", "single-numa-node", "container")


def zones() -> dict[str, list[str]]:
    rows = Reservation.objects.filter(active=True).select_related("pod")
    return {row.pod.name: [zone.name for zone in row.allocation.predicted] for row in rows}


def test_batch_of_foreign_pods_is_charged_over_several_inserts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_pods, "_ROWS_AT_ONCE", 2)
    seen(cluster, nodes=[a_node("n1").build()])
    pods = [a_pod(f"theirs-{number}").cpu(1).having(uid=f"u{number}", node_name="n1").build() for number in range(5)]
    observed = [
        ObservedPod("default", pod.name, pod.uid, "", "default-scheduler", node_name="n1", phase="Running", spec=pod)
        for pod in pods
    ]
    seen(cluster, pods=observed)
    assert Node.objects.get(name="n1").requested["cpu"] == 5000
    assert list(Reservation.objects.order_by("id").values_list("pod__name", flat=True)) == [pod.name for pod in pods]
    assert_cache_equals_loaded_state(cluster)


def test_equal_pods_of_a_snapshot_share_their_shape_and_labels(cluster: Cluster) -> None:
    seen(cluster, nodes=[a_node("n1").build()])
    for number in range(2):
        runs(cluster, a_pod(f"theirs-{number}").cpu(1).having(labels={"app": "web"}), "n1")
    first, second = (placed.pod for placed in load_state(cluster.pk).state.placed_pods.values())
    assert first.shape is second.shape
    assert first.labels is second.labels
    assert (first.name, second.name) == ("theirs-0", "theirs-1")


def test_exclusive_cpus_stay_in_their_zone_when_an_earlier_pod_ends(cluster: Cluster) -> None:
    seen(cluster, nodes=[pinning("n1").build()])
    assert_cache_equals_loaded_state(cluster)
    runs(cluster, a_pod("a").cpu(4).guaranteed(), "n1")
    runs(cluster, a_pod("b").cpu(2).guaranteed(), "n1")
    assert_cache_equals_loaded_state(cluster)
    ends(cluster, "a")
    assert zones() == {"b": ["node-1"]}
    assert_cache_equals_loaded_state(cluster)
    runs(cluster, a_pod("b").cpu(2).guaranteed().labelled(x="1"), "n1")
    runs(cluster, a_pod("c").cpu(4).guaranteed(), "n1")
    assert zones() == {"b": ["node-1"], "c": ["node-0"]}
    assert_cache_equals_loaded_state(cluster)


def test_gpus_of_pods_seen_before_their_node_are_stored_with_it(cluster: Cluster) -> None:
    for name in ("a", "b"):
        runs(cluster, a_pod(name).gpu(), "n1")
    seen(cluster, nodes=[a_node("n1").gpus(3).build()])
    seen(cluster, nodes=[a_node("n1").gpus(3).labelled(x="1").build()])
    cards = ReservedCard.objects.filter(active=True).order_by("card_index")
    assert list(cards.values_list("card_index", "reservation__pod__name")) == [(0, "a"), (1, "b")]
    assert_cache_equals_loaded_state(cluster)
    ends(cluster, "a")
    assert_cache_equals_loaded_state(cluster)
    runs(cluster, a_pod("c").gpu(2), "n1")
    assert list(cards.values_list("card_index", flat=True)) == [0, 1, 2]
    assert_cache_equals_loaded_state(cluster)


def test_pods_of_one_batch_get_different_gpus(cluster: Cluster) -> None:
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    runs(cluster, a_pod("a").gpu(), "n1")
    specs = [a_pod(name).gpu().having(uid=f"uid-{name}", node_name="n1").build() for name in ("b", "c")]
    pods = [
        ObservedPod("default", spec.name, spec.uid, "", "default-scheduler", node_name="n1", phase="Running", spec=spec)
        for spec in specs
    ]
    seen(cluster, pods=pods, pods_gone=["default/a"], stopped={"uid-a"})
    cards = ReservedCard.objects.filter(active=True).order_by("card_index")
    assert list(cards.values_list("card_index", "reservation__pod__name")) == [(0, "b"), (1, "c")]
    assert_cache_equals_loaded_state(cluster)
