"""Conversion of an agent's report to node facts; invalid parts are left out and reported, without exceptions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    EmulatedIsa,
    IsaSource,
    KubeletState,
    MachineCard,
    MachineCpu,
    MachineIsa,
    MachineLink,
    MachineProblem,
    MachineUsage,
    MachineZone,
    MigDevice,
)
from hetsched.contracts.objects.node_report import CardLink, GpuCard, NumaZone, Usage
from hetsched.engine.cluster.state import ClusterState
from tests.builders import a_node
from tests.unit.engine.fleet import cluster

GIB = 2**30
NO_ISA = MachineIsa(None, None)


def report(**facts: Any) -> AgentReport:
    parts: dict[str, Any] = {"node": "n", "isa": NO_ISA, "zones": None, "cpus": None, "gpus": None}
    return AgentReport(**{**parts, **facts})


def a_cpu(number: int, siblings: str, zone: int = 0) -> MachineCpu:
    return MachineCpu(number, min(map(int, siblings.split(","))), 0, zone, siblings)


def codes(said: AgentReport) -> list[str]:
    return [problem.split(":")[0] for problem in node_facts(said).problems]


def test_zones_have_names_siblings_costs_and_remaining_capacity() -> None:
    zones = (
        MachineZone(0, "0,1,4,5", 16384, (10, 21), {"2048kB": 512, "1048576kB": 0}, 0.35, 1400),
        MachineZone(3, "2-3,6-7", 8192, (21, 10)),
    )
    cpus = tuple(a_cpu(i, f"{i % 4},{i % 4 + 4}", 3 * (i % 4 > 1)) for i in range(8))
    kubelet = KubeletState("static", {}, "restricted", "pod", reserved_cpus="0,4")
    found = node_facts(report(zones=zones, cpus=cpus, kubelet=kubelet))
    assert found.numa is not None
    # 512 pages of 2 MiB are 1 GiB; CPUs 0 and 4 are reserved
    pages = {"hugepages-2Mi": GIB}
    assert found.numa.zones == (
        NumaZone(
            "node-0", "0-1,4-5", "0,4;1,5", {"cpu": 4000, "memory": 16 * GIB, **pages},
            {"cpu": 2000, "memory": 15 * GIB, **pages}, 1400, {"node-0": 10, "node-3": 21},
        ),
        NumaZone(
            "node-3", "2-3,6-7", "2,6;3,7", {"cpu": 4000, "memory": 8 * GIB}, {"cpu": 4000, "memory": 8 * GIB},
            costs={"node-0": 21, "node-3": 10},
        ),
    )  # fmt: skip
    policies = (found.numa.cpu_manager_policy, found.numa.topology_manager_policy, found.numa.topology_manager_scope)
    assert policies == ("static", "restricted", "pod")
    assert found.numa.reserved_cpus == "0,4"
    assert found.allocatable == {"cpu": 6000, "memory": 24 * GIB}
    assert (found.name, found.source, found.problems) == ("n", "agent", ())


def test_memory_without_cpus_is_no_cpu_zone() -> None:
    zones = (MachineZone(0, "0-3", 1024, (10, 20)), MachineZone(1, "", 65536, (20, 10)))
    facts = node_facts(report(zones=zones))
    state = cluster([a_node("n").having(numa=facts.numa)], [])
    assert state.zones.nodes[0].names == ("node-0",)


def test_kubelet_without_zones_reports_its_policies() -> None:
    numa = node_facts(report(kubelet=KubeletState("none", topology_manager_policy="best-effort"))).numa
    assert numa is not None
    assert (numa.zones, numa.cpu_manager_policy, numa.topology_manager_policy) == ((), "none", "best-effort")


def test_empty_report_states_no_facts() -> None:
    facts = node_facts(report())
    assert (facts.numa, facts.gpus, facts.usage, facts.allocatable) == (None, None, None, {})
    assert (facts.isa.native, facts.isa.source, facts.isa.complete) == (None, "", True)


def test_problems_of_the_agent_are_listed_first() -> None:
    said = report(problems=(MachineProblem("FileTooLarge", "/sys/x: the file is larger than 64 bytes", "/sys/x"),))
    assert node_facts(said).problems == ("FileTooLarge: /sys/x: the file is larger than 64 bytes",)


@pytest.mark.parametrize(
    ("zones", "code"),
    [
        ((MachineZone(0, "0-3"), MachineZone(1, "3-5")), "ZoneContradicts"),
        ((MachineZone(0, "0-3"), MachineZone(0, "4-5")), "ZoneContradicts"),
        ((MachineZone(-1, "0-3"),), "ZoneContradicts"),
        ((MachineZone(0, "0-3", distances=(10, 20)),), "ZoneContradicts"),
        ((MachineZone(0, "3-0"),), "CpusetMalformed"),
        ((MachineZone(0, "0", hugepages={"2048": 1}),), "HugePagesUnreadable"),
        ((MachineZone(0, "0", hugepages={"2048kB": -1}),), "HugePagesUnreadable"),
        (tuple(MachineZone(i, "") for i in range(1025)), "ZonesTooMany"),
    ],
)
def test_contradictory_zones_are_reported(zones: tuple[MachineZone, ...], code: str) -> None:
    assert codes(report(zones=zones)) == [code]


def test_cpu_in_two_zones_is_assigned_to_the_first() -> None:
    numa = node_facts(report(zones=(MachineZone(0, "0-3"), MachineZone(1, "3-5")))).numa
    assert numa is not None
    assert [zone.cpus for zone in numa.zones] == ["0-3", "4-5"]


def test_unknown_kubelet_options_are_ignored() -> None:
    said = report(kubelet=KubeletState("dynamic", {}, "strict", "node", reserved_cpus="x"))
    assert codes(said) == ["CpusetMalformed", "KubeletUnknown", "KubeletUnknown", "KubeletUnknown"]


def test_native_set_from_an_exact_source_is_complete() -> None:
    sources = (
        IsaSource("gcc", "rv64gc", "rv64imafdc_zicsr_zifencei"),
        IsaSource("cpuinfo", "rv64imafdcv", "rv64imafdcv_zicsr_zifencei", "lower"),
    )
    machine = MachineIsa("riscv", "rv64imafdcv_zicsr_zifencei", ("a", "c"), sources=sources)
    found = node_facts(report(isa=machine)).isa
    assert (found.native, found.source, found.complete) == ("rv64imafdcv_zicsr_zifencei", "agent: cpuinfo", False)


def test_emulated_and_cross_sets_are_checked_and_reported_once() -> None:
    emulated = (EmulatedIsa("rv64gcv", "qemu-riscv64"), EmulatedIsa("rv64gcv", "box"), EmulatedIsa("?!", "x"))
    machine = MachineIsa("x86", "x86-64-v3", emulated=emulated, cross=("arm64", "rv64gc"))
    found = node_facts(report(isa=machine))
    assert (found.isa.emulated, found.isa.cross) == (("rv64gcv",), ("arm64", "rv64gc"))
    assert len(found.problems) == 1


def test_cards_keep_their_facts() -> None:
    card = MachineCard(
        0, "GPU-1", "NVIDIA A100-SXM4-80GB", 81920, (), 3, "0000:3b:00.0", None, "", 6912, 19.5, 2039.0, 1410,
        (MachineLink(1, "nvlink", 300.0), MachineLink(0, "nvlink"), MachineLink(2, "magic")),
    )  # fmt: skip
    assert node_facts(report(gpus=(card,))).gpus == (
        GpuCard(
            0, "GPU-1", "NVIDIA A100-SXM4-80GB", "nvidia", 81920, 6912, 19.5, 2039.0, 1410, "node-3", True,
            (CardLink(1, "nvlink", 300.0),),
        ),
    )  # fmt: skip


def test_empty_gpu_list_is_a_fact() -> None:
    assert node_facts(report(gpus=())).gpus == ()


@pytest.mark.parametrize(
    ("cards", "code", "left"),
    [
        ((MachineCard(0, "a", None), MachineCard(0, "b", None)), "CardDuplicate", [0]),
        ((MachineCard(0, "a", None), MachineCard(1, "a", None)), "CardDuplicate", [0]),
        ((MachineCard(256, "a", None), MachineCard(1, "b", None)), "CardOutOfBounds", [1]),
        ((MachineCard(0, "u" * 121, None),), "CardOutOfBounds", []),
        ((MachineCard(0, "a", None, mig_devices=(MigDevice("m", "1g.5gb"),)),), "CardSplit", []),
    ],
)
def test_cards_that_cannot_be_given_out_whole_are_left_out(
    cards: tuple[MachineCard, ...], code: str, left: list[int]
) -> None:
    said = report(gpus=cards)
    assert codes(said) == [code]
    assert [card.index for card in node_facts(said).gpus or ()] == left


def test_gpu_of_unknown_health_is_healthy() -> None:
    cards = tuple(MachineCard(i, None, None, healthy=healthy) for i, healthy in enumerate((True, None, False)))
    assert [card.healthy for card in node_facts(report(gpus=cards)).gpus or ()] == [True, True, False]


def test_use_and_capacities_are_converted() -> None:
    usage = MachineUsage(
        {"cpu": 1500, "memory": GIB, "hetsched.io/network-mbps": -1},
        {"hetsched.io/network-mbps": 25000, "hetsched.io/disk-mbps": 500, "cpu": 8000},
        10.0,
        "2026-11-20T10:00:00Z",
    )
    facts = node_facts(report(usage=usage, memory_mib=2048), observed_at="2026-11-20T10:00:01Z")
    assert facts.usage == Usage({"cpu": 1500, "memory": GIB}, "2026-11-20T10:00:00Z")
    assert facts.allocatable == {
        "memory": 2 * GIB, "hetsched.io/network-mbps": 25000, "hetsched.io/disk-mbps": 500,
    }  # fmt: skip
    assert facts.observed_at == "2026-11-20T10:00:01Z"
    assert [problem.split(":")[0] for problem in facts.problems] == ["UsageOutOfBounds"]


def test_texts_and_lists_of_names_are_bounded() -> None:
    long = "x" * 100_000
    said = report(
        gpus=(MachineCard(0, "G", long, vendor=long),),
        usage=MachineUsage({long: 1, **{f"r{number}": 1 for number in range(1000)}}, observed_at=long),
        zones=(MachineZone(0, "0-3", hugepages={f"{number}kB": 1 for number in range(1, 1001)}),),
        problems=(MachineProblem("Odd", long),),
    )
    assert len(msgspec.json.encode(node_facts(said))) < 10_000


def test_problems_are_bounded() -> None:
    zones = tuple(MachineZone(0, "0") for _ in range(1000))
    assert len(node_facts(report(zones=zones)).problems) == 200


_TEXT = st.text(max_size=12) | st.sampled_from(["0-3", "0,8", "1-", "65535", "rv64gc", "x86-64-v2", "static"])
_NUMBER = st.integers(-(2**70), 2**70) | st.integers(0, 4)
_ZONE = st.builds(
    MachineZone, _NUMBER, _TEXT, st.none() | _NUMBER, st.none() | st.lists(_NUMBER, max_size=3).map(tuple),
    st.dictionaries(_TEXT | st.just("2048kB"), _NUMBER, max_size=2), st.none(), st.none() | _NUMBER,
)  # fmt: skip
_CPU = st.builds(MachineCpu, _NUMBER, st.none(), st.none(), st.none(), st.none() | _TEXT, st.booleans())
_CARD = st.builds(
    MachineCard, _NUMBER, st.none() | _TEXT, st.none() | _TEXT, st.none() | _NUMBER, st.none(), st.none() | _NUMBER,
    links=st.lists(st.builds(MachineLink, _NUMBER, st.sampled_from(["nvlink", "x"])), max_size=2).map(tuple),
)  # fmt: skip
_REPORT = st.builds(
    AgentReport,
    st.just("n"),
    st.builds(MachineIsa, st.none(), st.none() | _TEXT, cross=st.lists(_TEXT, max_size=2).map(tuple)),
    st.none() | st.lists(_ZONE, max_size=4).map(tuple),
    st.none() | st.lists(_CPU, max_size=4).map(tuple),
    st.none() | st.lists(_CARD, max_size=3).map(tuple),
    st.none() | st.builds(KubeletState, _TEXT, st.just({}), _TEXT, _TEXT, reserved_cpus=st.none() | _TEXT),
    st.none() | st.builds(MachineUsage, st.dictionaries(_TEXT, _NUMBER, max_size=2)),
)


@given(_REPORT)
def test_engine_accepts_any_converted_report(said: AgentReport) -> None:
    facts = node_facts(said)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts
    node = a_node("n").having(numa=facts.numa, gpus=facts.gpus, isa=facts.isa, usage=facts.usage)
    state: ClusterState = cluster([node], [])
    assert state.columns.names == ["n"]
