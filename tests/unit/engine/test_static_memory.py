"""Memory of kubelets with the static memory manager: placement, reservation, reasons and reported assignments."""

from __future__ import annotations

import time

import msgspec
import pytest

from hetsched.adapters.objects.allocation import parse_allocation, write_allocation
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.kubelet_options import unmodelled
from hetsched.contracts.objects.node_report import KubeletGrant, NumaReport
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.topology_setup import setup_of
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

GIB = 1 << 30


def node(*grants: KubeletGrant, policy: str = "restricted", zones: int = 2, known: bool = True) -> NodeBuilder:
    """Return a node of zones with 4 CPUs and 4 GiB each, whose kubelet pins memory but no CPUs."""
    made = a_node("n").cpu(4 * zones)
    for number in range(zones):
        made = made.zone(f"node-{number}", f"{4 * number}-{4 * number + 3}", memory="4Gi")
    numa = made.kubelet("none", policy).build().numa
    assert isinstance(numa, NumaReport)
    assignable = {"memory": 4 * GIB} if known else None
    facts = tuple(msgspec.structs.replace(zone, assignable=assignable) for zone in numa.zones)
    numa = msgspec.structs.replace(numa, zones=facts, memory_manager_policy="Static", grants=grants)
    return made.having(numa=numa)


def pod(name: str, gib: int, *, guaranteed: bool = True) -> PodBuilder:
    built = a_pod(name).cpu("100m").memory(f"{gib}Gi")
    if not guaranteed:
        return built
    return built.guaranteed().containers(ContainerDemand(0, gib * GIB, memory=(("memory", gib * GIB),)))


def deciding(*nodes: NodeBuilder) -> Scheduler:
    return scheduler(nodes, policy=policy_of("resource-fit", "numa-fit"))


def cells(state: ClusterState) -> list[list[int]]:
    return [state.columns.field(field)[:, 0].tolist() for field in ("static_memory_free", "memory_group")]


def test_memory_is_reserved_in_the_predicted_zones_and_released() -> None:
    chosen = deciding(node())
    before = cells(chosen.state)
    found = chosen.schedule(pod("a", 3).build())
    assert found.allocation.memory == (MemoryGrant(("node-0",), "memory", 3 * GIB),)
    assert parse_allocation(write_allocation(found.allocation)) == found.allocation
    assert chosen.schedule(pod("b", 3).build()).allocation.memory == (MemoryGrant(("node-1",), "memory", 3 * GIB),)
    assert cells(chosen.state) == [[GIB, GIB], [1, 2]]
    for key in ("default/a", "default/b"):
        chosen.state.forget(key)
    assert cells(chosen.state) == before


def test_zones_of_a_group_serve_only_the_group() -> None:
    chosen = deciding(node())
    assert chosen.schedule(pod("wide", 5).build()).allocation.memory == (
        MemoryGrant(("node-0", "node-1"), "memory", 5 * GIB),
    )
    assert chosen.schedule(pod("small", 1).build()).node is None
    assert chosen.schedule(pod("shared", 1, guaranteed=False).build()).node == "n"


def test_predicted_rejection_names_the_memory() -> None:
    chosen = deciding(node())
    for name in ("a", "b"):
        chosen.schedule(pod(name, 3).build())
    diagnosis = diagnose(chosen, pod("c", 2).build())
    (reason,) = diagnosis.reasons
    assert (reason.code, diagnosis.verdict) == ("KubeletMemoryInsufficient", Verdict.NOT_NOW)
    assert reason.message == (
        "the kubelet would reject the pod with UnexpectedAdmissionError: no NUMA nodes that topology manager policy "
        "restricted allows have enough free memory and huge pages"
    )


def test_pod_larger_than_one_zone_never_fits_under_single_numa_node() -> None:
    diagnosis = diagnose(deciding(node(policy="single-numa-node")), pod("wide", 5).build())
    assert [reason.code for reason in diagnosis.reasons] == ["KubeletMemoryInsufficient"]
    assert diagnosis.verdict is Verdict.NEVER_FITS


@pytest.mark.parametrize("foreign", [True, False])
def test_reported_memory_replaces_the_prediction(foreign: bool) -> None:
    grant = KubeletGrant("uid-a", memory=(MemoryGrant(("node-1",), "memory", 4 * GIB),), foreign=foreign)
    chosen = deciding(node(grant))
    if not foreign:
        known = msgspec.structs.replace(pod("a", 4).build(), uid="uid-a")
        chosen.state.assume(chosen.state.compile(known), 0)
    assert cells(chosen.state) == [[4 * GIB, 0], [0, 2]]
    assert chosen.schedule(pod("b", 4).build()).allocation.memory == (MemoryGrant(("node-0",), "memory", 4 * GIB),)


def test_unknown_memory_is_not_modelled() -> None:
    report = node(known=False).build()
    assert report.numa is not None
    assert list(unmodelled(report.numa)) == ["memoryManagerPolicy=Static"]
    assert not setup_of(report).memory
    assert deciding(node(known=False)).schedule(pod("a", 5).build()).node == "n"


@pytest.mark.parametrize(("zones", "modelled"), [(12, True), (13, False)])
def test_number_of_compared_sets_is_bounded(zones: int, modelled: bool) -> None:
    made = node(policy="none", zones=zones)
    assert setup_of(made.build()).memory is modelled
    started = time.process_time()
    assert deciding(made).schedule(pod("a", 9).build()).node == "n"
    assert time.process_time() - started < 5
