"""Whole cycles on nodes with pinning kubelets: no pod goes to a node whose kubelet would reject it."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.resource_managers import ContainerDemands, ZoneResources
from hetsched.engine.numa.topology_manager import verdict
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import ask, cluster, policy_of, scheduler

NIC = "example.com/nic"


def pinning(name: str, policy: str, scope: str | None = None) -> NodeBuilder:
    return a_node(name).cpu(8).zone("node-0", "0-3").zone("node-1", "4-7").kubelet("static", policy, scope)


def whole(name: str, cpus: int) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed()


def deciding(*nodes: NodeBuilder) -> Scheduler:
    return scheduler(nodes, policy=policy_of("resource-fit", "numa-fit"))


def test_predicted_rejection_has_a_reason() -> None:
    chosen = deciding(pinning("n", "restricted"))
    for name in ("a", "b"):
        assert chosen.schedule(whole(name, 3).build()).node == "n"
    # 1 + 1 CPUs are left: two fit the node, but no zone.
    diagnosis = diagnose(chosen, whole("c", 2).build())
    (reason,) = diagnosis.reasons
    assert (reason.code, diagnosis.verdict) == ("TopologyAffinityPredicted", Verdict.NOT_NOW)
    assert reason.message == (
        "the kubelet would reject the pod with TopologyAffinityError: topology manager policy restricted, "
        "scope container"
    )
    assert chosen.schedule(whole("c", 2).build()).node is None
    assert chosen.schedule(whole("d", 1).build()).node == "n"


def test_only_nodes_with_an_accepting_kubelet_are_feasible() -> None:
    nodes = [pinning("a", "single-numa-node"), pinning("b", "restricted"), pinning("c", "none"), a_node("d")]
    assert ask("numa-fit", whole("wide", 6), nodes).feasible == ["b", "c", "d"]
    running = [whole(f"r{name}", 3).running_on(name) for name in "abc"]
    # node-0 has 1 left, node-1 has 4
    assert ask("numa-fit", whole("wide", 5), nodes, running).feasible == ["b", "c", "d"]
    assert ask("numa-fit", whole("wide", 6), nodes, running).feasible == ["d"]


def test_pod_rejected_by_every_empty_node_never_fits() -> None:
    chosen = deciding(pinning("n", "single-numa-node", "pod"))
    assert diagnose(chosen, whole("a", 5).build()).verdict is Verdict.NEVER_FITS


def test_pods_that_own_no_cpus_are_not_concerned() -> None:
    chosen = deciding(pinning("n", "single-numa-node"))
    assert chosen.schedule(a_pod("burstable").cpu(6).build()).node == "n"
    assert chosen.schedule(a_pod("parts").cpu("1500m").guaranteed().build()).node == "n"


def test_too_few_cpus_for_exclusive_use() -> None:
    # Allocatable is 8, but the kubelet reserves 4.
    node = a_node("n").cpu(8).zone("node-0", "0-7", cpu="8").kubelet("static", "none", reserved="0-3")
    (reason,) = diagnose(deciding(node), whole("a", 5).build()).reasons
    assert reason.code == "KubeletCpusInsufficient"
    assert deciding(node).schedule(whole("b", 4).build()).node == "n"


@pytest.mark.parametrize(("policy", "placed"), [("none", True), ("best-effort", True), ("restricted", False)])
def test_gpu_near_a_numa_node_without_cpus_gives_a_hint(policy: str, placed: bool) -> None:
    # The GPU's only hint is node-1, which has no CPUs: no NUMA node has both, and the CPUs alone fit node-0.
    node = a_node("n").cpu(4).zone("node-0", "0-3").zone("node-1", "", cpu="0").kubelet("static", policy)
    node = node.offering(GPU_RESOURCES[0], 1).having(gpus=(a_card(0, numa_zone="node-1"),))
    pod = a_pod("p").cpu(2).gpu(1).guaranteed().containers(ContainerDemand(2, cards=1))
    found = deciding(node).schedule(pod.build())
    assert (found.node is not None) is placed
    if placed:
        assert [(zone.name, zone.cpus) for zone in found.allocation.predicted] == [("node-0", "0-1")]


def test_cpus_follow_devices_that_earlier_pods_left() -> None:
    # best-effort aligns the first pod, which has no exclusive CPUs, to the NIC of node-0; the other NIC is on node-1.
    node = pinning("n", "best-effort").offering(NIC, 2).build()
    assert node.numa is not None
    zones = [msgspec.structs.replace(zone, allocatable={**zone.allocatable, NIC: 1}) for zone in node.numa.zones]
    state = cluster([msgspec.structs.replace(node, numa=msgspec.structs.replace(node.numa, zones=tuple(zones)))])
    for name, cpus in (("first", 0), ("second", 2)):
        demand = ContainerDemand(cpus, devices=((NIC, 1),))
        pod = a_pod(name).cpu(2).guaranteed().requesting(NIC, 1).containers(demand).build()
        placed = state.assume(state.compile(pod), 0)
    assert [(zone.name, zone.cpus) for zone in placed.allocation.predicted] == [("node-1", "4-5")]


def test_node_that_would_reject_the_pod_is_avoided() -> None:
    chosen = deciding(pinning("a", "single-numa-node"), pinning("b", "best-effort"))
    assert chosen.schedule(whole("wide", 6).build()).node == "b"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_placed_pods_are_admitted_in_order(policy: str, scope: str) -> None:
    """Replay every placement on a separate kubelet model, which has only its CPUs."""
    chosen = deciding(*(pinning(f"n{i}", policy, scope) for i in range(3)))
    free = {f"n{i}": (4, 4) for i in range(3)}
    placed = 0
    for number, cpus in enumerate([3, 2, 3, 1, 4, 2, 2, 3, 1, 5, 1, 2, 1, 1, 4, 1]):
        node = chosen.schedule(whole(f"p{number}", cpus).build()).node
        if node is None:
            continue
        placed += 1
        machine = ZoneResources((4, 4), free[node], (0, 0), (0, 0))
        found = verdict(policy, scope == "pod", machine, (ContainerDemands(cpus, 0),))
        assert found.reason == ""
        left, right = (before - taken for before, taken in zip(free[node], found.cpus, strict=True))
        free[node] = (left, right)
    assert placed >= 9
