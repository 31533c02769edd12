"""Facts that shrink or grow are quarantined until an operator decides; reserved devices stay until then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hetsched.contracts.messages.agent_report import AgentReport, MachineCard, MachineIsa, MachineZone
from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.agent_messages import receive
from hetsched.inventory.fact_review import end_overrides
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.journal.models import AuditEntry
from hetsched.placement.models import Reservation
from hetsched.placement.queries.invariants import check_invariants
from tests.api.test_agent_report_endpoint import message
from tests.builders import a_pod
from tests.situations import placing, recorded, submitted

from .conftest import Api

CARDS = tuple(MachineCard(i, f"GPU-{i}", "A100-SXM4-40GB", 40960, zone=0, healthy=True) for i in range(2))
ZONES = (MachineZone(0, "0-3", 16384), MachineZone(1, "4-7", 16384))
REPORT = AgentReport("n2", MachineIsa("x86", "x86-64-v3"), ZONES, (), CARDS)


class AgentOfNode2:
    """The agent of n2 and the results of its reports."""

    def __init__(self, cluster: Cluster, operator: Api) -> None:
        self.cluster, self.operator, self.sequence = cluster, operator, 0

    def says(self, **changed: Any) -> None:
        self.sequence += 1
        receive(self.cluster, message(msgspec.structs.replace(REPORT, **changed), sequence=self.sequence, node="n2"))

    @property
    def cards(self) -> list[tuple[int, str | None, bool]]:
        return [(card.index, card.uuid, card.healthy) for card in Node.objects.get(name="n2").report.gpus or ()]

    @property
    def offers(self) -> list[tuple[str | None, int | None]]:
        return [(card.model, card.memory_mib) for card in Node.objects.get(name="n2").report.gpus or ()]

    def quarantined(self) -> list[tuple[str, str, str]]:
        return [(item.fact, item.item, item.change) for item in NodeFacts.objects.get().quarantined]

    def act(self, action: str, status: int = 200, **more: Any) -> Any:
        tag = self.operator.tag("nodes/n2/")
        fact = {} if "fact" in more else {"fact": NodeFacts.objects.get().quarantined[0].id}
        body = {"action": action, "reason": "looked at it", **fact, **more}
        return self.operator("POST", "nodes/n2/actions/", body, if_match=tag, status=status).json()


@pytest.fixture
def node(cluster: Cluster, operator: Api, settings: Any) -> AgentOfNode2:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    found = AgentOfNode2(cluster, operator)
    found.says()
    return found


def test_missing_gpu_stays_with_its_holder(node: AgentOfNode2) -> None:
    workload = submitted(node.cluster, a_pod("p").gpu(1))
    recorded(node.cluster, placing(node.cluster, "n2", CardGrant(0, 1000, 40960, "GPU-0")))
    pod = workload.pods.get()
    node.says(gpus=(msgspec.structs.replace(CARDS[1], index=0),))  # the driver renumbers the remaining GPU
    assert node.cards == [(0, "GPU-0", False), (1, "GPU-1", True)]
    assert node.quarantined() == [("gpu", "GPU-0", "shrunk")]
    assert Reservation.objects.filter(pod=pod, active=True).exists()
    assert check_invariants(node.cluster) == []
    assert node.operator.get("nodes/n2/")["quarantined"][0]["pods"] == ["default/p"]
    assert node.act("approve", 409)["code"] == "FactStillHeld"
    node.says()
    assert (node.cards, node.quarantined()) == ([(0, "GPU-0", True), (1, "GPU-1", True)], [])


def test_approved_loss_is_permanent(node: AgentOfNode2) -> None:
    node.says(gpus=CARDS[:1])
    shown = node.act("approve")
    assert (node.cards, shown["quarantined"]) == ([(0, "GPU-0", True)], [])
    assert AuditEntry.objects.filter(action="node.approve", reason="looked at it").exists()
    node.says()
    assert node.quarantined() == [("gpu", "GPU-1", "grown")]  # it is new when it returns


def test_rejected_loss_keeps_the_fact(node: AgentOfNode2) -> None:
    node.says(gpus=CARDS[:1])
    node.act("reject")
    assert node.cards == [(0, "GPU-0", True), (1, "GPU-1", True)]
    assert NodeFacts.objects.get().quarantined[0].state == "rejected"


def test_new_gpu_waits_for_approval(node: AgentOfNode2) -> None:
    new = msgspec.structs.replace(CARDS[0], index=2, uuid="GPU-2")
    node.says(gpus=(*CARDS, new))
    assert len(node.cards) == 2
    node.act("approve")
    assert node.cards[2] == (2, "GPU-2", True)
    node.says(gpus=(*CARDS, new))
    assert node.quarantined() == []


def test_changed_gpu_waits_for_approval(node: AgentOfNode2) -> None:
    changed = (msgspec.structs.replace(CARDS[0], model="H100-SXM5-80GB", memory_mib=8_000_000), CARDS[1])
    node.says(gpus=changed)
    assert node.offers == [("A100-SXM4-40GB", 40960), ("A100-SXM4-40GB", 40960)]
    assert node.quarantined() == [("gpu", "GPU-0", "grown")]
    shown = node.act("approve")
    assert (shown["quarantined"], node.offers[0]) == ([], ("H100-SXM5-80GB", 8_000_000))
    node.says(gpus=changed, memory_mib=1024)
    assert node.quarantined() == []


def test_facts_quarantined_together_are_one_audit_entry(node: AgentOfNode2) -> None:
    def entries() -> list[dict[str, Any]]:
        return list(
            AuditEntry.objects.filter(action="node.quarantine").order_by("pk").values_list("details", flat=True)
        )

    new = [msgspec.structs.replace(CARDS[0], index=i, uuid=f"NEW-{i:03}") for i in range(2, 32)]
    node.says(gpus=(*CARDS, *reversed(new)))
    (details,) = entries()
    # 30 GPUs are new: the entry counts all and names the first 20.
    assert details["count"] == 30
    assert [fact["item"] for fact in details["facts"]] == [f"NEW-{i:03}" for i in range(2, 22)]
    node.says(gpus=(*CARDS, *new), memory_mib=1024)
    assert len(entries()) == 1  # known quarantines are not recorded again
    node.says(gpus=(CARDS[0], *new))
    lost = {"fact": "gpu", "item": "GPU-1", "change": "shrunk", "known": "GPU-1 A100-SXM4-40GB", "told": "missing"}
    assert entries()[1:] == [{"count": 1, "facts": [lost]}]


def test_missing_cpus_are_not_freed(node: AgentOfNode2) -> None:
    node.says(zones=(ZONES[0], MachineZone(1, "4-5", 16384)))
    numa = Node.objects.get(name="n2").report.numa
    assert numa is not None
    assert ([zone.cpus for zone in numa.zones], numa.lost_cpus) == (["0-3", "4-5"], "6-7")
    shown = node.act("approve")
    assert shown["quarantined"] == []
    numa = Node.objects.get(name="n2").report.numa
    assert numa is not None
    assert numa.lost_cpus is None


def test_tenfold_capacity_is_not_accepted(node: AgentOfNode2) -> None:
    node.says(zones=(MachineZone(0, "0-39", 163840), MachineZone(1, "40-79", 163840)))
    numa = Node.objects.get(name="n2").report.numa
    assert numa is not None
    # 80 CPUs are reported and 8 known: the known CPUs that are still reported stay, with their memory.
    assert [zone.cpus for zone in numa.zones] == ["0-3", "4-7"]
    assert sorted(node.quarantined()) == [("numa", "CPUs", "grown"), ("numa", "memory", "grown")]


def test_review_requires_a_reason_and_the_current_state(node: AgentOfNode2) -> None:
    node.says(gpus=CARDS[:1])
    assert node.act("approve", 400, reason=" ")["code"] == "ReasonMissing"
    assert node.act("approve", 400, fact="nothing")["code"] == "FactUnknown"
    tag = node.operator.tag("nodes/n2/")
    node.act("reject")
    body = {"action": "approve", "reason": "x", "fact": NodeFacts.objects.get().quarantined[0].id}
    node.operator("POST", "nodes/n2/actions/", body, if_match=tag, status=412)


def test_override_expires(node: AgentOfNode2) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    shown = node.act("override", fact="card.1", value="unhealthy", until=until)
    assert (shown["overrides"][0]["fact"], node.cards[1][2]) == ("card.1", False)
    node.says(memory_mib=1024)  # regardless of further reports
    assert node.cards[1][2] is False
    row = NodeFacts.objects.get()
    row.overrides = tuple(msgspec.structs.replace(override, until="2026-01-01T00:00:00Z") for override in row.overrides)
    row.save()
    assert end_overrides(node.cluster.pk) == 1
    assert node.cards[1][2] is True


@pytest.mark.parametrize(
    ("fact", "value", "until", "code"),
    [
        ("isa", "rv64zzz", "2027-01-01T00:00:00Z", "FactInvalid"),
        ("card.9", "healthy", "2027-01-01T00:00:00Z", "FactUnknown"),
        ("card.0", "fine", "2027-01-01T00:00:00Z", "FactInvalid"),
        ("labels", "x", "2027-01-01T00:00:00Z", "FactUnknown"),
        ("isa", "rv64gc", "2020-01-01T00:00:00Z", "ExpiryInvalid"),
        ("isa", "rv64gc", None, "ExpiryInvalid"),
        ("isa", None, None, "FactUnknown"),
    ],
)
def test_wrong_overrides_are_refused(
    node: AgentOfNode2, fact: str, value: str | None, until: str | None, code: str
) -> None:
    assert node.act("override", 400, fact=fact, value=value, until=until)["code"] == code


def test_every_report_is_kept_with_its_source(node: AgentOfNode2, operator: Api) -> None:
    node.says(isa=MachineIsa("x86", "x86-64-v4"))
    said = operator.get("nodes/n2/")["facts"]["isa"]["said"]
    reported = [(item["source"], item["text"], item["current"]) for item in said if item["source"] == "agent"]
    assert reported == [("agent", "x86-64-v4", True), ("agent", "x86-64-v3", False)]
    for number in range(30):
        node.says(isa=MachineIsa("x86", f"x86-64-v{number % 3 + 1}"))
    assert len(operator.get("nodes/n2/")["facts"]["isa"]["said"]) == 10
