"""A prepared query returns the rows of the ORM query, with one SQL text for all values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, IntegerField
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_loads import advance
from hetsched.placement.lifecycle import LISTED, LIVE, State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.queries.pod_counts import cluster_counts
from hetsched.storage import hot_statements
from hetsched.storage.prepared_queries import ListParameter, Parameter, PreparedQuery, PreparedUpdate
from tests.sqlite import needs_sqlite
from workers import report

pytestmark = pytest.mark.django_db


def _pods(cluster: Cluster, count: int) -> list[Pod]:
    from hetsched.contracts.objects.workload import PodSpec, Shape

    now = timezone.now()
    return [
        Pod.objects.create(
            cluster=cluster,
            namespace="web",
            name=f"it's-{number}",
            spec=PodSpec(namespace="web", name=f"it's-{number}", shape=Shape()),
            created_at=now + timedelta(seconds=number),
        )
        for number in range(count)
    ]


def test_rows_tuples_and_columns_equal_the_orm_query() -> None:
    cluster = Cluster.objects.create(name="c")
    pods = _pods(cluster, 3)
    rows = PreparedQuery(
        lambda: Pod.objects.filter(name__in=ListParameter("names", str)).select_related("cluster").order_by("id")
    )
    tuples = PreparedQuery(
        lambda: Pod.objects.filter(pk__in=ListParameter("ids")).order_by("id").values_list("name", "spec")
    )
    later = Pod.objects.filter(created_at__gt=Parameter("at"), state="pending").order_by("id")
    names = PreparedQuery(lambda: later.values_list("name", flat=True))

    (found,) = rows(names=["it's-1", "it's-7"])
    assert (found.pk, found.spec, found.created_at) == (pods[1].pk, pods[1].spec, pods[1].created_at)
    assert not found._state.adding
    assert found.get_deferred_fields() == set()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert found.cluster.kind == ClusterKind.OFFLINE
    assert len(asked) == 0
    assert tuples(ids=[pods[0].pk, pods[2].pk]) == [(pod.name, pod.spec) for pod in (pods[0], pods[2])]
    assert names(at=pods[0].created_at) == ["it's-1", "it's-2"]
    assert names.first(at=pods[2].created_at) is None
    assert rows(names=[]) == []


def test_statement_text_is_independent_of_the_values() -> None:
    _pods(Cluster.objects.create(name="c"), 2)
    query = PreparedQuery(lambda: Pod.objects.filter(name__in=ListParameter("names", str)).values_list("id", flat=True))
    with CaptureQueriesContext(connection) as asked:
        query(names=["it's-0"])
        query(names=["it's-0", "it's-1", "a%sb"])
    assert len(asked) == 2
    if connection.vendor == "sqlite":  # other databases have the values in the text
        assert asked[0]["sql"].partition("json_each")[0] == asked[1]["sql"].partition("json_each")[0]


def test_update_sets_constants_values_and_row_expressions() -> None:
    pod, other = _pods(Cluster.objects.create(name="c"), 2)
    change = PreparedUpdate(
        lambda: Pod.objects.filter(pk__in=ListParameter("ids"), state=State.PENDING.value),
        message=Parameter("text"), node=Parameter("node"), attempts=F("attempts") + 2, queued=False,
    )  # fmt: skip
    assert change(ids=[pod.pk], text="50 % of 'it'", node=None) == 1
    pod.refresh_from_db()
    other.refresh_from_db()
    assert (pod.message, pod.node_id, pod.attempts, pod.queued) == ("50 % of 'it'", None, 2, False)
    assert (other.message, other.attempts, other.queued) == ("", 0, True)
    common = F("attempts").bitand(Parameter("bits", IntegerField()))
    bits = PreparedQuery(lambda: Pod.objects.alias(common=common).filter(common=2).values_list("id"))
    assert bits(bits=6) == [(pod.pk,)]


def test_update_returns_the_changed_rows() -> None:
    pod, other = _pods(Cluster.objects.create(name="c"), 2)
    change = PreparedUpdate(
        lambda: Pod.objects.filter(pk__in=ListParameter("ids"), attempts=0).defer("spec"), attempts=F("attempts") + 2
    )
    (found,) = change.rows(ids=[pod.pk])
    assert (found.pk, found.attempts, found.created_at) == (pod.pk, 2, pod.created_at)
    assert found.get_deferred_fields() == {"spec"}
    assert change.rows(ids=[pod.pk]) == []
    assert list(Pod.objects.order_by("id").values_list("attempts", flat=True)) == [2, 0]
    assert change(ids=[pod.pk, other.pk]) == 1


def test_rows_have_their_annotations_and_a_limit() -> None:
    _pods(Cluster.objects.create(name="c"), 3)
    query = PreparedQuery(lambda: Pod.objects.annotate(twice=F("priority") + F("id") * 2).order_by("-id"))
    assert [pod.twice == 2 * pod.pk for pod in query(limit=2)] == [True, True]
    assert len(query()) == 3


def test_json_array_has_the_distinct_values() -> None:
    cluster = Cluster.objects.create(name="c")
    workloads = [Workload.objects.create(cluster=cluster, created_at=timezone.now()) for _ in range(2)]
    pods = _pods(cluster, 3)
    Pod.objects.filter(pk__in=[pod.pk for pod in pods]).update(workload=workloads[0])
    Pod.objects.filter(pk=pods[0].pk).update(state=State.CANCELLED.value)
    rows = {row.pk: row for row in hot_statements.WORKLOADS(pods=[pods[1].pk], workloads=[workloads[1].pk])}
    assert sorted(rows[workloads[0].pk].pod_states) == ["cancelled", "pending"]
    assert (rows[workloads[1].pk].pod_states, rows[workloads[0].pk].object_states) == (None, None)
    assert not rows[workloads[0].pk].has_webhooks


def _plans(run: Callable[[], object]) -> str:
    """Return SQLite's plans of the statements that this call runs."""
    with CaptureQueriesContext(connection) as asked:
        run()
    plans = []
    with connection.cursor() as cursor:
        for item in asked:
            cursor.execute("EXPLAIN QUERY PLAN " + item["sql"].replace("%", "%%"))
            plans += [str(row[-1]) for row in cursor.fetchall()]
    return " ".join(plans)


