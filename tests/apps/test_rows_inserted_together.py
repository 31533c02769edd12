"""Rows of one or several models that are inserted and updated together."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from hetsched.contracts.message import Message
from hetsched.journal.models import AuditEntry, OutboxEvent, Topic
from hetsched.placement.models import Decision, Pod, Workload
from hetsched.placement.models.webhooks import Delivery
from hetsched.storage.bulk_rows import insert, insert_together, new, update, write_values
from tests.builders import a_pod
from tests.situations import a_cluster

pytestmark = pytest.mark.django_db


def _rows(events: int) -> tuple[list[Topic], list[OutboxEvent], list[AuditEntry]]:
    topics = [new(Topic, name=f"t{number}", revision=number) for number in range(2)]
    return (
        topics,
        [new(OutboxEvent, topic="t0", revision=number, data={"n": number}) for number in range(events)],
        [new(AuditEntry, actor="it's 100 %", action="a", object_kind="k", object_name=str(n)) for n in range(2)],
    )


@pytest.mark.parametrize("events", [3, 300])
def test_stored_rows_have_the_ids_of_the_objects(events: int) -> None:
    topics, outbox, entries = _rows(events)
    insert_together(topics, [], outbox, entries)
    assert dict(Topic.objects.filter(name__in=["t0", "t1"]).values_list("name", "revision")) == {"t0": 0, "t1": 1}
    stored = {event.pk: (event.revision, event.data) for event in OutboxEvent.objects.filter(topic="t0")}
    assert stored == {event.pk: (event.revision, {"n": event.revision}) for event in outbox}
    assert [event.pk for event in outbox] == sorted(stored)
    named = dict(AuditEntry.objects.filter(actor="it's 100 %").values_list("pk", "object_name"))
    assert named == {entry.pk: entry.object_name for entry in entries}
    assert not any(row._state.adding for rows in (topics, outbox, entries) for row in rows)


def test_each_kind_of_value_is_stored_and_updated_in_many_rows() -> None:
    texts = ["\"double\" and 'single'", "back\\slash, 100 % and {}", "line\nbreak\u2028", "größer 🚀", ""]
    moments = [datetime(2026, 11, 29, 12, 30, 15, 123456, tzinfo=UTC), None]
    rows = [
        new(OutboxEvent, topic=text, revision=2**40 + number, data={text: [text, None, 0.1, 2**53 + 1, {"a": text}]},
            published_at=moments[number % 2])
        for number, text in enumerate(texts)
    ]  # fmt: skip
    insert(rows)
    columns = ("topic", "revision", "data", "published_at")
    ours = OutboxEvent.objects.filter(pk__in=[row.pk for row in rows]).order_by("id")
    assert list(ours.values_list("id", *columns)) == [
        tuple(getattr(row, name) for name in ("pk", *columns)) for row in rows
    ]
    for row in rows:
        row.topic, row.data, row.published_at = Message("{n} of them", n=row.revision), [row.topic], None
    update(rows, ("topic", "data", "published_at"))
    written = list(ours.values_list("topic", "data", "published_at"))
    assert written == [(f"{row.revision} of them", [text], None) for row, text in zip(rows, texts, strict=True)]


def test_numbers_of_each_kind_are_stored_in_many_rows() -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    deliveries = [
        new(Delivery, host=f"h{n}", attempts=n, status=None if n else 200, not_before=now, began_at=now, created_at=now)
        for n in range(3)
    ]
    insert(deliveries)
    stored = Delivery.objects.order_by("attempts").values_list("id", "attempts", "status")
    assert list(stored) == [(row.pk, n, None if n else 200) for n, row in enumerate(deliveries)]
    write_values(Delivery, ("attempts",), [(5, deliveries[0].pk), (6, deliveries[1].pk), (7, deliveries[0].pk)])
    assert list(Delivery.objects.order_by("host").values_list("attempts", flat=True)) == [7, 6, 2]


def test_rows_without_generated_ids_are_stored() -> None:
    topics, _, _ = _rows(0)
    insert_together(topics)
    insert_together()
    assert Topic.objects.filter(name__in=["t0", "t1"]).count() == 2


def _related_rows(pods: int) -> tuple[list[Workload], list[Pod], list[Decision]]:
    cluster = a_cluster()
    workloads = [new(Workload, cluster_id=cluster.pk, history=[], created_at=timezone.now())]
    of_pods, decisions = [], []
    for number in range(pods):
        pod = new(Pod, cluster_id=cluster.pk, name=f"p{number}", spec=a_pod("p").build(), created_at=timezone.now())
        pod.workload = workloads[0]
        of_pods.append(pod)
        for verdict in ("not-now", "placed"):
            decision = new(
                Decision, cluster_id=cluster.pk, pod_name=pod.name, verdict=verdict, policy_version=1,
                cluster_revision=1, inventory_revision=1, created_at=timezone.now(),
            )  # fmt: skip
            decision.pod = pod
            decisions.append(decision)
    return workloads, of_pods, decisions


@pytest.mark.parametrize("pods", [1, 3, 30])
def test_rows_refer_to_rows_inserted_with_them(pods: int) -> None:
    workloads, of_pods, decisions = _related_rows(pods)
    insert_together(workloads, of_pods, decisions)
    assert {pod.workload_id for pod in of_pods} == {workloads[0].pk}
    assert [decision.pod_id for decision in decisions] == [pod.pk for pod in of_pods for _ in range(2)]
    stored = Decision.objects.order_by("id").values_list("id", "pod_id", "pod__name", "pod__workload", "verdict")
    assert list(stored) == [
        (decision.pk, decision.pod_id, decision.pod_name, workloads[0].pk, decision.verdict) for decision in decisions
    ]
