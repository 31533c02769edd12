"""A prepared query returns the rows of the ORM query, with one SQL text for all values."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F, IntegerField
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.lifecycle import LISTED, LIVE, State
from hetsched.placement.models import Pod
from hetsched.storage.prepared_queries import ListParameter, Parameter, PreparedQuery, PreparedUpdate

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


def test_rows_tuples_and_single_columns_are_those_of_the_orm() -> None:
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
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert found.cluster.kind == ClusterKind.OFFLINE
    assert len(asked) == 0
    assert tuples(ids=[pods[0].pk, pods[2].pk]) == [(pod.name, pod.spec) for pod in (pods[0], pods[2])]
    assert names(at=pods[0].created_at) == ["it's-1", "it's-2"]
    assert names.first(at=pods[2].created_at) is None
    assert rows(names=[]) == []


def test_the_text_is_the_same_for_any_values() -> None:
    _pods(Cluster.objects.create(name="c"), 2)
    query = PreparedQuery(lambda: Pod.objects.filter(name__in=ListParameter("names", str)).values_list("id", flat=True))
    with CaptureQueriesContext(connection) as asked:
        query(names=["it's-0"])
        query(names=["it's-0", "it's-1", "a%sb"])
    assert len(asked) == 2
    if connection.vendor == "sqlite":  # other databases have the values in the text
        assert asked[0]["sql"].partition("json_each")[0] == asked[1]["sql"].partition("json_each")[0]


def test_update_sets_constants_values_and_row_expressions() -> None:
    one, other = _pods(Cluster.objects.create(name="c"), 2)
    change = PreparedUpdate(
        lambda: Pod.objects.filter(pk__in=ListParameter("ids"), state=State.PENDING.value),
        message=Parameter("text"), node=Parameter("node"), attempts=F("attempts") + 2, queued=False,
    )  # fmt: skip
    assert change(ids=[one.pk], text="50 % of 'it'", node=None) == 1
    one.refresh_from_db()
    other.refresh_from_db()
    assert (one.message, one.node_id, one.attempts, one.queued) == ("50 % of 'it'", None, 2, False)
    assert (other.message, other.attempts, other.queued) == ("", 0, True)
    common = F("attempts").bitand(Parameter("bits", IntegerField()))
    bits = PreparedQuery(lambda: Pod.objects.alias(common=common).filter(common=2).values_list("id"))
    assert bits(bits=6) == [(one.pk,)]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="how SQLite takes its indexes")
def test_partial_indexes_are_used() -> None:
    # Without the indexes each of these queries reads all pods that a cluster ever had.
    from hetsched.placement.actions.watch import pod_transitions
    from hetsched.placement.queries import pod_counts
    from hetsched.placement.scheduling_queue import active_queue, unschedulable_pods

    wanted = {
        "placement_pod_live_name": (pod_transitions._LIVE, {"cluster": 1, "namespace": "web", "names": ["a"]}),
        "placement_pod_live_state": (pod_counts._COUNTED, {"cluster": 1}),
        "placement_pod_queue": (active_queue._first(500), {"cluster": 1, "now": timezone.now()}),
    }
    found = {}
    for index, (query, given) in wanted.items():
        with CaptureQueriesContext(connection) as asked:
            query(**given)
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN QUERY PLAN " + asked[0]["sql"].replace("%", "%%"))
            found[index] = " ".join(str(row) for row in cursor.fetchall())
    assert [index for index, plan in found.items() if index not in plan] == []
    with CaptureQueriesContext(connection) as asked:
        unschedulable_pods._QUEUE(cluster=1, bits=1)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + asked[0]["sql"].replace("%", "%%"))
        assert "placement_pod_live_state" in str(cursor.fetchall())
    assert set(LISTED) == {state.value for state in (*LIVE, State.MISCONFIGURED)}
