"""One run at a time reports the decisions about a live cluster's pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes, begin_binding, confirm, reject
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.scheduling.leases import reporting
from tests.builders import a_node, a_pod
from tests.prepared_server import PreparedServer, prepared_server, response
from tests.situations import a_cluster, placed
from workers import report

pytestmark = pytest.mark.django_db
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PreparedServer]:
    with prepared_server() as listening:
        api = listening.client()
        monkeypatch.setattr(report, "api_of", lambda cluster: api)
        yield listening


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tasks: list[str] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: tasks.append(task))
    return tasks


@pytest.fixture
def binding() -> list[int]:
    """Return the pods `a` and `b` of a live cluster, whose bindings are in flight."""
    made = a_cluster(a_node("n1"))
    pods = [pod.pk for pod in placed(made, "n1", a_pod("a"), a_pod("b"))]
    begin_binding(made.pk, pods)
    Cluster.objects.update(kind=ClusterKind.KUBERNETES)
    Connection.objects.create(cluster=made)
    Pod.objects.update(origin=Pod.WATCHED)
    return pods


@pytest.fixture
def cluster(binding: list[int]) -> Cluster:
    """Return a live cluster with two bound pods whose decisions are not reported."""
    made = Cluster.objects.get()
    confirm(made.pk, binding)
    return made


def sent(server: PreparedServer) -> list[str]:
    """Return the names of the pods whose events were sent to the API server."""
    return sorted(json.loads(call.body)["regarding"]["name"] for call in server.received)


def test_decisions_are_reported_once(cluster: Cluster, server: PreparedServer, woken: list[str]) -> None:
    assert (report.run(cluster.pk), report.run(cluster.pk)) == (2, 0)
    assert (sent(server), woken) == (["a", "b"], [])


def test_concurrent_run_is_repeated_later(
    cluster: Cluster, server: PreparedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    monkeypatch.setattr(dispatch, "send", lambda *_, in_seconds: delays.append(in_seconds))
    lease = reporting.take(cluster.pk, "first run")
    assert lease is not None
    assert [report.run(cluster.pk) for _ in range(3)] == [0, 0, 0]
    assert server.received == []
    assert delays == [report.RETRY_SECONDS]  # one for all of them
    reporting.release(lease)
    assert report.run(cluster.pk) == 2


def test_pods_that_become_due_during_a_run_start_no_other(
    binding: list[int], server: PreparedServer, woken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster,) = Cluster.objects.all()
    first, second = binding
    confirm(cluster.pk, [first])
    recorded = report._record

    def record(*arguments: Any) -> int:
        confirm(cluster.pk, [second])
        return recorded(*arguments)

    monkeypatch.setattr(report, "_record", record)
    woken.clear()
    assert report.run(cluster.pk) == 1
    assert woken == [dispatch.REPORT]  # by `confirm`
    monkeypatch.setattr(report, "_record", recorded)
    assert (report.run(cluster.pk), sent(server)) == (1, ["a", "b"])


def test_bound_and_rejected_pods_wake_the_reports(binding: list[int], woken: list[str]) -> None:
    (cluster,) = Cluster.objects.all()
    confirm(cluster.pk, binding[:1])
    assert woken.count(dispatch.REPORT) == 1
    reject(cluster.pk, binding[1:], reason="no permission")
    assert woken.count(dispatch.REPORT) == 2


def test_pod_that_the_watch_shows_bound_wakes_the_reports(binding: list[int], woken: list[str]) -> None:
    pod = Pod.objects.get(name="a")
    seen = ObservedPod("default", "a", pod.uid, node_name="n1", phase="Running", spec=pod.spec)
    apply_changes(Cluster.objects.get().pk, Changes(pods=[seen]), epoch=Connection.objects.get().follower_epoch)
    assert Pod.objects.get(name="a").state == State.RUNNING.value
    assert dispatch.REPORT in woken


def test_run_without_its_lease_reports_no_pods(
    cluster: Cluster, server: PreparedServer, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The status of a policy can take longer than the lease."""
    settings.HETSCHED_LEASE_SECONDS = 0
    monkeypatch.setattr(report.reporting, "renew", lambda _: False)
    assert (report.run(cluster.pk), server.received) == (0, [])


def test_run_enqueues_the_next_one_if_more_is_due(
    cluster: Cluster, server: PreparedServer, woken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PODS_PER_STEP", 1)
    monkeypatch.setattr(report, "PODS_PER_RUN", 1)
    assert (report.run(cluster.pk), woken) == (1, [dispatch.REPORT])
    assert (report.run(cluster.pk), woken) == (1, [dispatch.REPORT])


def test_next_run_uses_the_connections_of_the_previous(
    cluster: Cluster, server: PreparedServer, woken: list[str]
) -> None:
    report.run(cluster.pk)
    opened = server.connections
    Pod.objects.update(reported_decision=None)
    assert report.run(cluster.pk) == 2
    assert server.connections == opened


def test_reports_are_recorded_with_their_decisions(cluster: Cluster, server: PreparedServer, woken: list[str]) -> None:
    server.responses = {EVENTS: [response(503, {})]}
    assert report.run(cluster.pk) == 1
    failed, reported = Pod.objects.order_by("report_failed_at")
    if failed.report_failed_at is None:  # PostgreSQL sorts NULL last, SQLite first
        failed, reported = reported, failed
    assert (failed.reported_decision, failed.report_failed_at is None) == (None, False)
    assert (reported.reported_decision, reported.report_failed_at) == (reported.decision_id, None)
    assert woken == [dispatch.REPORT]
    assert report.run(cluster.pk) == 1
    failed.refresh_from_db()
    assert (failed.reported_decision, failed.report_failed_at) == (failed.decision_id, None)


def test_unreachable_server_fails_the_reports_of_a_run(
    cluster: Cluster, server: PreparedServer, woken: list[str]
) -> None:
    server.refuse_connections()
    assert (report.run(cluster.pk), woken) == (0, [])
    assert not reporting.is_held(cluster.pk)
    assert Pod.objects.filter(report.unreported(cluster.pk)).exclude(report_failed_at=None).count() == 2


def test_failed_report_releases_the_lease(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cluster: Cluster) -> None:
        raise OSError("no kubeconfig")

    monkeypatch.setattr(report, "api_of", fail)
    with pytest.raises(OSError, match="no kubeconfig"):
        report.run(cluster.pk)
    assert not reporting.is_held(cluster.pk)
