"""Statements that run at intervals cost the same with and without finished work, which is kept for days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.models import OutboxEvent
from hetsched.placement.actions import begin_binding, confirm, release
from hetsched.placement.actions.terminating_pods import release_orphaned_pods
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.models.workloads import new_workload_id
from hetsched.placement.queries.pod_counts import cluster_counts
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.scheduling import binding_cycle
from hetsched.storage import hot_statements
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed
from tests.sqlite import needs_sqlite, statement_costs
from web.api.monitoring import health
from web.api.monitoring.fleet import Fleet
from workers import report, sweep

pytestmark = [pytest.mark.django_db, needs_sqlite]
FINISHED = 300
_LATEST = 1_000_000  # a revision after all others
TASKS: dict[str, Callable[[Cluster], object]] = {
    "sweep": lambda _: sweep.run(),
    "report": lambda cluster: report.run(cluster.pk),
    "placed": lambda cluster: binding_cycle._pods(cluster.pk, State.PLACED),
    "unbound": binding_cycle.has_unbound_pods,
    "orphaned": lambda cluster: release_orphaned_pods(cluster.pk),
    "counts": cluster_counts,
    "queue": lambda cluster: first_active_pods(cluster.pk, None, 200),
    "columns": lambda cluster: hot_statements.CLUSTER(cluster=cluster.pk),
    "changed": lambda cluster: hot_statements.CHANGED_RESERVATIONS(cluster=cluster.pk, since=_LATEST, until=_LATEST),
    "requeue": lambda cluster: hot_statements.QUEUE_PODS(cluster=cluster.pk, states=["not-now"], bits=1),
    "metrics": lambda _: list(Fleet().collect()),
    "readiness": lambda _: health._scheduler(),
}


@pytest.fixture
def cluster() -> Cluster:
    """Return a live cluster with a running pod, whose decision is reported, and a pod that has ended."""
    made = a_cluster(a_node("n1"))
    pods = [pod.pk for name in ("runs", "ended") for pod in placed(made, "n1", a_pod(name))]
    begin_binding(made.pk, pods)
    confirm(made.pk, pods)
    release(made.pk, pods[1:], to=State.SUCCEEDED, reason="done")
    Pod.objects.filter(pk=pods[0]).update(reported_decision=F("decision_id"))
    Cluster.objects.update(kind=ClusterKind.KUBERNETES)
    Connection.objects.create(cluster=made)
    return Cluster.objects.get()


def _copied(row: Any, **changes: Any) -> Any:
    """Insert a copy of a row."""
    columns = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    (copy,) = type(row)._default_manager.bulk_create([type(row)(**{**columns, "id": None, **changes})])
    return copy


def multiply_the_ended_pod() -> None:
    """Copy the ended pod and its rows `FINISHED` times; every second copy belongs to no workload."""
    pod = Pod.objects.select_related("workload", "decision").get(state=State.SUCCEEDED.value)
    for number in range(FINISHED):
        workload = _copied(pod.workload, id=new_workload_id()) if number % 2 else None
        names = {"name": f"p-{number}", "uid": f"u-{number}"}
        copy = _copied(pod, **names, workload_id=workload and workload.pk, decision_id=None)
        decision = _copied(pod.decision, pod_id=copy.pk, workload_id=copy.workload_id)
        _copied(pod.reservations.get(), pod_id=copy.pk)
        Pod.objects.filter(pk=copy.pk).update(decision=decision)


@pytest.mark.parametrize("task", TASKS)
def test_cost_is_independent_of_finished_work(cluster: Cluster, task: str) -> None:
    def run() -> Counter[str]:
        # On a slow machine the sweep would send again the events that the previous steps have published.
        OutboxEvent.objects.update(published_at=timezone.now())
        return statement_costs(lambda: TASKS[task](cluster))

    run()  # compiles the prepared statements
    before = run()
    multiply_the_ended_pod()
    after = run()
    assert {sql: (before[sql], cost) for sql, cost in after.items() if cost > 100 + 1.5 * before[sql]} == {}
