import random

import pytest

from hetsched import isa
from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.keys import DEMO_DURATION, POOL
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.traces.simulated_fleet import demo_cluster, demo_workload
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.workload import PodSpec

FLEET = demo_cluster(7)


def stream(count: int) -> list[tuple[PodSpec, ...]]:
    return [
        read_content([Document("d", 1, plain) for plain in demo_workload(7, sequence)], workload=True).pending
        for sequence in range(count)
    ]


def test_fleet_depends_on_the_seed_only() -> None:
    assert demo_cluster(7) == FLEET
    assert demo_cluster(8) != FLEET


def test_fleet_is_independent_of_the_global_random_state() -> None:
    random.seed(1)
    first = demo_workload(7, 3)
    random.seed(2)
    assert demo_workload(7, 3) == first


def test_fleet_has_every_kind_of_machine() -> None:
    assert len(FLEET.nodes) == 48
    archs = {isa.parse(node.isa.native or "", source="node-label").arch for node in FLEET.nodes}
    assert archs == {"riscv", "arm", "x86"}
    models = {card.model for node in FLEET.nodes for card in cards_of(node)}
    assert models == {"T4", "L4", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X"}
    assert len({node.labels[POOL] for node in FLEET.nodes}) >= 10
    assert {len(node.numa.zones) for node in FLEET.nodes if node.numa} == {4}
    assert [node.name for node in FLEET.nodes if node.unschedulable] == ["ivybridge-2"]
    assert [node.name for node in FLEET.nodes if not node.ready] == ["vf2-5"]
    assert any(node.taints for node in FLEET.nodes if node.ready)
    assert all(node.usage and not node.problems for node in FLEET.nodes)


def test_running_pods_stay_within_capacity() -> None:
    nodes = {node.name: node for node in FLEET.nodes}
    for name, node in nodes.items():
        pods = [pod for pod in FLEET.running if pod.node_name == name]
        for resource in ("cpu", "memory", "pods"):
            assert sum(pod.shape.request(resource) for pod in pods) <= node.allocatable[resource]
        taken: dict[int, int] = {}
        for grant in (grant for pod in pods if pod.allocation for grant in pod.allocation.gpus):
            taken[grant.index] = taken.get(grant.index, 0) + grant.milli
        assert all(milli <= 1000 for milli in taken.values())
        assert taken.keys() <= {card.index for card in cards_of(node)}


def test_agents_have_a_daemonset_and_services_run_on_their_architecture() -> None:
    archs = {node.name: node.labels["kubernetes.io/arch"] for node in FLEET.nodes}
    for pod in FLEET.running:
        agent = pod.name.startswith("node-agent-")
        assert pod.controller.partition("/")[0] == ("DaemonSet" if agent else "ReplicaSet")
        assert dict(pod.shape.node_selector) == {"kubernetes.io/arch": archs[pod.node_name]}


def test_stream_contains_few_misconfigured_workloads() -> None:
    workloads = stream(300)
    wrong = [pods for pods in workloads if any(pod.problems for pod in pods)]
    assert all(workloads)
    assert 0 < len(wrong) < 30
    assert any(pod.shape.gpu and pod.shape.gpu.milli < 1000 for pods in workloads for pod in pods)
    assert any(pod.shape.gpu and pod.shape.gpu.vendor == "amd" for pods in workloads for pod in pods)
    pinned = [pod.shape.numa for pods in workloads for pod in pods if pod.shape.numa]
    assert any(demand.aware and demand.cpu_policy == "exclusive" for demand in pinned)
    gangs = [pods for pods in workloads if pods[0].gang]
    assert gangs
    assert all(pod.gang and pod.gang.min_available == len(pods) > 1 for pods in gangs for pod in pods)
    keys = [pod.key for pods in workloads for pod in pods]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("sequence", [0, 1, 10**9])
def test_workload_states_its_duration(sequence: int) -> None:
    (manifest,) = demo_workload(7, sequence)
    assert 30 <= int(manifest["metadata"]["annotations"][DEMO_DURATION]) <= 300
