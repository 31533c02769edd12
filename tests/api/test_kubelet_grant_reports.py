"""From an agent's report of kubelet allocations to decisions, REST facts and the node page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from hetsched.contracts.messages.agent_message import AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    KubeletState,
    MachineCard,
    MachineCpu,
    MachineIsa,
    MachineZone,
)
from hetsched.contracts.objects.node_report import KubeletGrant, NumaReport
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Pod
from hetsched.placement.queries.kubelet_pods import pods_with_grants
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, submitted
from workers import schedule

from .conftest import Api

CPUS = tuple(MachineCpu(cpu, cpu, cpu // 4, cpu // 4, str(cpu)) for cpu in range(8))
ZONES = (MachineZone(0, "0-3", 16384), MachineZone(1, "4-7", 16384))
KUBELET = KubeletState("static", topology_manager_policy="restricted", topology_manager_scope="container")


class Agent:
    """The agent of node n1, with two zones of 4 CPUs."""

    def __init__(self, door: Api) -> None:
        self.door = door
        self.sequence = 0

    def report(self, *, gpus: tuple[MachineCard, ...] | None = None, **kubelet: Any) -> None:
        self.sequence += 1
        state = msgspec.structs.replace(KUBELET, **kubelet)
        report = AgentReport("n1", MachineIsa("x86", "x86-64-v3", level="x86-64-v3"), ZONES, CPUS, gpus, state)
        message = AgentMessage("n1", "a", "2026-11-21T10:00:00Z", self.sequence, digest_of(report), report)
        answer = self.door("POST", "agent/reports/", message, status=200).json()
        assert answer["problems"] == []

    def confirm(self, **kubelet: Any) -> list[Any]:
        """Confirm the previous report, and return the problems that the server reports for it."""
        self.sequence += 1
        report = AgentReport(
            "n1", MachineIsa("x86", "x86-64-v3", level="x86-64-v3"), ZONES, CPUS, None,
            msgspec.structs.replace(KUBELET, **kubelet),
        )  # fmt: skip
        message = AgentMessage("n1", "a", "2026-11-21T10:00:00Z", self.sequence, digest_of(report))
        problems: list[Any] = self.door("POST", "agent/reports/", message, status=200).json()["problems"]
        return problems


@pytest.fixture
def fleet(db: None) -> Cluster:
    return a_cluster(a_node("n1").cpu(8), name="lab")


@pytest.fixture
def agent(api: Callable[..., Api], settings: Any, fleet: Cluster) -> Agent:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_AGENT_KEYS_OVER_HTTP = True
    return Agent(api("agent"))


def numa() -> NumaReport:
    found = Node.objects.get().report.numa
    assert found is not None
    return found


def node_of(name: str) -> str | None:
    schedule.run(Cluster.objects.get().pk)
    pod = Pod.objects.get(name=name)
    return pod.node.name if pod.node is not None else None


HELD = {"elsewhere-1": {"main": "0-1"}, "elsewhere-2": {"main": "4-5"}}


def test_pod_avoids_a_node_with_zones_half_used_by_unknown_pods(agent: Agent, fleet: Cluster) -> None:
    # 2 free exclusive CPUs in each zone, as in the issue: 4 CPUs fit an empty zone, so `restricted` rejects two.
    agent.report(exclusive=HELD)
    assert numa().grants == (
        KubeletGrant("elsewhere-1", "0-1", foreign=True),
        KubeletGrant("elsewhere-2", "4-5", foreign=True),
    )
    submitted(fleet, a_pod("four").cpu(4).guaranteed(), a_pod("two").cpu(2).guaranteed())
    assert node_of("two") == "n1"
    assert Pod.objects.get(name="four").node is None


def test_pod_is_placed_after_the_kubelet_released_cpus(agent: Agent, fleet: Cluster) -> None:
    agent.report(exclusive=HELD)
    submitted(fleet, a_pod("four").cpu(4).guaranteed())
    assert node_of("four") is None
    agent.report(exclusive={"elsewhere-1": {"main": "0-1"}})
    assert node_of("four") == "n1"


def test_pod_placed_by_us_counts_once(agent: Agent, fleet: Cluster) -> None:
    agent.report()
    submitted(fleet, a_pod("four").cpu(4).guaranteed())
    assert node_of("four") == "n1"
    Pod.objects.update(uid="uid-four")
    cache_of(fleet.pk).invalidate()
    with cache_of(fleet.pk).locked_snapshot() as loaded:
        assert loaded.state.columns.field("zone_cpu_free")[:, 0].tolist() == [0, 4000]
        state = loaded.state
    # Predicted in zone 0; the kubelet chose zone 1. The cached state follows without a rebuild, and equals a rebuilt
    # one.
    agent.report(exclusive={"uid-four": {"main": "4-7"}})
    assert numa().grants == (KubeletGrant("uid-four", "4-7"),)
    with cache_of(fleet.pk).locked_snapshot() as loaded:
        assert loaded.state is state
        assert state.columns.field("zone_cpu_free")[:, 0].tolist() == [4000, 0]
    fresh = load_state(fleet.pk).state
    assert fresh.columns.load.tolist() == state.columns.load.tolist()
    submitted(fleet, a_pod("other").cpu(4).guaranteed())
    assert node_of("other") == "n1"


def test_report_with_unknown_pods_is_confirmed_by_its_digest(agent: Agent) -> None:
    agent.report(exclusive=HELD)
    assert agent.confirm(exclusive=HELD) == []


def test_gpu_of_an_unknown_pod_is_not_assigned(agent: Agent, fleet: Cluster) -> None:
    cards = tuple(MachineCard(index, f"GPU-{index}", "NVIDIA L4", 23034, (), healthy=True) for index in range(2))
    agent.report(gpus=cards, devices={"elsewhere": {"main": {"nvidia.com/gpu": ("GPU-0",)}}})
    submitted(fleet, a_pod("p").gpu(), a_pod("q").gpu())
    schedule.run(fleet.pk)
    placed = Pod.objects.exclude(node=None)
    assert [[card.index for card in pod.allocation.gpus] for pod in placed if pod.allocation is not None] == [[1]]


def test_options_and_device_zones_reach_the_facts(agent: Agent, operator: Api) -> None:
    agent.report(
        cpu_manager_options={"full-pcpus-only": "true", "shiny": "1"},
        topology_manager_options={"prefer-closest-numa-nodes": "true"},
        memory_manager_policy="Static",
        device_zones={
            "example.com/nic": {"mlx0": (0,), "mlx1": (0,), "mlx2": (1,)},
            "example.com/wide": {"a": (0, 1)},
        },
        devices={"elsewhere": {"main": {"example.com/nic": ("mlx1",)}}},
        exclusive={"elsewhere": {"main": "1"}},
    )
    facts = operator.get("nodes/n1/numa/")
    assert facts["cpuManagerOptions"] == {"full-pcpus-only": "true", "shiny": "1"}
    assert facts["topologyManagerOptions"] == {"prefer-closest-numa-nodes": "true"}
    # This machine reports no distances.
    assert facts["unknownOptions"] == ["shiny=1", "prefer-closest-numa-nodes=true", "memoryManagerPolicy=Static"]
    assert facts["kubeletCpus"] == "1"
    assert [zone["allocatable"].get("example.com/nic") for zone in facts["zones"]] == ["2", "1"]
    assert [zone["used"] for zone in facts["zones"]] == ["1", "0"]
    assert numa().sockets == "0-3;4-7"
    assert numa().grants == (KubeletGrant("elsewhere", "1", devices={"node-0": {"example.com/nic": 1}}, foreign=True),)
    assert any("DeviceZonesUnknown: example.com/wide" in text for text in Node.objects.get().report.problems)


def test_untracked_use_is_unknown(operator: Api, db: None) -> None:
    a_cluster(a_node("n1").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7"), name="lab")
    assert [zone["used"] for zone in operator.get("nodes/n1/numa/")["zones"]] == ["0", "0"]
    cluster = Cluster.objects.get()
    submitted(cluster, a_pod("p").cpu(6))
    assert node_of("p") == "n1"
    facts = operator.get("nodes/n1/numa/")
    assert [zone["used"] for zone in facts["zones"]] == [None, None]
    assert facts["useUnknown"] == (
        "no pod has reserved zones on this node, and no source reports available zone resources"
    )


def test_available_amounts_of_zones_determine_their_use(operator: Api, db: None) -> None:
    made = a_node("n1").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7")
    report = made.build().numa
    assert report is not None
    zones = tuple(msgspec.structs.replace(zone, available={"cpu": 1000}) for zone in report.zones)
    a_cluster(made.having(numa=msgspec.structs.replace(report, zones=zones)), name="lab")
    assert [zone["used"] for zone in operator.get("nodes/n1/numa/")["zones"]] == ["3", "3"]


def test_pods_of_a_node_are_queried_by_index(fleet: Cluster) -> None:
    kubelet = KubeletState(exclusive={"u1": {"main": "0-3"}}, devices={"default/b": {}})
    with CaptureQueriesContext(connection) as asked:
        assert pods_with_grants(fleet, "n1", kubelet) == set()
    if connection.vendor == "sqlite":
        for query in asked.captured_queries:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
                steps = [str(row[-1]) for row in cursor.fetchall()]
            (of_pods,) = [step for step in steps if "placement_pod " in step]
            assert "(node_id=?)" in of_pods
