"""The lab's machines with lent zones: their kubelets, the online load, and the cost model's arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.engine.numa.topology_manager import TOPOLOGY_AFFINITY_ERROR
from hetsched.lab.colocation import (
    AssignedResources,
    CostModel,
    Running,
    SimulatedKubelet,
    capacity_millis,
    colocated,
    evicted,
    machines,
    speeds,
    with_capacity,
)
from tests.builders import a_node, a_pod

MODEL = CostModel(memory_penalty=0.6, card_penalty=0.4, evict_steal_ratio=0.3)


def two_zones(topology: str, *, manager: str = "static"):
    node = a_node("n").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7")
    node.gpus(1, numa_zone="node-0").gpus(1, numa_zone="node-1")
    return SimulatedKubelet(node.kubelet(manager, topology).build())


def whole(name: str, cpus: int, cards: int = 0):
    pod = a_pod(name).guaranteed().cpu(cpus)
    return (pod.requesting("nvidia.com/gpu", cards) if cards else pod).build()


def test_pod_in_one_zone_runs_at_full_speed_without_steal() -> None:
    pods = {"p": Running(4, {0: 4}, (0,))}
    assert speeds(pods, [4000, 4000], MODEL) == {"p": (1.0, 0.0)}


def test_stolen_time_is_the_deficit_of_the_zone() -> None:
    # 4 CPUs granted in a zone that has 3 left: 1 - 3/4 = 0.25 stolen.
    assert speeds({"p": Running(4, {0: 4}, ())}, [3000, 4000], MODEL) == {"p": (0.75, 0.25)}


def test_remote_memory_and_cards_slow_a_pod_down() -> None:
    # Half in each zone: remote memory 1 - (1/4 + 1/4) = 0.5, its GPU is remote to half of it: 1 / (1 + 0.3 + 0.2).
    found = speeds({"p": Running(4, {0: 2, 1: 2}, (0,))}, [8000, 8000], MODEL)
    assert found["p"] == (pytest.approx(1 / 1.5), 0.0)


def test_unpinned_pod_runs_on_the_remaining_cpu_time() -> None:
    # 1 and 3 CPUs are left: shares 1/4 and 3/4, remote 1 - (1/16 + 9/16) = 0.375, nothing stolen by 4 of 4.
    found = speeds({"p": Running(4, {}, ())}, [1000, 3000], MODEL)
    assert found["p"] == (pytest.approx(1 / (1 + 0.6 * 0.375)), 0.0)


def test_slowest_pod_is_evicted_until_losses_are_below_the_limit() -> None:
    # Zone 0: 8 CPUs on 4 lose 1 - 4/8 = 0.5 each, the first by name is evicted; then 4 on 4 lose nothing.
    pods = {"a": Running(4, {0: 4}, ()), "b": Running(4, {0: 4}, ()), "c": Running(3, {1: 3}, ())}
    assert evicted(pods, [4000, 4000], MODEL) == ["a"]
    assert set(pods) == {"b", "c"}


def test_simulated_kubelet_admits_by_its_own_state() -> None:
    kubelet = two_zones("single-numa-node")
    assert kubelet.admit(whole("a", 3)) == AssignedResources((3, 0), ())
    assert kubelet.admit(whole("b", 3, 1)) == AssignedResources((0, 3), (1,))
    assert kubelet.admit(whole("c", 2)) == TOPOLOGY_AFFINITY_ERROR  # 1 + 1 are left
    kubelet.remove("default/a")
    assert kubelet.admit(whole("c", 2)) == AssignedResources((2, 0), ())


def test_kubelet_without_pinning_checks_gpus_only() -> None:
    kubelet = two_zones("single-numa-node", manager="none")
    assert kubelet.admit(whole("a", 6)) == AssignedResources((0, 0), ())
    assert kubelet.admit(whole("b", 6, 2)) == TOPOLOGY_AFFINITY_ERROR  # one GPU on each zone


def test_online_load_is_deterministic_and_limited_to_lent_machines() -> None:
    report = machines(2)[1]
    assert [colocated(machine) for machine in machines(2)] == [False, True]
    first = capacity_millis(report, 5, 7, CostModel())
    assert first == capacity_millis(report, 5, 7, CostModel())
    assert first != capacity_millis(report, 6, 7, CostModel())
    assert all(0 <= remaining <= 10_000 for remaining in first)
    zones = with_capacity(report, first).numa.zones
    assert [zone.offline_capacity_millis for zone in zones] == first


def test_every_zone_has_its_cpus_once() -> None:
    for report in machines(8):
        ids = [cpu for zone in report.numa.zones for group in zone.siblings.split(";") for cpu in group.split(",")]
        assert sorted(map(int, ids)) == list(range(report.allocatable["cpu"] // 1000))
        assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
