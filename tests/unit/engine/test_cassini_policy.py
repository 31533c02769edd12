"""The built-in policies on machines with zones: participating pods and preferred nodes."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import ZoneGrant
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import scheduler


def zoned(name: str, *zones: int) -> NodeBuilder:
    node = a_node(name).cpu(8)
    for number, cpus in enumerate(zones):
        node.zone(f"node{number}", cpu=str(cpus))
    return node


def whole(cpus: int) -> PodBuilder:
    return a_pod("p").cpu(cpus).guaranteed()


@pytest.mark.parametrize(
    ("policy", "zones"),
    [("cassini", (ZoneGrant("node0", None, 4000), ZoneGrant("node1", None, 2000))), ("hetsched", ())],
)
def test_pods_with_whole_cpus_without_a_numa_policy(policy: str, zones: tuple[ZoneGrant, ...]) -> None:
    assert scheduler([zoned("n", 4, 4)], policy=policy).schedule(whole(6).build()).allocation.zones == zones


@pytest.mark.parametrize("policy", ["cassini", "hetsched"])
def test_node_with_fewer_zones_for_the_pod_is_preferred(policy: str) -> None:
    # 7 CPUs lie in three zones on a (3 + 3 + 1), in two on b (4 + 3) and in one on c.
    nodes = [zoned("a", 3, 3, 2), zoned("b", 4, 4), zoned("c", 8)]
    assert scheduler(nodes, policy=policy).schedule(whole(7).numa(False, "exclusive").build()).node == "c"
    assert scheduler(nodes[:2], policy=policy).schedule(whole(7).numa(False, "exclusive").build()).node == "b"


def test_four_pods_of_three_cpus_get_a_zone_each() -> None:
    nodes = [zoned("a", 4, 4), zoned("b", 4, 4)]
    pods = [whole(3).having(name=f"p{number}").numa(True, "exclusive").build() for number in range(5)]
    deciding = scheduler(nodes, policy="cassini")
    granted = [
        (outcome.node, [zone.name for zone in outcome.allocation.zones]) for outcome in map(deciding.schedule, pods)
    ]
    assert granted[:4] == [("a", ["node0"]), ("b", ["node0"]), ("a", ["node1"]), ("b", ["node1"])]
    # Each node has 2 CPUs left, one in each zone.
    assert granted[4] == (None, [])
    # A policy without zone support grants no zones and ignores the shortage.
    assert all(not scheduler(nodes, policy="default-kube").schedule(pod).allocation.zones for pod in pods)


def test_aware_pod_avoids_nodes_with_unknown_zones() -> None:
    nodes = [a_node("a").cpu(64), zoned("b", 4, 4)]
    asking = whole(2).numa(True, "exclusive").build()
    assert scheduler(nodes, policy="hetsched").schedule(asking).node == "b"
    assert scheduler(nodes, policy="hetsched").schedule(whole(2).build()).node == "a"
