"""Options of the CPU manager and the topology manager in the predicted admission, worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.cpu_topology import Cpu, Topology
from hetsched.contracts.objects.kubelet_options import (
    KubeletOptions,
    parse_options,
    read_options,
    unknown_options,
    unmodelled,
)
from hetsched.contracts.objects.node_report import NumaReport, NumaZone
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.resource_managers import (
    SMT_ALIGNMENT_ERROR,
    ContainerDemands,
    Counts,
    DeviceZones,
    KubeletPolicy,
    ZoneResources,
)
from hetsched.engine.numa.topology_manager import TOPOLOGY_AFFINITY_ERROR, reason, verdict
from hetsched.engine.numa.topology_setup import setup_of
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler


def topology(
    zones: int, cores: int, threads: int = 2, *, per_socket: int = 1, reserved: tuple[int, ...] = ()
) -> Topology:
    """Return zones of cores with threads `2i, 2i+1`."""
    cpus = [
        Cpu(threads * core + thread, core // cores, core // cores // per_socket, threads * core, core // cores)
        for core in range(zones * cores)
        for thread in range(threads)
    ]
    return Topology(cpus, reserved)


def says(
    policy: str, cpus: int, machine: Topology, busy: tuple[int, ...] = (), distances: tuple[Counts, ...] = (),
    numa_nodes: int = 0, **options: bool | int,
) -> tuple[str, Counts, Counts, tuple[int, ...]]:  # fmt: skip
    """Return reason, CPUs by zone, the zones of the hint, and the CPUs."""
    free = machine.all & ~machine.reserved & ~machine.bits(busy)
    zones = range(len(machine.zones))
    total, remaining = (
        tuple((machine.zones[zone] & part).bit_count() for zone in zones) for part in (machine.all, free)
    )
    state = ZoneResources(total, remaining, (0,) * len(total), (0,) * len(total), (), free)
    kubelet = KubeletPolicy(KubeletOptions(**options), machine, distances, numa_nodes)  # type: ignore[arg-type]
    found = verdict(policy, False, state, (ContainerDemands(cpus, 0),), kubelet)
    assert reason(policy, False, state, (ContainerDemands(cpus, 0),), kubelet) == found.reason
    return found.reason, found.cpus, found.aligned, found.cpu_ids


# -- full-pcpus-only ---------------------------------------------------------------------------------------------------


def test_full_pcpus_only_rejects_parts_of_a_core() -> None:
    machine = topology(1, 4)
    assert says("none", 3, machine, full_pcpus_only=True)[0] == SMT_ALIGNMENT_ERROR
    assert says("none", 3, machine)[0] == ""
    assert says("none", 4, machine, full_pcpus_only=True) == ("", (4,), (), (0, 1, 2, 3))


def test_full_pcpus_only_counts_cores_without_reserved_threads() -> None:
    # Cores (0,1) (2,3) (4,5) (6,7), CPU 0 reserved: 7 CPUs are free, 6 of them on cores without a reserved thread.
    machine = topology(1, 4, reserved=(0,))
    assert says("none", 6, machine, full_pcpus_only=True)[0] == ""
    assert says("none", 6, machine, (2, 3), full_pcpus_only=True)[0] == SMT_ALIGNMENT_ERROR  # 4 are left
    assert says("none", 4, machine, (2, 3), full_pcpus_only=True) == ("", (4,), (), (4, 5, 6, 7))


def test_topology_manager_precedes_the_full_core_check() -> None:
    # 3 CPUs on 2 + 2 free of 4 + 4: no preferred hint, so the CPU manager does not reject it.
    assert says("restricted", 3, topology(2, 2), (0, 1, 4, 5), full_pcpus_only=True)[0] == TOPOLOGY_AFFINITY_ERROR


# -- the topology manager's options ------------------------------------------------------------------------------------


def test_prefer_closest_numa_nodes_takes_the_closer_pair() -> None:
    # 4 zones of 2 CPUs. Means over all pairs, own entries included: {0,1}: (10 + 10 + 32 + 32) / 4 = 21;
    # {0,2}: (10 + 10 + 16 + 16) / 4 = 13. 4 CPUs need two zones, and without the option the lowest ids win.
    rows = ((10, 32, 16, 32), (32, 10, 32, 16), (16, 32, 10, 32), (32, 16, 32, 10))
    machine = topology(4, 1)
    assert says("restricted", 4, machine, (), rows)[2] == (0, 1)
    assert says("restricted", 4, machine, (), rows, prefer_closest_numa_nodes=True)[2:] == ((0, 2), (0, 1, 4, 5))
    # Fewer zones come before closer ones.
    assert says("restricted", 2, machine, (), rows, prefer_closest_numa_nodes=True)[2] == (0,)


def test_more_numa_nodes_than_allowed_run_without_a_policy() -> None:
    machine = topology(9, 1)
    assert says("single-numa-node", 3, machine)[0] == ""
    assert says("single-numa-node", 3, machine, max_allowable_numa_nodes=9)[0] == TOPOLOGY_AFFINITY_ERROR
    # Nodes without CPUs count too.
    assert says("single-numa-node", 3, topology(2, 1), numa_nodes=9)[0] == ""


def test_zones_without_resources_do_not_limit_the_policy() -> None:
    """Every second of 16 NUMA nodes has CPUs, 2 each, of which 1 is free: no hint for 2 CPUs is preferred."""
    cpus, free, none = (2, 0) * 8, (1, 0) * 8, (0,) * 16
    kubelet = KubeletPolicy(KubeletOptions(max_allowable_numa_nodes=16), numa_nodes=16)
    asked = (ContainerDemands(2, 0),)
    machine = ZoneResources(cpus, free, none, none)
    assert verdict("restricted", False, machine, asked, kubelet).reason == TOPOLOGY_AFFINITY_ERROR
    # With devices near the other 8 zones, 16 zones would have to be combined.
    machine = machine._replace(devices=(DeviceZones("example.com/nic", (0, 1) * 8, (0, 1) * 8),))
    assert verdict("restricted", False, machine, asked, kubelet).reason == ""


def test_single_numa_node_supports_sixteen_zones() -> None:
    machine = topology(16, 1)
    assert says("single-numa-node", 2, machine, (0, 2), max_allowable_numa_nodes=16)[2] == (2,)


# -- the CPU manager's options -----------------------------------------------------------------------------------------


def test_distribute_cpus_across_numa_takes_equal_parts() -> None:
    # 2 zones of 4 CPUs, 6 asked: 4 + 2 packed, 3 + 3 distributed, 4 + 2 in whole cores (3 cores: 1 + 1 + 1 more).
    machine = topology(2, 2)
    assert says("restricted", 6, machine)[1] == (4, 2)
    assert says("restricted", 6, machine, distribute_cpus_across_numa=True)[1] == (3, 3)
    assert says("restricted", 6, machine, distribute_cpus_across_numa=True, full_pcpus_only=True)[1] == (4, 2)


def test_align_by_socket_accepts_zones_of_one_socket() -> None:
    # 2 sockets of 2 zones of 2 CPUs. 2 CPUs would fit an empty zone; 1 + 1 are free in zones 0 and 1 of socket 0, none
    # in socket 1. The hint {0,1} is larger than the smallest that could hold it, but it spans one socket, as that does.
    machine = topology(4, 1, per_socket=2)
    busy = (0, 2, 4, 5, 6, 7)
    assert says("restricted", 2, machine, busy)[0] == TOPOLOGY_AFFINITY_ERROR
    assert says("restricted", 2, machine, busy, align_by_socket=True) == ("", (1, 1, 0, 0), (0, 1), (1, 3))
    # 1 + 1 in zones of different sockets span two.
    assert says("restricted", 2, machine, (0, 2, 3, 4, 6, 7), align_by_socket=True)[0] == TOPOLOGY_AFFINITY_ERROR


def test_cpus_of_the_whole_socket_are_aligned_by_socket() -> None:
    # 5 CPUs of 2 sockets of 2 zones of 4, each zone with 3 free: hints of two zones hold them. All pairs span one
    # socket or two; one is enough, and {0,1} is the lowest. They are taken from socket 0: 3 + 2.
    machine = topology(4, 2, per_socket=2)
    assert says("restricted", 5, machine, (0, 4, 8, 12), align_by_socket=True)[1] == (3, 2, 0, 0)


def test_predicted_cpus_follow_sockets_where_zones_are_smaller() -> None:
    # Socket 0 = zones 0, 1; socket 1 = zones 2, 3; 2 CPUs each. CPU 0 is busy. 4 CPUs under policy none: socket 1.
    assert says("none", 4, topology(4, 1, per_socket=2), (0,))[3] == (4, 5, 6, 7)
    # With a socket for each zone, whole zones by id: 2-3 and 4-5.
    assert says("none", 4, topology(4, 1), (0,))[3] == (2, 3, 4, 5)


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expected"), [("best-effort", ""), ("restricted", TOPOLOGY_AFFINITY_ERROR)])
def test_network_device_in_another_zone_is_a_topology_hint(policy: str, expected: str) -> None:
    # 3 CPUs are free in zone 0 only, the network cards are near to zone 1 only.
    nic = DeviceZones("example.com/nic", (0, 2), (0, 2))
    machine = ZoneResources((4, 4), (4, 2), (0, 0), (0, 0), (nic,))
    assert (
        verdict(policy, False, machine, (ContainerDemands(3, 0, False, (("example.com/nic", 1),)),)).reason == expected
    )
    fitting = verdict(policy, False, machine, (ContainerDemands(2, 0, False, (("example.com/nic", 1),)),))
    assert (fitting.reason, fitting.aligned, fitting.devices) == ("", (1,), (("example.com/nic", (0, 1)),))


def test_devices_without_a_zone_are_taken_last() -> None:
    # 1 device near to zone 0 and 1 without a zone: 2 exist, but no set of zones holds 2.
    machine = ZoneResources((4, 4), (4, 4), (0, 0), (0, 0), (DeviceZones("example.com/fpga", (1, 0), (1, 0), 1),))
    asked = (ContainerDemands(0, 0, False, (("example.com/fpga", 2),)),)
    assert verdict("none", False, machine, asked).devices == (("example.com/fpga", (1, 0)),)
    assert verdict("restricted", False, machine, asked).reason == TOPOLOGY_AFFINITY_ERROR


# -- parsing -----------------------------------------------------------------------------------------------------------


def test_options_are_parsed_like_go() -> None:
    found = read_options({"full-pcpus-only": "True", "align-by-socket": "0"}, {"max-allowable-numa-nodes": "16"})
    assert (found.full_pcpus_only, found.align_by_socket, found.max_allowable_numa_nodes) == (True, False, 16)
    assert parse_options("a=1, b=c") == {"a": "1", "b": "c"}


@pytest.mark.parametrize(
    ("version", "limited"),
    [("", False), ("v1.36.3", False), ("v1.37.0", True), ("v1.38.1-eks-1a2b3c", True), ("unreadable", False)],
)
def test_distribution_depends_on_the_kubelet_version(version: str, limited: bool) -> None:
    distributed, by_socket = {"distribute-cpus-across-numa": "true"}, {"align-by-socket": "true"}
    found = [read_options(options, {}, version) for options in (distributed, distributed | by_socket, by_socket)]
    assert [options.limit_equal_parts for options in found] == [limited, limited, False]
    assert [options.prefer_one_socket for options in found] == [False, limited, False]


def test_options_that_are_not_modelled_are_listed() -> None:
    cpu = {"full-pcpus-only": "yes", "shiny-new-option": "true"}
    topology_manager = {"max-allowable-numa-nodes": "4", "prefer-closest-numa-nodes": "true"}
    unknown = ["full-pcpus-only=yes", "shiny-new-option=true", "max-allowable-numa-nodes=4"]
    assert list(unknown_options(cpu, topology_manager)) == unknown
    report = NumaReport(
        cpu_manager_options=cpu, topology_manager_options=topology_manager, memory_manager_policy="Static"
    )
    assert list(unmodelled(report)) == [*unknown, "memoryManagerPolicy=Static"]


def test_options_without_reported_facts_are_unknown() -> None:
    options = dict.fromkeys(("full-pcpus-only", "align-by-socket", "prefer-align-cpus-by-uncorecache"), "true")
    closest = {"prefer-closest-numa-nodes": "true"}
    bare = NumaReport(
        zones=(NumaZone("node-0", "0-3"), NumaZone("node-1", capacity={"cpu": 4000})),
        cpu_manager_options=options,
        topology_manager_options=closest,
    )
    assert list(unmodelled(bare)) == [f"{name}=true" for name in (*options, *closest)]
    costs = {"node-0": 10, "node-1": 21}
    stated = msgspec.structs.replace(
        bare,
        zones=(
            NumaZone("node-0", "0-3", siblings="0,2;1,3", costs=costs),
            NumaZone("node-1", "4-7", siblings="4;5;6;7", costs=costs),
            NumaZone("node-2", costs=costs),
        ),
        sockets="0-7",
        caches="0-3;4-7",
    )
    assert list(unmodelled(stated)) == []
    partly = msgspec.structs.replace(stated.zones[0], siblings="0,2")
    assert list(unmodelled(msgspec.structs.replace(stated, zones=(partly,)))) == ["full-pcpus-only=true"]


def test_policy_on_more_than_12_zones_is_unmodelled() -> None:
    zones = tuple(NumaZone(f"node-{number}", str(number)) for number in range(13))
    options = {"max-allowable-numa-nodes": "16"}
    report = NumaReport(zones, topology_manager_policy="restricted", topology_manager_options=options)
    ignored = ["topologyManagerPolicy=restricted"]
    assert list(unmodelled(report)) == ignored
    # A zone without CPUs counts if it has devices.
    assert list(unmodelled(msgspec.structs.replace(report, zones=(*zones[:12], NumaZone("node-12", ""))))) == []
    near_card = NumaZone("node-12", "", allocatable={"example.com/nic": 1})
    assert list(unmodelled(msgspec.structs.replace(report, zones=(*zones[:12], near_card)))) == ignored
    assert list(unmodelled(msgspec.structs.replace(report, topology_manager_policy="single-numa-node"))) == []


def test_policy_on_more_numa_nodes_than_allowed_is_reported() -> None:
    """The kubelet does not start with these settings, so they are not those of the running kubelet."""
    zones = (*(NumaZone(f"node-{number}", str(number)) for number in range(8)), NumaZone("node-8", ""))
    for policy in ("best-effort", "restricted", "single-numa-node"):
        report = NumaReport(zones, topology_manager_policy=policy)
        assert list(unmodelled(report)) == [f"topologyManagerPolicy={policy}"]
        assert list(unmodelled(msgspec.structs.replace(report, zones=zones[:8]))) == []
    assert list(unmodelled(NumaReport(zones, topology_manager_policy="none"))) == []


def test_distribution_over_more_zones_than_are_modelled_is_ignored() -> None:
    for count, modelled in ((12, True), (13, False)):
        zones = tuple(NumaZone(f"node-{number}", str(number)) for number in range(count))
        options = {"distribute-cpus-across-numa": "true"}
        numa = NumaReport(zones, cpu_manager_policy="static", cpu_manager_options=options)
        assert list(unmodelled(numa)) == ([] if modelled else ["distribute-cpus-across-numa=true"])
        setup = setup_of(a_node("n").having(numa=numa).build())
        assert setup.kubelet.options.distribute_cpus_across_numa is modelled


def test_zones_without_cpus_do_not_limit_the_distribution() -> None:
    zones = tuple(NumaZone(f"node-{number}", str(number)) for number in range(12))
    nic = NumaZone("node-12", allocatable={"example.com/nic": 1})
    numa = NumaReport(
        (*zones, nic), cpu_manager_policy="static", cpu_manager_options={"distribute-cpus-across-numa": "true"}
    )
    assert list(unmodelled(numa)) == []
    assert setup_of(a_node("n").having(numa=numa).build()).kubelet.options.distribute_cpus_across_numa


# -- whole decisions ---------------------------------------------------------------------------------------------------


def pinning(name: str, policy: str = "none", **options: str) -> NodeBuilder:
    """Return a node of two zones of 2 cores: (0,4) (1,5) | (2,6) (3,7)."""
    node = (
        a_node(name).cpu(8).zone("node-0", "0-1,4-5", siblings="0,4;1,5").zone("node-1", "2-3,6-7", siblings="2,6;3,7")
    )
    node = node.kubelet("static", policy)
    numa = node.build().numa
    assert numa is not None
    given = {name.replace("_", "-"): value for name, value in options.items()}
    return node.having(numa=msgspec.structs.replace(numa, cpu_manager_options=given))


def whole(name: str, cpus: int) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed()


def deciding(*nodes: NodeBuilder) -> Scheduler:
    return scheduler(nodes, policy=policy_of("resource-fit", "numa-fit"))


def test_pod_with_odd_cpus_goes_to_an_admitting_node() -> None:
    chosen = deciding(pinning("a", full_pcpus_only="true"), pinning("b"))
    assert chosen.schedule(whole("odd", 3).build()).node == "b"
    assert chosen.schedule(whole("even", 2).build()).node == "a"


def test_odd_number_of_cpus_never_fits_full_pcpus_only() -> None:
    diagnosis = diagnose(deciding(pinning("a", full_pcpus_only="true")), whole("odd", 3).build())
    (said,) = diagnosis.reasons
    assert (said.code, diagnosis.verdict) == ("SmtAlignmentPredicted", Verdict.NEVER_FITS)
    assert said.message == (
        "the kubelet would reject the pod with SMTAlignmentError: the number of CPUs is not a multiple of 2, "
        "the CPUs of a core"
    )


def test_predicted_cpus_are_reserved_once() -> None:
    chosen = deciding(pinning("a"))
    held = [chosen.schedule(whole(name, 3).build()).allocation.predicted for name in ("p", "q")]
    # Cores (0,4) and one thread of core 1; then of zone 0 one CPU is left and zone 1 is whole: core (2,6) and CPU 5.
    assert [[(zone.name, zone.cpus) for zone in zones] for zones in held] == [
        [("node-0", "0-1,4")],
        [("node-0", "5"), ("node-1", "2,6")],
    ]


def test_pod_with_a_network_card_avoids_a_rejecting_node() -> None:
    def node(name: str, *nics: int) -> NodeBuilder:
        made = pinning(name, "single-numa-node").offering("example.com/nic", sum(nics))
        numa = made.build().numa
        assert isinstance(numa, NumaReport)
        zones = tuple(
            msgspec.structs.replace(zone, allocatable={**zone.allocatable, "example.com/nic": count})
            for zone, count in zip(numa.zones, nics, strict=True)
        )
        return made.having(numa=msgspec.structs.replace(numa, zones=zones))

    def asking(name: str) -> PodBuilder:
        demand = ContainerDemand(3, 0, 0, devices=(("example.com/nic", 1),))
        return whole(name, 3).requesting("example.com/nic", 1).containers(demand)

    chosen = deciding(node("a", 0, 2), node("b", 1, 1))
    assert chosen.schedule(asking("p").build()).node == "a"  # zone 1: 4 CPUs and both GPUs
    # On a zone 1 has 1 CPU left, zone 0 no GPU.
    assert chosen.schedule(asking("q").build()).node == "b"
    assert chosen.schedule(asking("r").build()).node == "b"
    assert chosen.schedule(asking("s").build()).node is None


def test_devices_listed_only_by_zones_are_supported() -> None:
    # The node's allocatable does not list the resource, its zones do.
    node = pinning("a", "single-numa-node")
    numa = node.build().numa
    assert numa is not None
    zones = tuple(
        msgspec.structs.replace(zone, allocatable={**zone.allocatable, "example.com/nic": 1}) for zone in numa.zones
    )
    chosen = scheduler([node.having(numa=msgspec.structs.replace(numa, zones=zones))], policy=policy_of("numa-fit"))
    demand = ContainerDemand(2, 0, 0, devices=(("example.com/nic", 1),))
    pod = whole("p", 2).requesting("example.com/nic", 1).containers(demand)
    assert chosen.schedule(pod.build()).node == "a"