@needs_sqlite
def test_partial_indexes_are_used() -> None:
    # Without the indexes each of these queries reads all rows that a cluster ever had.
    cluster, now = Cluster.objects.create(name="c"), timezone.now()
    named: dict[str, Any] = {"namespace": "web", "names": ["a"], "given_up": State.MISCONFIGURED.value}
    known = _plans(lambda: hot_statements.KNOWN_PODS(cluster=1, **named))
    assert "placement_pod_live_name" in known
    assert "placement_pod_cluster_state" in known
    wanted = {
        "placement_pod_queue": lambda: hot_statements.DUE_PODS(cluster=1, now=now, limit=25),
        "placement_pod_cluster_state": lambda: hot_statements.QUEUE_PODS(cluster=1, states=["not-now"], bits=1),
        "placement_nomination_until (cluster_id=? AND ended_revision=?)": lambda: hot_statements.CLUSTER(cluster=1),
        "placement_eviction_open": lambda: hot_statements.CLUSTER(cluster=1),
        "placement_rejection_open": lambda: hot_statements.CLUSTER(cluster=1),
    }
    assert {index: plan for index, run in wanted.items() if index not in (plan := _plans(run))} == {}
    assert "placement_pod_cluster_state" in _plans(lambda: cluster_counts(cluster))
    assert "placement_pod_unreported" in _plans(lambda: report._due_results(cluster.pk, 100))
    assert set(LISTED) == {state.value for state in (*LIVE, State.MISCONFIGURED)}


def test_lock_of_a_cluster_reads_no_definitions() -> None:
    """Regression: with 5,000 volumes, each placement decoded 2.8 MB of definitions, which took 23 ms."""
    cluster = Cluster.objects.create(name="c")
    with transaction.atomic():
        assert advance(cluster.pk).get_deferred_fields() == {"definitions"}
