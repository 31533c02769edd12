"""Whole cycles on machines with named CPUs: the CPUs of a pod, and those left for later pods."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.cpu_grants import pairings
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

GIB = 2**30


def machine() -> NodeBuilder:
    """Return two zones of 4 cores with 2 threads: siblings i and i + 4 in node-0, i and i + 4 in node-1."""
    node = a_node("n").cpu(16).zone("node-0", "0-7", cpu="8", siblings="0,4;1,5;2,6;3,7")
    return node.zone("node-1", "8-15", cpu="8", siblings="8,12;9,13;10,14;11,15")


def one_zone(reserved: str | None = None) -> NodeBuilder:
    return a_node("n").cpu(8).zone("node-0", "0-7", cpu="8", siblings="0,4;1,5;2,6;3,7").kubelet(reserved=reserved)


def wanting(name: str, cpus: int, policy: str = "exclusive", aware: bool | None = True) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed().numa(aware, policy)


def deciding(node: NodeBuilder, *running: PodBuilder, **params: Any) -> Scheduler:
    return scheduler([node], running, policy=policy_of("resource-fit", PluginUse("numa-fit", params=params)))


def granted(chosen: Scheduler, pod: PodBuilder) -> dict[str, str | None] | str:
    """Schedule and return the CPUs by zone, or the code of the first reason."""
    outcome = chosen.schedule(pod.build())
    if outcome.node is None:
        answer = refusal(chosen, pod)
        return answer[0]
    return {zone.name: zone.cpus for zone in outcome.allocation.zones}


def refusal(chosen: Scheduler, pod: PodBuilder) -> tuple[str, str]:
    (reason, *_) = diagnose(chosen, pod.build()).reasons
    return reason.code, reason.message


# -- the four policies -----------------------------------------------------------------------------------------------


def test_exclusive_cpus_are_spread_over_cores() -> None:
    assert granted(deciding(one_zone()), wanting("a", 3)) == {"node-0": "0-2"}


def test_pack_takes_whole_cores() -> None:
    assert granted(deciding(one_zone(), order="pack"), wanting("a", 3)) == {"node-0": "0-1,4"}


@pytest.mark.parametrize("policy", ["exclusive", "immovable"])
def test_pinned_cpu_is_assigned_once(policy: str) -> None:
    chosen = deciding(one_zone())
    assert granted(chosen, wanting("a", 3, policy)) == {"node-0": "0-2"}
    # core 3 is untouched, then second threads of a's cores
    assert granted(chosen, wanting("b", 3)) == {"node-0": "3-5"}
    assert granted(chosen, wanting("c", 2, "immovable")) == {"node-0": "6-7"}
    assert granted(chosen, wanting("d", 1)) == "InsufficientResource"


def test_cpus_of_an_ended_pod_are_granted_again() -> None:
    chosen = deciding(one_zone())
    assert granted(chosen, wanting("a", 8)) == {"node-0": "0-7"}
    chosen.state.forget("default/a")
    assert granted(chosen, wanting("b", 8)) == {"node-0": "0-7"}


def test_numa_gets_the_shared_cpus_of_its_zone() -> None:
    chosen = deciding(one_zone(reserved="7"))
    granted(chosen, wanting("own", 2, "exclusive"))  # 0 and 1
    granted(chosen, wanting("fixed", 1, "immovable"))  # 2, which other pods may use
    assert granted(chosen, wanting("pool", 2, "numa")) == {"node-0": "2-6"}
    # and holds none of them: of 3 to 6, each a sibling of a used or reserved CPU, those of the lowest cores come next
    assert granted(chosen, wanting("more", 2)) == {"node-0": "4-5"}
    # 7 usable - 3 pinned - 2 counted - 2 pinned
    assert chosen.state.columns.field("zone_cpu_free")[:, 0].tolist() == [0]


def test_none_is_counted_and_not_pinned() -> None:
    chosen = deciding(machine())
    outcome = chosen.schedule(wanting("a", 6, "none").build())
    assert outcome.allocation.zones == (ZoneGrant("node-0", None, 6000),)
    assert outcome.allocation.cpu_policy == "none"
    assert granted(chosen, wanting("b", 6, "none")) == {"node-1": None}


def test_ordinary_pods_get_no_zone() -> None:
    outcome = deciding(machine()).schedule(a_pod().cpu(2).guaranteed().build())
    assert outcome.allocation == Allocation()


def test_unaware_pod_without_pinning_gets_no_zone() -> None:
    assert granted(deciding(machine()), wanting("a", 2, "none", aware=False)) == {}


# -- awareness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "label", "kubelet", "crosses"),
    [
        (True, "false", None, False),
        (False, "true", "single-numa-node", True),
        (None, "true", None, False),
        (None, "false", "single-numa-node", True),
        (None, "maybe", "single-numa-node", False),
        (None, None, "single-numa-node", False),
        (None, None, "restricted", True),
        (None, None, None, True),
    ],
)
def test_pod_has_precedence_over_label_and_kubelet(
    own: bool | None, label: str | None, kubelet: str | None, crosses: bool
) -> None:
    node = machine().kubelet("none", kubelet)
    if label is not None:
        node.labelled({"topology.crane.io/topology-awareness": label})
    # 10 CPUs fit the two zones of 8 together, neither alone
    found = granted(deciding(node), wanting("a", 10, "exclusive", own))
    assert found == ({"node-0": "0-7", "node-1": "8-9"} if crosses else "ZoneCpuInsufficient")


def test_aware_node_binds_whole_cpu_pods_without_a_policy() -> None:
    node = machine().kubelet("none", "single-numa-node")
    plain = a_pod("plain").cpu(10).guaranteed()
    assert granted(deciding(node), plain) == "ZoneCpuInsufficient"
    assert granted(deciding(node), a_pod("burstable").cpu(10)) == {}
    assert granted(deciding(node), a_pod("small").cpu(2).guaranteed()) == {"node-0": None}


def test_parts_of_cpus_are_counted_for_an_aware_pod() -> None:
    outcome = deciding(machine()).schedule(a_pod("a").cpu("2500m").numa(True, "exclusive").build())
    assert outcome.allocation.zones == (ZoneGrant("node-0", None, 2500),)
    assert outcome.allocation.cpu_policy == "none"


def test_only_containers_with_whole_cpus_are_counted() -> None:
    pod = a_pod("a").cpu("5500m").numa(True, "exclusive")
    pod.containers(ContainerDemand(8, GIB, init=True), ContainerDemand(2, GIB), ContainerDemand(3, GIB))
    assert granted(deciding(machine()), pod) == {"node-0": "0-4"}


# -- unavailable CPUs -------------------------------------------------------------------------------------------------


def test_reserved_cpus_are_never_given() -> None:
    chosen = deciding(one_zone(reserved="0,5"))
    # cores 0 and 1 have a reserved thread each, so they come after cores 2 and 3
    assert granted(chosen, wanting("a", 2)) == {"node-0": "2-3"}
    assert granted(chosen, wanting("b", 4)) == {"node-0": "1,4,6-7"}
    assert granted(chosen, wanting("c", 1)) == "ZoneCpuInsufficient"


def test_cpus_of_running_pods_are_not_assigned() -> None:
    held = a_pod("old").cpu(2).holding("n", ZoneGrant("node-0", "0-1"), policy="static")
    assert granted(deciding(one_zone(), held), wanting("a", 6)) == {"node-0": "2-7"}


def test_ids_may_be_sparse() -> None:
    node = a_node("n").cpu(6).zone("node-0", "0,2,40-41,64,66", cpu="6", siblings="0,40;2,41;64,66")
    assert granted(deciding(node), wanting("a", 4)) == {"node-0": "0,2,40,64"}


def test_lent_cpus_are_not_free_and_named_in_the_reason() -> None:
    node = a_node("n").cpu(8).zone("node-0", "0-7", cpu="8", offline="2500m")
    chosen = deciding(node)
    assert refusal(chosen, wanting("a", 3)) == (
        "ZoneCapacityLent",
        "3 CPUs do not fit now because online workloads or maintenance reduce the allocatable CPUs of a zone by up to "
        "5500m",
    )
    assert granted(chosen, wanting("b", 2)) == {"node-0": "0-1"}


# -- reasons ---------------------------------------------------------------------------------------------------------


def test_reasons_carry_numbers() -> None:
    chosen = deciding(machine().cpu(32).memory("64Gi"), memory=True)
    granted(chosen, wanting("a", 5))
    assert refusal(chosen, wanting("b", 9, aware=True)) == (
        "ZoneCpuInsufficient",
        "no NUMA zone has 9 free CPUs; at most 8 are free in one zone",
    )
    assert refusal(chosen, wanting("c", 12, aware=False)) == (
        "ZoneCpuInsufficient",
        "the NUMA zones together have 11 whole CPUs free, but 12 are requested",
    )
    assert refusal(chosen, wanting("d", 2).memory("20Gi")) == (
        "ZoneMemoryInsufficient",
        "no NUMA zone has both enough free CPUs and 20Gi of free memory",
    )
    assert refusal(chosen, wanting("e", 2, aware=False).memory("40Gi")) == (
        "ZoneMemoryInsufficient",
        "the NUMA zones together have less than 40Gi of free memory",
    )


def test_node_without_zones_is_unknown_for_aware_pods() -> None:
    assert refusal(deciding(a_node("n")), wanting("a", 1)) == ("TopologyUnknown", "the node's NUMA zones are unknown")
    assert granted(deciding(a_node("n")), wanting("counted", 1, "none")) == "TopologyUnknown"
    assert granted(deciding(a_node("n")), a_pod("b").cpu(1).guaranteed()) == {}


def test_unreported_memory_is_unknown() -> None:
    node = machine()
    report = node.build()
    assert report.numa is not None
    bare = tuple(replace(zone, capacity={}, allocatable={}) for zone in report.numa.zones)
    node.having(numa=replace(report.numa, zones=bare))
    assert refusal(deciding(node, memory=True), wanting("a", 1))[0] == "ZoneMemoryUnknown"


# -- hyper-threads by load -------------------------------------------------------------------------------------------


def loaded(name: str, cpus: int, profile: str) -> PodBuilder:
    return wanting(name, cpus).shaped(load_profile=profile)


def test_busy_pod_shares_a_core_with_an_idle_one_when_none_is_free() -> None:
    chosen = deciding(one_zone())
    for name, profile in (("a", "busy"), ("b", "peaks=08-12"), ("c", "idle"), ("d", "")):
        granted(chosen, loaded(name, 1, profile))  # cores 0 to 3, one each
    assert granted(chosen, loaded("e", 1, "busy")) == {"node-0": "6"}  # c is idle
    assert granted(chosen, loaded("f", 1, "busy")) == {"node-0": "7"}  # d is unknown
    assert granted(chosen, loaded("g", 1, "busy")) == {"node-0": "5"}  # b is busy for 4 hours
    assert list(pairings(chosen.state, "default/e")) == [
        "CPU 6 shares a core with CPU 2 of default/c, which is idle",
    ]
    assert list(pairings(chosen.state, "default/g")) == [
        "CPU 5 shares a core with CPU 1 of default/b, and both are busy at the same time for 4 hours a day",
    ]


def test_what_if_explains_the_final_pairing() -> None:
    pods = [loaded("a", 4, "idle").build(), loaded("b", 1, "busy").build()]
    policy = policy_of("numa-fit")
    answer = what_if(deciding(one_zone()).state, policy, pods, evaluated_at="2026-11-20T10:00:00Z")
    first, second = answer.document()["placements"]
    assert list(first["pairings"]) == ["CPU 0 shares a core with CPU 4 of default/b, which is busy at other hours"]
    assert list(second["pairings"]) == ["CPU 4 shares a core with CPU 0 of default/a, which is idle"]
    (alone,) = what_if(deciding(one_zone()).state, policy, pods[:1], evaluated_at="2026-11-20T10:00:00Z").document()[
        "placements"
    ]
    assert "pairings" not in alone


def test_opposite_peaks_share_cores() -> None:
    chosen = deciding(one_zone())
    granted(chosen, loaded("day", 2, "peaks=08-20"))  # cores 0 and 1
    granted(chosen, loaded("busy", 2, "busy"))  # cores 2 and 3
    assert granted(chosen, loaded("night", 2, "peaks=20-08")) == {"node-0": "4-5"}
    assert next(pairings(chosen.state, "default/night")) == (
        "CPU 4 shares a core with CPU 0 of default/day, which is busy at other hours"
    )


def test_busy_pod_gets_separate_cores_in_packing_order() -> None:
    assert granted(deciding(one_zone(), order="pack"), loaded("a", 2, "idle")) == {"node-0": "0,4"}
    assert granted(deciding(one_zone(), order="pack"), loaded("a", 2, "busy")) == {"node-0": "0-1"}


def test_sibling_threads_are_used_after_one_thread_per_core() -> None:
    chosen = deciding(one_zone())
    assert granted(chosen, loaded("a", 5, "busy")) == {"node-0": "0-4"}
    assert list(pairings(chosen.state, "default/a")) == [
        ("CPUs 0 and 4, both assigned to this pod, are threads of one core")
    ]
