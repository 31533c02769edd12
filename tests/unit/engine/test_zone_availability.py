"""`available` of NodeResourceTopology zones, with reservations that explain part of it counted once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.contracts.objects.node_report import NodeReport, NumaReport, NumaZone
from hetsched.engine.cluster.state import ClusterState
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import cluster, policy_of, rebuilt, scheduler

GIB = 2**30


def node(*available: int | None, cpu_manager: str | None = None, policy: str | None = None, **more: int) -> NodeBuilder:
    """Return a node of zones of 8 counted CPUs with this many of them available."""
    zones = tuple(
        NumaZone(
            f"node-{number}", capacity={"cpu": 8000, **more}, allocatable={"cpu": 8000, **more},
            available={} if remaining is None else {"cpu": 1000 * remaining},
        )
        for number, remaining in enumerate(available)
    )  # fmt: skip
    numa = NumaReport(zones, cpu_manager, policy, "container")
    return a_node("n").cpu(8 * len(zones)).having(numa=numa)


def free(state: ClusterState, field: str = "zone_cpu_free") -> list[int]:
    found: list[int] = state.columns.field(field)[:, 0].tolist()
    return found


def pinned(name: str, cpus: int) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed().numa(True, "exclusive")


def test_pod_with_zones_avoids_unavailable_zones() -> None:
    chosen = scheduler([node(0, 0)], policy=policy_of("resource-fit", "numa-fit"))
    assert chosen.schedule(pinned("p", 4).build()).node is None
    # A pinning kubelet would reject it too.
    pins = scheduler([node(0, 0, cpu_manager="static", policy="none")], policy=policy_of("resource-fit", "numa-fit"))
    assert pins.schedule(a_pod("p").cpu(4).guaranteed().build()).node is None


def test_pods_that_are_placed_later_are_subtracted() -> None:
    # 5 of 8 are available in zone 0: 3 are in use by others. A pod of 2 leaves 3, another 1.
    chosen = scheduler([node(5, 0)], policy=policy_of("resource-fit", "numa-fit"))
    for name, remaining in (("a", 3000), ("b", 1000)):
        assert chosen.schedule(pinned(name, 2).build()).node == "n"
        assert free(chosen.state)[0] == remaining
    assert chosen.schedule(pinned("c", 2).build()).node is None
    chosen.state.forget("default/a")
    assert free(chosen.state) == [3000, 0]


def test_pods_that_were_running_at_the_report_count_once() -> None:
    # The kubelet reports 4 of 8 free in zone 0, and a pod of 4 CPUs is predicted there: it explains all that is in use.
    pod = a_pod("p").cpu(4).guaranteed().running_on("n")
    state = cluster([node(4, 8, cpu_manager="static", policy="none")], [pod])
    assert free(state) == [4000, 8000]
    assert free(state, "zone_cpus_free") == [4, 8]


def test_prediction_in_another_zone_is_corrected() -> None:
    # Predicted in zone 0, in use is zone 1: together nothing is unexplained, and each zone has the reported amount.
    pod = a_pod("p").cpu(4).guaranteed().running_on("n")
    state = cluster([node(8, 4, cpu_manager="static", policy="none")], [pod])
    assert free(state) == [8000, 4000]


def test_report_older_than_the_pod_keeps_its_reservation() -> None:
    pod = a_pod("p").cpu(4).guaranteed().running_on("n")
    state = cluster([node(8, 8, cpu_manager="static", policy="none")], [pod])
    assert free(state) == [4000, 8000]


def test_repeated_facts_keep_unexplained_use() -> None:
    chosen = scheduler([node(5, 8)], policy=policy_of("resource-fit", "numa-fit"))
    chosen.schedule(pinned("a", 8).build())
    chosen.schedule(pinned("b", 2).build())
    assert free(chosen.state) == [3000, 0]
    report = chosen.state.reports[0]
    chosen.state.apply_report(msgspec.structs.replace(report, labels={"a": "b"}))
    assert free(chosen.state) == [3000, 0]
    # A new report has 3 available in zone 0: pod b is in it.
    chosen.state.apply_report(available(report, 3, 0))
    assert free(chosen.state) == free(rebuilt(chosen.state)) == [3000, 0]


@pytest.mark.parametrize(
    "changed",
    [{"allocatable": {"cpu": 16000}}, {"capacity": {"cpu": 16000}, "allocatable": {}}, {"cpus": "0-3"}],
    ids=["allocatable", "capacity", "cpus"],
)
def test_resized_zone_is_compared_again(changed: dict[str, Any]) -> None:
    report = node(4, 8).build()
    state = cluster([report], [])
    assert free(state) == [4000, 8000]
    assert report.numa is not None
    zones = (msgspec.structs.replace(report.numa.zones[0], **changed), report.numa.zones[1])
    state.apply_report(msgspec.structs.replace(report, numa=msgspec.structs.replace(report.numa, zones=zones)))
    assert free(state) == free(rebuilt(state)) == [4000, 8000]


def available(report: NodeReport, *remaining: int) -> NodeReport:
    assert report.numa is not None
    zones = tuple(
        msgspec.structs.replace(zone, available={"cpu": 1000 * count})
        for zone, count in zip(report.numa.zones, remaining, strict=True)
    )
    return msgspec.structs.replace(report, numa=msgspec.structs.replace(report.numa, zones=zones))


def test_memory_and_devices_count_too() -> None:
    made = node(8, 8, memory=8 * GIB, **{"example.com/nic": 2})
    report = made.build()
    assert report.numa is not None
    first = msgspec.structs.replace(report.numa.zones[0], available={"memory": 3 * GIB, "example.com/nic": 0})
    zones = (first, *report.numa.zones[1:])
    state = cluster([made.having(numa=msgspec.structs.replace(report.numa, zones=zones))])
    assert free(state, "zone_memory_free") == [3 * 1024, 8 * 1024]
    assert free(state, "zone_devices_free") == [0, 2]
    assert free(state) == [8000, 8000]


def test_full_zones_are_not_now() -> None:
    chosen = scheduler([node(0, 0)], policy=policy_of("resource-fit", "numa-fit"))
    assert chosen.state.emptied().load("zone_cpu_free")[:, 0].tolist() == [8000, 8000]
