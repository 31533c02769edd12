"""The ledger's view of a node's zones and of the allocations there."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.node_report import NumaReport, NumaZone
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.numa.zones_at_risk import ZoneAtRisk, overcommitted
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import built, cluster

GIB = 2**30


def column(node: NodeBuilder, field: str, *running: PodBuilder) -> list[int]:
    found: list[int] = cluster([node], running).columns.field(field)[:, 0].tolist()
    return found


def zones(*listed: NumaZone, **facts: Any) -> NodeBuilder:
    return a_node("n").having(numa=NumaReport(listed, **facts))


# -- facts -------------------------------------------------------------------------------------------------------------


def test_reserved_cpus_are_not_for_pods() -> None:
    # 2 zones of 4 cores with 2 threads, CPUs 0 and 9 reserved: 8 CPUs in each, 7 of them usable
    node = a_node("n").zone("node0", "0-7", cpu="8").zone("node1", "8-15", cpu="8").kubelet(reserved="0,9")
    assert column(node, "zone_cpus") == [8, 8]
    assert column(node, "zone_cpus_usable") == [7, 7]
    assert column(node, "zone_cpu") == [7000, 7000]


def test_zone_without_a_cpuset_uses_its_cpu_count() -> None:
    node = zones(NumaZone("node0", capacity={"cpu": 8000}, allocatable={"cpu": 6500, "memory": 3 * GIB}))
    assert column(node, "zone_cpus") == [8]
    assert column(node, "zone_cpus_usable") == [6]
    assert column(node, "zone_cpu") == [6500]
    assert column(node, "zone_memory") == [3 * 1024]


def test_named_cpus_count_where_no_amount_is_stated() -> None:
    node = zones(NumaZone("node0", "0-3,8"))
    assert column(node, "zone_cpu") == [5000]
    assert column(node, "zone_memory") == [-1]


@pytest.mark.parametrize(("offline", "effective"), [("8400m", 8400), ("30", 24_000), ("0", 0), (None, 24_000)])
def test_offline_capacity_bounds_allocatable_capacity(offline: str | None, effective: int) -> None:
    # min(24 CPUs allocatable, what online workloads leave)
    node = a_node("n").zone("node0", cpu="24", offline=offline)
    assert column(node, "zone_cpu") == [effective]
    assert column(node, "zone_cpu_allocatable") == [24_000]


def test_zones_are_ordered_by_number_and_memory_alone_is_no_zone() -> None:
    amounts = {name: NumaZone(name, allocatable={"cpu": 1000 * n}) for n, name in enumerate(("node-0", "node-2"), 1)}
    node = zones(
        NumaZone("node-10", "4-6"), amounts["node-2"], NumaZone("cxl", capacity={"memory": GIB}), amounts["node-0"]
    )
    assert cluster([node]).zones.nodes[0].names == ("node-0", "node-2", "node-10")
    assert column(node, "zone_cpu") == [1000, 2000, 3000]


def test_cpu_is_in_one_zone() -> None:
    assert column(zones(NumaZone("node0", "0-3"), NumaZone("node1", "2-5")), "zone_cpus") == [4, 2]


def test_nodes_without_zones_have_none() -> None:
    state = cluster([a_node("a"), a_node("b").zone("node0", "0-3")])
    assert state.columns.field("zone_cpu").tolist() == [[0, 4000]]
    assert cluster([a_node("a")]).columns.layout.zones == 0


def test_cards_know_their_zone_by_name_or_number() -> None:
    cards = [a_card(0, numa_zone="node-1"), a_card(1, numa_zone="node0"), a_card(2, numa_zone="numa"), a_card(3)]
    node = a_node("n").having(gpus=tuple(cards)).zone("node-0", "0-3").zone("node-1", "4-7")
    assert column(node, "card_zone") == [1, 0, -1, -1]


# -- allocations
# --------------------------------------------------------------------------------------------------------


def two_zones() -> NodeBuilder:
    return a_node("n").zone("node-0", "0-3").zone("node-1", "4-7").kubelet(reserved="0")


@pytest.mark.parametrize("policy", ["exclusive", "immovable", "static", None])
def test_named_cpus_are_held(policy: str | None) -> None:
    pod = a_pod().holding("n", ZoneGrant("node-0", "1-2", 2000), policy=policy)
    # node-0: 3 CPUs usable, 2 held
    assert column(two_zones(), "zone_cpu_free", pod) == [1000, 4000]
    assert column(two_zones(), "zone_cpus_free", pod) == [1, 4]
    assert cluster([two_zones()], [pod]).zones.free_cpus(0, 0) == {3}


@pytest.mark.parametrize("policy", ["none", "numa"])
def test_shared_cpus_are_counted_only(policy: str) -> None:
    pod = a_pod().holding("n", ZoneGrant("node-0", "1-3", 1500, 512), policy=policy)
    assert column(two_zones(), "zone_cpu_free", pod) == [1500, 4000]
    assert column(two_zones(), "zone_cpus_free", pod) == [3, 4]
    assert column(two_zones(), "zone_memory_free", pod) == [16 * 1024 - 512, 16 * 1024]


def test_cpus_without_a_zone_are_charged() -> None:
    pod = a_pod().holding("n", ZoneGrant("", "3-4"))
    assert column(two_zones(), "zone_cpu_free", pod) == [2000, 3000]
    assert column(two_zones(), "zone_cpus_free", pod) == [2, 3]


def test_older_results_use_the_pods_own_policy() -> None:
    # crane's topology-result names zones as node<ID> and amounts only
    pod = a_pod().numa(None, "exclusive").holding("n", ZoneGrant("node1", None, 2000))
    assert column(two_zones(), "zone_cpu_free", pod) == [3000, 2000]
    assert column(two_zones(), "zone_cpus_free", pod) == [3, 2]


def test_cpus_held_on_a_counted_zone_are_counted() -> None:
    pod = a_pod().holding("n", ZoneGrant("node0", "0-2"))
    node = a_node("n").zone("node0", cpu="8")
    assert column(node, "zone_cpu_free", pod) == [5000]
    assert column(node, "zone_cpus_free", pod) == [5]


def test_cpu_of_two_pods_is_free_after_both_ended() -> None:
    first = a_pod("a").holding("n", ZoneGrant("node-1", "4-5"))
    second = a_pod("b").holding("n", ZoneGrant("node-1", "5-6"))
    state = cluster([two_zones()], [first, second])
    assert state.columns.field("zone_cpus_free")[1, 0] == 1
    state.forget("default/a")
    assert state.zones.free_cpus(0, 1) == {4, 7}
    state.forget("default/b")
    assert state.zones.free_cpus(0, 1) == {4, 5, 6, 7}
    assert state.zones.held == {}


def test_grants_on_unknown_zones_are_left_out() -> None:
    pod = a_pod().holding("n", ZoneGrant("far", "90-95", 2000))
    assert column(two_zones(), "zone_cpu_free", pod) == [3000, 4000]


def test_new_report_moves_existing_grants_to_their_zones() -> None:
    state = cluster([two_zones()], [a_pod().holding("n", ZoneGrant("node-0", "1-2", 2000), policy="exclusive")])
    state.apply_report(built(a_node("n").zone("left", "0-1", cpu="2").zone("right", "2-7", cpu="6")))
    # CPU 1 is in the left zone now, CPU 2 in the right; nothing is reserved any more
    assert state.columns.field("zone_cpu_free")[:, 0].tolist() == [1000, 5000]
    state.forget("default/pod")
    assert state.columns.field("zone_cpu_free")[:, 0].tolist() == [2000, 6000]


def test_report_with_more_zones_needs_a_new_layout() -> None:
    state = cluster([two_zones()])
    assert state.fits_layout(built(a_node("n").zone("node-0", "0-7")))
    assert not state.fits_layout(built(two_zones().zone("node-2", "8-11")))


def test_copy_is_independent() -> None:
    state = cluster([two_zones()], [a_pod().holding("n", ZoneGrant("node-0", "1", 1000))])
    copy = state.fork()
    copy.forget("default/pod")
    assert state.zones.free_cpus(0, 0) == {2, 3}
    assert copy.zones.free_cpus(0, 0) == {1, 2, 3}


def test_emptied_cluster_has_its_allocatable_capacity() -> None:
    node = a_node("n").zone("node-0", "0-3", offline="1500m")
    empty = cluster([node], [a_pod().holding("n", ZoneGrant("node-0", "1", 1000))]).emptied()
    for field, amount in (("zone_cpu_free", 4000), ("zone_cpus_free", 4), ("zone_memory_free", 16 * 1024)):
        assert empty.load(field)[:, 0].tolist() == [amount]
    assert empty.static("zone_cpu")[:, 0].tolist() == [4000]


# -- decreasing capacity -----------------------------------------------------------------------------------------------


def test_pods_of_a_zone_that_fell_below_its_grants_are_listed() -> None:
    pods = [
        a_pod("a").holding("n", ZoneGrant("node-0", None, 2000), policy="numa"),
        a_pod("b").holding("n", ZoneGrant("node-0", "3", 1000), ZoneGrant("node-1", "4", 1000), policy="exclusive"),
        a_pod("c").holding("n", ZoneGrant("node-1", None, 1000), policy="none"),
    ]
    state = cluster([a_node("n").zone("node-0", "0-3").zone("node-1", "4-7")], pods)
    assert list(overcommitted(state)) == []
    fallen = built(a_node("n").zone("node-0", "0-3", offline="1200m").zone("node-1", "4-7"))
    state.apply_report(fallen)
    # 1200m - 3000m granted
    assert list(overcommitted(state)) == [ZoneAtRisk("n", "node-0", 1800, ("default/a", "default/b"))]
    assert sorted(state.placed_pods) == ["default/a", "default/b", "default/c"]


# -- kubelets that pin -------------------------------------------------------------------------------------------------


def pinning(policy: str = "best-effort") -> NodeBuilder:
    return a_node("n").zone("node-0", "0-3").zone("node-1", "4-7").kubelet("static", policy)


def predicted(state: ClusterState, name: str) -> list[tuple[str, int]]:
    return [(zone.name, zone.cpu_millis) for zone in state.placed_pods[f"default/{name}"].allocation.predicted]


def test_predicted_kubelet_choice_is_reserved() -> None:
    pods = [a_pod(name).cpu(3).guaranteed().running_on("n") for name in ("a", "b")]
    state = cluster([pinning()], pods)
    assert [predicted(state, name) for name in ("a", "b")] == [[("node-0", 3000)], [("node-1", 3000)]]
    assert state.columns.field("zone_cpus_free")[:, 0].tolist() == [1, 1]
    assert state.placed_pods["default/a"].allocation.cpu_policy == "static"


def test_kubelet_assignments_are_accepted() -> None:
    said = a_pod("a").cpu(2).guaranteed().holding("n", ZoneGrant("node-1", "5-6"), policy="static")
    state = cluster([pinning()], [said])
    assert predicted(state, "a") == []
    assert state.zones.free_cpus(0, 1) == {4, 7}


def test_pods_that_share_cpus_are_not_predicted() -> None:
    pods = [a_pod("burstable").cpu(2).running_on("n"), a_pod("half").cpu("1500m").guaranteed().running_on("n")]
    assert column(pinning(), "zone_cpus_free", *pods) == [4, 4]


def test_prediction_is_stored_once() -> None:
    allocation = Allocation(predicted=(ZoneGrant("node-1", None, 3000),), cpu_policy="static")
    state = cluster([pinning()], [a_pod("a").cpu(3).guaranteed().having(node_name="n", allocation=allocation)])
    assert state.columns.field("zone_cpus_free")[:, 0].tolist() == [4, 1]


def test_rejected_pod_uses_no_cpus() -> None:
    pods = [a_pod(name).cpu(3).guaranteed().running_on("n") for name in ("a", "b", "c")]
    state = cluster([pinning("restricted")], pods)
    assert predicted(state, "c") == []
    assert state.columns.field("zone_cpus_free")[:, 0].tolist() == [1, 1]
