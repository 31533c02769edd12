"""Reported kubelet allocations count once, in zones, GPUs and verdicts."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.objects.node_report import KubeletGrant, NodeReport, NumaReport
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.simulation.hypothetical_nodes import copies, with_nodes
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import cluster, policy_of, rebuilt, scheduler


def node(*grants: KubeletGrant, policy: str = "restricted", zoned: dict[str, int] | None = None) -> NodeBuilder:
    """Return a node of two zones of 4 CPUs and a GPU each, with a pinning kubelet."""
    made = a_node("n").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7").kubelet("static", policy)
    numa = made.build().numa
    assert isinstance(numa, NumaReport)
    zones = tuple(
        msgspec.structs.replace(zone, allocatable={**zone.allocatable, **(zoned or {})}) for zone in numa.zones
    )
    cards = (a_card(0, uuid="GPU-0", numa_zone="node-0"), a_card(1, uuid="GPU-1", numa_zone="node-1"))
    return made.having(numa=msgspec.structs.replace(numa, zones=zones, grants=grants), gpus=cards)


def foreign(cpus: str = "", *gpus: str, pod: str = "uid-f") -> KubeletGrant:
    return KubeletGrant(pod, cpus, gpus=gpus, foreign=True)


def whole(name: str, cpus: int) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed()


def cells(state: ClusterState, *fields: str) -> list[list[int]]:
    return [state.columns.field(field)[:, 0].tolist() for field in fields]


FREE = ("zone_cpu_free", "zone_cpus_free", "kubelet_cpus_free")


@pytest.mark.parametrize(("policy", "placed"), [("restricted", False), ("single-numa-node", False), ("none", True)])
def test_pod_that_fits_no_zone_next_to_unknown_pods_is_not_placed(policy: str, placed: bool) -> None:
    # Unknown pods hold 2 of 4 CPUs in each zone: 2 + 2 are free. 4 CPUs would fit an empty zone, so neither policy that
    # binds admits them over two zones; with policy none the kubelet takes all four.
    chosen = scheduler([node(foreign("0-1,4-5"), policy=policy)], policy=policy_of("resource-fit", "numa-fit"))
    found = chosen.schedule(whole("p", 4).build())
    assert (found.node is not None) is placed
    if placed:
        assert [zone.cpus for zone in found.allocation.predicted] == ["2-3", "6-7"]


def test_pod_blocked_by_unknown_pods_is_not_now() -> None:
    chosen = scheduler([node(foreign("0-1,4-5"))], policy=policy_of("resource-fit", "numa-fit"))
    diagnosis = diagnose(chosen, whole("p", 4).build())
    assert [reason.code for reason in diagnosis.reasons] == ["TopologyAffinityPredicted"]
    assert diagnosis.verdict is Verdict.NOT_NOW


def test_cpus_of_unknown_pods_are_taken_from_their_zones() -> None:
    # Bits 2, 3, 5, 6, 7 remain: 4 + 8 + 32 + 64 + 128.
    assert cells(cluster([node(foreign("0-1,4"))]), *FREE) == [[2000, 3000], [2, 3], [236]]


def test_copy_of_a_node_has_no_grants() -> None:
    used = node(foreign("0-1,4-5")).build()
    assert used.numa is not None
    zones = tuple(msgspec.structs.replace(zone, available={"cpu": 1000}) for zone in used.numa.zones)
    state = cluster([node(foreign("0-1,4-5")).having(numa=msgspec.structs.replace(used.numa, zones=zones))])
    larger = with_nodes(state, copies(state, {"n": 1}))
    row = larger.row_of["n-copy-1"]
    assert [larger.columns.field(field)[:, row].tolist() for field in FREE] == [[4000, 4000], [4, 4], [255]]


def test_known_pod_counts_once_with_its_actual_cpus() -> None:
    # Predicted were CPUs 0-2; the kubelet chose 4-6. It counts in zone 1 alone.
    allocation = Allocation(predicted=(ZoneGrant("node-0", "0-2", 3000),), cpu_policy="static")
    pod = whole("p", 3).having(uid="uid-p", node_name="n", allocation=allocation)
    state = cluster([node(KubeletGrant("uid-p", "4-6"))], [pod])
    assert cells(state, *FREE) == [[4000, 1000], [4, 1], [143]]  # bits 0-3 and 7: 15 + 128
    state.forget("default/p")
    # The kubelet's record of it has no pod any more: the kubelet releases the CPUs before it admits another pod.
    assert cells(state, *FREE) == [[4000, 4000], [4, 4], [255]]


def test_pod_that_becomes_known_is_counted_once() -> None:
    state = cluster([node(foreign("4-6"))])
    before = cells(state, *FREE)
    pod = whole("p", 3).having(uid="uid-f", node_name="n").build()
    state.assume(state.compile(pod), 0)
    assert cells(state, *FREE) == before == [[4000, 1000], [4, 1], [143]]
    state.forget("default/p")
    assert cells(state, *FREE) == before


def test_static_pod_is_identified_by_its_name() -> None:
    # The kubelet's UID of a static pod is not that of its mirror pod.
    grant = KubeletGrant("hash", "0-1", name="default/p", foreign=True)
    pod = whole("p", 2).having(uid="uid-mirror", node_name="n", preemptible=False)
    assert cells(cluster([node(grant)], [pod]), *FREE) == [[2000, 4000], [2, 4], [252]]


@pytest.mark.parametrize(
    ("uid", "grant", "free"),
    [
        ("uid-new", KubeletGrant("uid-old", "4-6", name="default/p"), [1000, 4000]),
        ("uid-old", KubeletGrant("uid-old", "4-6", name="default/p"), [4000, 1000]),
        ("uid-new", KubeletGrant("default/p", "4-6"), [4000, 1000]),
        ("", KubeletGrant("uid-old", "4-6", name="default/p"), [4000, 1000]),
    ],
)
def test_grant_of_an_earlier_pod_of_the_name_does_not_count(uid: str, grant: KubeletGrant, free: list[int]) -> None:
    allocation = Allocation(predicted=(ZoneGrant("node-0", "0-2", 3000),), cpu_policy="static")
    pod = whole("p", 3).having(uid=uid, node_name="n", allocation=allocation)
    assert cells(cluster([node(grant)], [pod]), "zone_cpu_free") == [free]


def test_gpu_of_an_unknown_pod_is_not_free() -> None:
    chosen = scheduler([node(foreign("", "GPU-0"))], policy=policy_of("resource-fit", "gpu-fit"))
    assert [card.index for card in chosen.schedule(a_pod("p").gpu().build()).allocation.gpus] == [1]
    assert chosen.schedule(a_pod("q").gpu().build()).node is None


def test_repeated_facts_keep_free_capacity() -> None:
    pod = a_pod("p").gpu().running_on("n", CardGrant(1, 1000, 40960, "GPU-1"))
    state = cluster([node(foreign("0-1", "GPU-0"))], [pod, whole("q", 2).having(uid="q", node_name="n")])
    before = state.columns.load.tolist()
    report = state.reports[0]
    state.apply_report(msgspec.structs.replace(report, labels={"a": "b"}))
    assert state.columns.load.tolist() == before
    assert rebuilt(state).columns.load.tolist() == before
    # The unknown pod ends: its allocation is free again, and nothing else changed.
    state.apply_report(_without_grants(report))
    assert state.columns.load.tolist() == rebuilt(state).columns.load.tolist()
    assert cells(state, "card_milli_free") == [[1000, 0]]
    assert cells(state, "zone_cpu_free") == [[2000, 4000]]


def _without_grants(report: NodeReport) -> NodeReport:
    assert report.numa is not None
    return msgspec.structs.replace(report, numa=msgspec.structs.replace(report.numa, grants=()))


def test_devices_of_an_unknown_pod_are_taken_from_their_zone() -> None:
    nic = "example.com/nic"
    grant = KubeletGrant("uid-f", devices={"node-1": {nic: 2}}, foreign=True)
    state = cluster([node(grant, zoned={nic: 2})])
    assert cells(state, "zone_devices", "zone_devices_free") == [[2, 2], [2, 0]]


def test_evictable_pod_releases_its_actual_cpus() -> None:
    # By prediction p and r fill zone 0 and s is alone in zone 1. By the kubelet's report p and s are in zone 0, r in
    # zone 1: for 4 CPUs in one zone only r has to leave.
    real = {"p": "0-1", "r": "4-5", "s": "2-3"}
    running = [whole(name, 2).having(uid=name, node_name="n") for name in real]
    made = node(*(KubeletGrant(name, cpus) for name, cpus in real.items()), policy="single-numa-node")
    chosen = scheduler([made], running, policy=policy_of("resource-fit", "numa-fit", "preemption"))
    outcome = chosen.schedule(whole("urgent", 4).having(priority=1000).build())
    assert outcome.eviction is not None
    assert outcome.eviction.victims == ("default/r",)


def test_columns_per_node_are_bounded() -> None:
    # A node may report any number of CPUs and resources; beyond the bounds its CPUs are counted, not listed.
    huge = a_node("huge").cpu(8).zone("node-0", "0-9999", cpu="10000").kubelet("static", "restricted")
    names = {f"example.com/nic-{number}": 1 for number in range(2000)}
    wide = node(zoned=names).having(name="wide")
    state = cluster([huge, wide])
    layout = state.columns.layout
    assert layout.words == 1
    assert len(layout.devices) * layout.zones <= 512
    assert state.fits_layout(state.reports[1])
    assert scheduler([huge], policy=policy_of("numa-fit")).schedule(whole("p", 4).build()).node == "huge"
