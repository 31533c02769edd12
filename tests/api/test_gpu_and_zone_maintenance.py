"""A GPU or zone in maintenance gets no new pods until the end time; its current pods stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.inventory.fact_review import end_overrides
from hetsched.inventory.models import Cluster
from hetsched.inventory.overrides import read_override
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import import_cluster
from hetsched.placement.models import Pod
from tests.builders import a_node, a_pod
from tests.situations import placing, recorded, submitted
from workers.schedule import run

from .conftest import Api


@pytest.fixture
def zoned(policies: None) -> Cluster:
    node = a_node("n2").cpu(8).gpus(2).zone("node-0", "0-3").zone("node-1", "4-7")
    return import_cluster(ClusterContent(nodes=(node.build(),)), name="lab", actor=SYSTEM)


def in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def act(operator: Api, status: int = 200, **body: Any) -> Any:
    asked = {"reason": "new fan", **body}
    return operator("POST", "nodes/n2/actions/", asked, if_match=operator.tag("nodes/n2/"), status=status).json()


def test_gpu_in_maintenance_accepts_no_pod_and_keeps_its_holder(zoned: Cluster, operator: Api) -> None:
    submitted(zoned, a_pod("old").gpu(1))
    recorded(zoned, placing(zoned, "n2", CardGrant(0, 1000, 40960)))
    shown = act(operator, action="maintenance", card=0, until=in_hours(4))
    assert [(item["part"], item["name"], item["reason"]) for item in shown["maintenance"]] == [("card", "0", "new fan")]
    submitted(zoned, a_pod("one").gpu(1), a_pod("two").gpu(1))
    run(zoned.pk)
    # Card 0 is held by `old` and gets no new pods; card 1 gets one of the two.
    states = sorted(Pod.objects.values_list("name", "state"))
    assert states == [("old", "placed"), ("one", "placed"), ("two", "not-now")]


def test_zone_in_maintenance_grants_no_cpus(zoned: Cluster, operator: Api) -> None:
    act(operator, action="maintenance", zone="node-1", until=in_hours(4))
    submitted(zoned, *(a_pod(name).guaranteed().cpu(3).numa(cpu_policy="exclusive") for name in ("one", "two")))
    run(zoned.pk)
    zones = [pod.allocation.zones[0].name for pod in Pod.objects.exclude(node=None) if pod.allocation]
    # Each zone has 4 CPUs: the second pod of 3 would need node-1.
    assert (zones, Pod.objects.get(name="two").state) == (["node-0"], "not-now")


def test_pod_waits_for_the_end_of_maintenance(zoned: Cluster, operator: Api) -> None:
    """The verdict is "not now" with the maintenance as the reason, until it ends; unhealthy GPUs are gone."""
    for card in (0, 1):
        act(operator, action="maintenance", card=card, until=in_hours(4))
    for zone in ("node-0", "node-1"):
        act(operator, action="maintenance", zone=zone, until=in_hours(4))
    submitted(zoned, a_pod("card").gpu(1), a_pod("zone").guaranteed().cpu(3).numa(cpu_policy="exclusive"))
    run(zoned.pk)
    pods = {pod.name: (pod.state, pod.decision.summary) for pod in Pod.objects.select_related("decision")}
    assert {state for state, _ in pods.values()} == {"not-now"}
    assert "suitable GPUs are in maintenance" in pods["card"][1]
    assert "online workloads or maintenance reduce the allocatable CPUs of a zone by up to 4" in pods["zone"][1]
    act(operator, action="end-maintenance", card=0)
    run(zoned.pk)
    assert Pod.objects.get(name="card").state == "placed"
    act(operator, action="override", fact="card.1", value="unhealthy", until=in_hours(4))
    submitted(zoned, a_pod("both").gpu(2))
    run(zoned.pk)
    assert Pod.objects.get(name="both").state == "never-fits"


def test_unhealthy_gpu_stays_unhealthy_in_maintenance() -> None:
    """Maintenance of an unhealthy GPU does not change the verdict: the GPU is missing in an empty cluster too."""
    card = GpuCard(0, healthy=False)
    report = NodeReport("n", gpus=(card, GpuCard(1)))
    stated = [read_override(report, f"card.{index}", "maintenance").gpus or () for index in (0, 1)]
    assert [[(one.healthy, one.maintenance) for one in cards] for cards in stated] == [
        [(False, False), (True, False)], [(False, False), (False, True)],
    ]  # fmt: skip


def test_maintenance_ends_by_an_operator_or_by_itself(zoned: Cluster, operator: Api, monkeypatch: Any) -> None:
    act(operator, action="maintenance", card=1, until=in_hours(4))
    assert act(operator, action="end-maintenance", card=1)["maintenance"] == []
    act(operator, action="maintenance", card=0, until=in_hours(1))
    later = datetime.now(UTC) + timedelta(hours=2)
    monkeypatch.setattr("hetsched.inventory.fact_review.timezone.now", lambda: later)
    assert end_overrides(zoned.pk) == 1
    cards = operator.get("nodes/n2/gpu/")["cards"]
    assert [card["card"]["healthy"] for card in cards] == [True, True]


def test_maintenance_audit_entries_contain_the_previous_value(zoned: Cluster, operator: Api) -> None:
    act(operator, action="maintenance", zone="node-0", until=in_hours(1))
    act(operator, action="end-maintenance", zone="node-0")
    entries = AuditEntry.objects.filter(action__startswith="node.maintenance").order_by("id")
    said = [(entry.action, entry.details["fact"], entry.details["before"], entry.details["value"]) for entry in entries]
    assert said == [
        ("node.maintenance", "offline-capacity.node-0", None, "0"),
        ("node.maintenance-end", "offline-capacity.node-0", "0", None),
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"action": "maintenance", "until": "soon", "card": 0}, "ExpiryInvalid"),
        ({"action": "maintenance", "card": 0}, "ExpiryInvalid"),
        ({"action": "maintenance"}, "ActionIncomplete"),
        ({"action": "maintenance", "card": 0, "zone": "node-0"}, "ActionIncomplete"),
        ({"action": "maintenance", "card": 9, "until": in_hours(1)}, "FactUnknown"),
        ({"action": "maintenance", "zone": "node-9", "until": in_hours(1)}, "FactUnknown"),
        ({"action": "end-maintenance", "card": 0}, "FactUnknown"),
        ({"action": "end-maintenance", "card": 0, "reason": " "}, "ReasonMissing"),
    ],
)
def test_impossible_maintenance_is_rejected_and_changes_nothing(
    zoned: Cluster, operator: Api, body: Any, code: str
) -> None:
    before = operator.tag("nodes/n2/")
    assert act(operator, status=400, **body)["code"] == code
    assert operator.tag("nodes/n2/") == before
