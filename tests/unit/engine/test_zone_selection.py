"""The test vectors of gocrane's `NodeResourceTopologyMatch`, and cassini's small machine; two zones, CPU in cores."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import ZoneGrant
from hetsched.contracts.objects.policy import PluginUse
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

# As in crane every pod with whole CPUs takes part, with or without a zone policy.
CRANE = PluginUse("numa-fit", params={"pods": "whole-cpus"})
AWARE = {"topology.crane.io/topology-awareness": "true"}
CROSSING = {"topology.crane.io/topology-awareness": "false"}

GIB = 1024


def machine(**labels: str) -> NodeBuilder:
    """Return node1 with 2.5 CPUs and 4Gi, node2 with 3.9 CPUs and 4Gi."""
    zones = a_node("n").cpu("6400m").memory("8Gi").zone("node1", cpu="2500m", memory="4Gi")
    return zones.zone("node2", cpu="3900m", memory="4Gi").labelled(labels)


def using(first: int, second: int, memory_mib: int = 0) -> PodBuilder:
    """Return a pod that holds this many CPUs of node1 and of node2."""
    zones = (ZoneGrant("node1", None, 1000 * first, memory_mib), ZoneGrant("node2", None, 1000 * second, memory_mib))
    return a_pod("runs").cpu(0).holding("n", *zones)


def asking(cpus: int, memory: str = "1Gi") -> PodBuilder:
    return a_pod("new").cpu(cpus).memory(memory).guaranteed()


def placed(node: NodeBuilder, running: PodBuilder, pod: PodBuilder, fit: PluginUse = CRANE) -> dict[str, int] | None:
    """Return the CPUs by zone of the pod, None if it was rejected."""
    outcome = scheduler([node], [running], policy=policy_of(fit)).schedule(pod.build())
    if outcome.node is None:
        return None
    return {zone.name: zone.cpu_millis // 1000 for zone in outcome.allocation.zones}


def score(node: NodeBuilder, running: PodBuilder, pod: PodBuilder) -> float:
    deciding = scheduler([node], [running], policy=policy_of(CRANE, PluginUse("zone-count", weight=2)))
    return deciding.schedule(pod.build()).score


def test_topology_aware_pod_gets_the_zone_with_most_free_cpu() -> None:
    # free: node1 2.5 - 1 = 1.5, node2 3.9 - 1 = 2.9; one zone: 100 // 1 = 100
    assert placed(machine(**AWARE), using(1, 1), asking(1)) == {"node2": 1}
    assert score(machine(**AWARE), using(1, 1), asking(1)) == 100


@pytest.mark.parametrize(
    ("first", "second", "cpus", "fits"),
    [
        (2, 4, 1, False),  # 0.5 and -0.1
        (1, 3, 2, False),  # 1.5 and 0.9
        (2, 1, 2, True),  # node2 has 2.9
        (2, 2, 2, False),  # 0.5 and 1.9
    ],
)
def test_one_zone_must_hold_an_aware_pod(first: int, second: int, cpus: int, fits: bool) -> None:
    assert (placed(machine(**AWARE), using(first, second), asking(cpus)) is not None) == fits


@pytest.mark.parametrize(
    ("first", "second", "cpus", "zones", "points"),
    [
        # whole CPUs: floor(2.5) - 1 = 1 and floor(3.9) - 3 = 0
        (1, 3, 2, None, None),
        # floor(2.5) - 1 = 1 and floor(3.9) - 0 = 3: node2 first, then node1; 100 // 2 = 50
        (1, 0, 4, {"node1": 1, "node2": 3}, 50),
        # floor(2.5) - 1 = 1 and floor(3.9) - 2 = 1
        (1, 2, 2, {"node1": 1, "node2": 1}, 50),
    ],
)
def test_unaware_pods_cross_zones(
    first: int, second: int, cpus: int, zones: dict[str, int] | None, points: float | None
) -> None:
    assert placed(machine(**CROSSING), using(first, second), asking(cpus)) == zones
    if points is not None:
        assert score(machine(**CROSSING), using(first, second), asking(cpus)) == points


def test_fractional_use_reduces_whole_cpus() -> None:
    # floor(2.5) - 0.6 = 1.4 and floor(3.9) - 0.6 = 2.4: 1 + 2 whole CPUs, not 1 + 3
    running = a_pod("runs").cpu(0).holding("n", ZoneGrant("node1", None, 600), ZoneGrant("node2", None, 600))
    assert placed(machine(**CROSSING), running, asking(3)) == {"node1": 1, "node2": 2}
    assert placed(machine(**CROSSING), running, asking(4)) is None


def test_pinning_kubelet_disables_zone_selection() -> None:
    # 4 CPUs fit no zone (1.5 and 2.9 are left), but the kubelet binds here.
    node = machine(**AWARE).kubelet("static")
    assert placed(node, using(1, 1), asking(4)) == {}
    assert score(node, using(1, 1), asking(4)) == 0


def test_memory_counts_where_the_policy_says_so() -> None:
    # CPU: node2 has 2.9 for 2. Memory: 4Gi - 3Gi = 1Gi in each zone, 2Gi are asked.
    with_memory = PluginUse("numa-fit", params={"pods": "whole-cpus", "memory": True})
    running = using(1, 1, 3 * GIB)
    assert placed(machine(**AWARE), running, asking(2, "2Gi"), with_memory) is None
    assert placed(machine(**AWARE), running, asking(2, "2Gi")) == {"node2": 2}
    assert placed(machine(**AWARE), running, asking(2, "1Gi"), with_memory) == {"node2": 2}


def test_memory_may_need_more_zones_than_cpus() -> None:
    # 2 CPUs come from node2 (3 whole), of 6Gi it has 4: the rest is in node1; 100 // 2 = 50.
    with_memory = PluginUse("numa-fit", params={"pods": "whole-cpus", "memory": True})
    deciding = scheduler([machine(**CROSSING)], policy=policy_of(with_memory, "zone-count"))
    outcome = deciding.schedule(asking(2, "6Gi").build())
    assert outcome.allocation.zones == (ZoneGrant("node1", None, 0, 2 * GIB), ZoneGrant("node2", None, 2000, 4 * GIB))
    assert outcome.score == 50


def test_pod_larger_than_a_zone_spans_zones() -> None:
    # 8 CPUs in two zones of 4: a pod of 6 takes 4 + 2 and scores 100 // 2 = 50; with the aware policy it is rejected.
    small = a_node("n").cpu(8).zone("node0", cpu="4").zone("node1", cpu="4")
    assert placed(small.labelled(CROSSING), a_pod("x").cpu(0), asking(6)) == {"node0": 4, "node1": 2}
    assert score(small.labelled(CROSSING), a_pod("x").cpu(0), asking(6)) == 50
    assert placed(small.labelled(AWARE), a_pod("x").cpu(0), asking(6)) is None


def test_zone_has_the_rest_of_online_workloads() -> None:
    # node0: 24 CPUs * 0.35 = 8400m, 4 taken, 4400m free: not 6. node1: 24 * 0.9 = 21600m, 10 taken, 11600m free.
    node = a_node("n").cpu(48).zone("node0", cpu="24", offline="8400m").zone("node1", cpu="24", offline="21600m")
    running = a_pod("runs").cpu(0).holding("n", ZoneGrant("node0", None, 4000), ZoneGrant("node1", None, 10_000))
    assert placed(node.labelled(AWARE), running, asking(6)) == {"node1": 6}
    assert placed(node.labelled(AWARE), running, asking(11)) == {"node1": 11}
    assert placed(node.labelled(AWARE), running, asking(12)) is None


@pytest.mark.parametrize(("zones", "points"), [(1, 100), (2, 50), (3, 33), (4, 25)])
def test_fewer_zones_score_higher(zones: int, points: float) -> None:
    node = a_node("n").cpu(16).labelled(CROSSING)
    for number in range(4):
        node.zone(f"node{number}", cpu="4")
    assert score(node, a_pod("x").cpu(0), asking(4 * zones)) == points


def test_equal_zones_are_ordered_by_name() -> None:
    node = a_node("n").cpu(12).labelled(CROSSING)
    for number in (10, 2, 1):
        node.zone(f"node{number}", cpu="4")
    assert placed(node, a_pod("x").cpu(0), asking(6)) == {"node1": 4, "node2": 2}


def test_overcommitted_zone_has_no_free_cpus() -> None:
    # node1 fell to 1 CPU with 2 granted: -1 counts as 0, so only 4 - 1 = 3 whole CPUs of node2 are left.
    node = a_node("n").cpu(8).labelled(CROSSING).zone("node1", cpu="4", offline="1").zone("node2", cpu="4")
    assert placed(node, using(2, 1), asking(3)) == {"node2": 3}
    assert placed(node, using(2, 1), asking(4)) is None
