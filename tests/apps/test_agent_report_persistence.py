"""Reports of agents stay when the informer lists again; another machine with the same name starts without them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.contracts.messages.agent_message import AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineIsa, MachineUsage, MachineZone
from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.node_report import NodeReport, NumaReport, NumaZone
from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.agent_messages import apply_samples, count_agents, receive
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Reservation
from hetsched.placement.queries.invariants import check_invariants
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import placing, recorded, submitted

pytestmark = pytest.mark.django_db
REPORT = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (MachineZone(0, "0-7", 32768),), (), None)


def stated(uid: str = "uid-1", cpus: str | None = None, **more: Any) -> NodeReport:
    numa = None if cpus is None else NumaReport((NumaZone("node-0", cpus),))
    return msgspec.structs.replace(a_node("n1").build(), uid=uid, numa=numa, source="api-server", **more)


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def send_report(cluster: Cluster, sequence: int, report: AgentReport | None = REPORT, **more: Any) -> bool:
    digest = digest_of(report or REPORT)
    return receive(cluster, AgentMessage("n1", "i", "2026-11-21T10:00:00Z", sequence, digest, report, **more)).wanted


def node() -> Node:
    return Node.objects.get(name="n1")


@pytest.fixture
def cluster(settings: Any) -> Cluster:
    """Return a live cluster with the node n1, with an informer under epoch 1."""
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    seen(made, nodes=[stated()])
    return made


def test_heartbeat_of_the_api_server_keeps_agent_facts(cluster: Cluster) -> None:
    send_report(cluster, 1)
    seen(cluster, nodes=[stated(labels={"a": "b"})])
    report = node().report
    assert (report.labels, report.isa.native) == ({"a": "b"}, "x86-64-v3")
    assert report.numa is not None
    assert check_invariants() == []
    state = load_state(cluster.pk).state
    assert state.reports[state.row_of["n1"]].numa == report.numa


def test_use_is_stored_in_batches_without_new_facts(cluster: Cluster) -> None:
    send_report(cluster, 1)
    layout = Cluster.objects.get().layout_revision
    usage = MachineUsage({"cpu": 1500, "memory": 2**30}, observed_at="2026-11-21T10:00:30Z")
    send_report(cluster, 2, None, usage=usage)
    assert node().report.usage is None
    assert apply_samples(cluster.pk) == 1
    assert apply_samples(cluster.pk) == 0
    sample = node().report.usage
    assert sample is not None
    assert (sample.amounts, Cluster.objects.get().layout_revision) == ({"cpu": 1500, "memory": 2**30}, layout)


def holding(cluster: Cluster, cpus: str) -> Reservation:
    """Reserve exclusive CPUs of n1 for a pod."""
    workload = submitted(cluster, a_pod("p"))
    (result,) = placing(cluster, "n1")
    grant = Allocation(zones=(ZoneGrant("node-0", cpus, 2000, 0),), cpu_policy="exclusive")
    recorded(cluster, [msgspec.structs.replace(result, allocation=grant)])
    return Reservation.objects.get(pod__in=workload.pods.all())


def test_replaced_machine_keeps_reservations(cluster: Cluster) -> None:
    send_report(cluster, 1)
    reservation = holding(cluster, "6-7")
    seen(cluster, nodes_gone=["n1"])
    assert node().gone
    seen(cluster, nodes=[stated("uid-2", "0-3")])
    numa = node().report.numa
    assert numa is not None
    assert ([zone.cpus for zone in numa.zones], numa.lost_cpus) == (["0-3"], "4-7")
    reservation.refresh_from_db()
    assert reservation.active
    assert [violation for violation in check_invariants() if violation.id == "I5"] == []
    # The agent's reports about the old machine do not apply to it.
    assert send_report(cluster, 2, None) is True


def test_cpus_removed_by_the_api_server_stay_reserved(cluster: Cluster) -> None:
    seen(cluster, nodes=[stated(cpus="0-7")])
    reservation = holding(cluster, "6-7")
    seen(cluster, nodes=[stated(cpus="0-5")])
    assert [item.item for item in NodeFacts.objects.get().quarantined] == ["CPUs"]
    reservation.refresh_from_db()
    assert reservation.active
    assert [violation for violation in check_invariants() if violation.id == "I5"] == []
    seen(cluster, nodes=[stated(cpus="0-7")])
    assert NodeFacts.objects.get().quarantined == ()


def test_totals_follow_the_accepted_facts(cluster: Cluster) -> None:
    send_report(cluster, 1, msgspec.structs.replace(REPORT, zones=(MachineZone(0, "0-5", 16384),), memory_mib=16384))
    assert Cluster.objects.get().capacity["cpu"] == 6000  # 8 from the kubelet, 6 from the machine
    assert check_invariants() == []


def test_agents_are_counted(cluster: Cluster) -> None:
    assert count_agents(cluster.pk) is None
    send_report(cluster, 1)
    assert count_agents(cluster.pk) == {"all": 1, "reporting": 1, "doubted": 0, "doubted_first": None}
    NodeFacts.objects.update(reported_at=timezone.now() - timedelta(seconds=91))
    assert count_agents(cluster.pk) == {"all": 1, "reporting": 0, "doubted": 0, "doubted_first": None}


def test_changed_amount_is_quarantined_before_discovery_writes_it(cluster: Cluster) -> None:
    amounts = node().report.allocatable

    def says(sequence: int, mbps: int) -> list[str]:
        use = MachineUsage({"cpu": 1}, {"hetsched.io/network-mbps": mbps})
        send_report(cluster, sequence, None, usage=use)
        return [item.reported for item in NodeFacts.objects.get().quarantined]

    send_report(cluster, 1)  # the first report has no measurements
    assert says(2, 1000) == []
    assert node().report.allocatable["hetsched.io/network-mbps"] == 1000
    seen(cluster, nodes=[stated(allocatable={**amounts, "hetsched.io/network-mbps": 1000})])
    assert says(3, 100_000) == ["100000"]
    assert node().report.allocatable["hetsched.io/network-mbps"] == 1000
    assert says(4, 1000) == []
