"""The invariant check detects a violation of each invariant: it is the oracle of every crash test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.objects.allowance import Allowance
from hetsched.contracts.objects.workload import NumaDemand
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import OutboxEvent
from hetsched.placement.models import (
    Charge,
    IdempotencyKey,
    PartiallyBoundGang,
    Pod,
    Reservation,
    ReservedCard,
    ReservedCpu,
    Workload,
)
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.zones import zones_at_risk
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placing, recorded, submitted

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    """One pod holds a GPU, half of another and two CPUs of a zone; a second pod is pending."""
    zoned = a_node("n1").gpus(2).zone("node-0", "0-3").kubelet("none", reserved="3")
    fleet = a_cluster(zoned, a_node("n2").arch("arm64", "armv8.2-a"))
    submitted(fleet, a_pod("holds").gpu(1).isa("x86-64-v1"), owner="ci", idempotency_key="k", body_hash="h")
    (result,) = placing(fleet, "n1", CardGrant(0, 1000, 40960))
    grant = ZoneGrant("node-0", "0-1", 2000, 1024)
    allocation = msgspec.structs.replace(result.allocation, zones=(grant,), cpu_policy="exclusive")
    recorded(fleet, [msgspec.structs.replace(result, allocation=allocation)])
    submitted(fleet, a_pod("waits"))
    assert check_invariants() == []
    return fleet


def _sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _drop(index: str) -> None:
    _sql(f"DROP INDEX {index}")


def _card_twice() -> None:
    _drop("placement_card_one_holder")
    held = ReservedCard.objects.get()
    held.pk = None
    held.save()


def _cpu_twice() -> None:
    _drop("placement_cpu_one_holder")
    reservation = Reservation.objects.get()
    for _ in range(2):
        ReservedCpu.objects.create(reservation=reservation, node=reservation.node, cpu=1, exclusive=True)


def _granted(grant: ZoneGrant, policy: str) -> None:
    reservation = Reservation.objects.get()
    reservation.allocation = msgspec.structs.replace(reservation.allocation, zones=(grant,), cpu_policy=policy)
    reservation.save()


def _zone_overbooked() -> None:
    _granted(ZoneGrant("node-0", None, 3001), "none")  # 4 CPUs minus the reserved one


def _memory_of_a_zone_overbooked() -> None:
    _granted(ZoneGrant("node-0", None, 1000, 16 * 1024 + 1), "none")


def _exclusive_cpu_of_the_system() -> None:
    _granted(ZoneGrant("node-0", "2-3", 2000), "exclusive")


def _share_too_much() -> None:
    reservation = Reservation.objects.get()
    ReservedCard.objects.create(
        reservation=reservation, node=reservation.node, card_index=0, milli=100, memory_mib=0, exclusive=False
    )


def _card_without_a_report() -> None:
    ReservedCard.objects.update(card_index=7)


def _too_much_memory_on_a_card() -> None:
    ReservedCard.objects.update(memory_mib=40961)


def _node_overbooked() -> None:
    node = Node.objects.get(name="n1")
    node.allocatable = {**node.allocatable, "cpu": 500}
    node.save()


def _node_column_drifted() -> None:
    Node.objects.filter(name="n1").update(gpu_milli_used=0)


def _total_drifted() -> None:
    Cluster.objects.update(gpu_milli_used=1)


def _two_zones_for_a_single_zone_pod() -> None:
    pod = Pod.objects.get(name="holds")
    pod.spec = msgspec.structs.replace(
        pod.spec, shape=msgspec.structs.replace(pod.spec.shape, numa=NumaDemand(True, "exclusive"))
    )
    assert pod.allocation is not None
    zones = (ZoneGrant("node-0", "0", 1000), ZoneGrant("node-1", "1", 1000))
    pod.allocation = msgspec.structs.replace(pod.allocation, zones=zones)
    pod.save()


def _fewer_cpus_than_counted() -> None:
    pod = Pod.objects.get(name="holds")
    assert pod.allocation is not None
    pod.allocation = msgspec.structs.replace(pod.allocation, zones=(ZoneGrant("node-0", "0", 2000, 1024),))
    pod.save()


def _part_of_a_gang() -> None:
    fleet = Cluster.objects.get()
    submitted(fleet, *(a_pod(f"g-{number}").gang("g", 3) for number in range(3)))
    node = Node.objects.get(name="n2")
    first = next(result for result in placing(fleet, node.name) if result.waiting.spec.name == "g-0")
    recorded(fleet, [first])


def _permanently_incomplete_gang() -> None:
    PartiallyBoundGang.objects.create(
        cluster=Cluster.objects.get(), namespace="default", gang="g", least=3, patience_seconds=60,
        since=timezone.now() - timedelta(hours=1), reason="no",
    )  # fmt: skip


def _more_than_the_quota() -> None:
    for name in ("q-0", "q-1"):
        submitted(Cluster.objects.get(), a_pod(name), owner="token:1", allowance=Allowance({"pods": 2}))
    assert check_invariants() == []
    Charge.objects.filter(workload__pods__name="q-0").update(amounts={"pods": 2})


def _wrong_instruction_set() -> None:
    arm = Node.objects.get(name="n2").report.isa
    node = Node.objects.get(name="n1")
    node.report = msgspec.structs.replace(node.report, isa=arm)
    node.save()


def _placed_without_a_reservation() -> None:
    Reservation.objects.update(active=False)


def _waiting_with_a_reservation() -> None:
    Pod.objects.filter(name="holds").update(state="pending")


def _on_another_node() -> None:
    Pod.objects.filter(name="holds").update(node=Node.objects.get(name="n2"))


def _of_a_future_leader() -> None:
    Reservation.objects.update(leader_epoch=9)


def _pod_lost() -> None:
    Pod.objects.filter(name="waits").delete()


def _workload_state_drifted() -> None:
    Workload.objects.filter(pods__name="waits").update(state="running")


def _answer_for_another() -> None:
    IdempotencyKey.objects.update(response={"id": "w-other"})


def _event_lost() -> None:
    event = OutboxEvent.objects.filter(topic="cluster:fleet").order_by("revision")[1]
    event.delete()


def _trigger_missing() -> None:
    _sql("DROP TRIGGER placement_pod_lifecycle" + (" ON placement_pod" if connection.vendor == "postgresql" else ""))


BREAKS: list[tuple[str, Callable[[], None]]] = [
    ("I1", _cpu_twice),
    ("I3", _card_twice),
    ("I3", _share_too_much),
    ("I3", _too_much_memory_on_a_card),
    ("I5", _card_without_a_report),
    ("I2", _node_overbooked),
    ("I2", _zone_overbooked),
    ("I2", _memory_of_a_zone_overbooked),
    ("I4", _exclusive_cpu_of_the_system),
    ("I2", _node_column_drifted),
    ("I2", _total_drifted),
    ("I6", _two_zones_for_a_single_zone_pod),
    ("I6", _fewer_cpus_than_counted),
    ("I13", _part_of_a_gang),
    ("I13", _permanently_incomplete_gang),
    ("I14", _more_than_the_quota),
    ("I7", _wrong_instruction_set),
    ("I8", _placed_without_a_reservation),
    ("I8", _waiting_with_a_reservation),
    ("I8", _on_another_node),
    ("I21", _of_a_future_leader),
    ("I15", _pod_lost),
    ("I15", _workload_state_drifted),
    ("I16", _answer_for_another),
    ("I17", _event_lost),
    ("I25", _trigger_missing),
]


@pytest.mark.parametrize(("name", "broken"), BREAKS, ids=[act.__name__.strip("_") for _, act in BREAKS])
def test_broken_invariant_is_named(cluster: Cluster, name: str, broken: Callable[[], None]) -> None:
    from django.apps import apps

    from hetsched.storage.triggers import install_of

    if broken is _waiting_with_a_reservation:
        _trigger_missing()
    broken()
    if broken is _waiting_with_a_reservation:
        install_of(apps.get_app_config("placement"))
    assert name in {violation.id for violation in check_invariants()}


def test_reclaimed_zone_capacity_violates_no_invariant(cluster: Cluster) -> None:
    # 2 CPUs are allocated and 1 remains: the pod is at risk, but nothing was allocated twice.
    node = Node.objects.get(name="n1")
    lent = tuple(msgspec.structs.replace(zone, offline_capacity_millis=1000) for zone in node.report.numa.zones)
    node.report = msgspec.structs.replace(node.report, numa=msgspec.structs.replace(node.report.numa, zones=lent))
    node.save()
    assert check_invariants() == []
    (zone,) = zones_at_risk(node, Reservation.objects.select_related("pod"))
    assert (zone.zone, zone.short_millis, zone.pods) == ("node-0", 1000, ("default/holds",))


def test_shared_cpus_of_a_zone_have_no_holder(cluster: Cluster) -> None:
    assert [row.cpu for row in ReservedCpu.objects.order_by("cpu")] == [0, 1]
    (result,) = placing(cluster, "n1")
    allocation = Allocation(zones=(ZoneGrant("node-0", "2", 1000),), cpu_policy="numa")
    recorded(cluster, [msgspec.structs.replace(result, allocation=allocation)])
    assert ReservedCpu.objects.count() == 2
    assert check_invariants() == []


def test_remaining_members_of_an_evicted_gang_break_nothing(cluster: Cluster) -> None:
    _part_of_a_gang()
    assert {violation.id for violation in check_invariants()} == {"I13"}
    pod = Pod.objects.get(name="g-1")
    reservation = Reservation.objects.get(pod__name="g-0")
    reservation.pk, reservation.pod, reservation.active, reservation.released_revision = (
        None,
        pod,
        False,
        reservation.revision,
    )
    reservation.save()
    assert check_invariants() == []


def test_ended_workload_counts_against_no_quota(cluster: Cluster) -> None:
    _more_than_the_quota()
    Workload.objects.filter(pods__name="q-0").update(state="cancelled")
    assert "I14" not in {violation.id for violation in check_invariants()}
