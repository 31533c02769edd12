"""Status updates are sent one by one with pauses while pods are pending, and many at once afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from hetsched.adapters.kubernetes.pods import result_publisher
from hetsched.adapters.kubernetes.pods.result_publisher import ResultPublisher
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Decision, Pod
from hetsched.scheduling import worker_host
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.prepared_server import PreparedServer, prepared_server
from workers import report

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PreparedServer]:
    with prepared_server() as listening:
        api = listening.client()
        monkeypatch.setattr(report, "api_of", lambda _: api)
        yield listening


@pytest.fixture
def cluster(server: PreparedServer, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with three rejected pods, and a batch size of two."""
    monkeypatch.setattr(worker_host, "is_synced", lambda _: True)
    monkeypatch.setattr(dispatch, "send", lambda *_, **__: None)
    monkeypatch.setattr(report, "PODS_PER_STEP", 2)
    monkeypatch.setattr(report, "PODS_PER_RUN", 2)
    monkeypatch.setattr(report, "PODS_PER_SLOW_RUN", 2)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()], pods=[_waiting(f"p{n}") for n in range(3)]), epoch=1)
    worker_host.run(made.pk)
    return made


def _waiting(name: str) -> ObservedPod:
    spec = a_pod(name).cpu(500).having(uid=f"u-{name}").build()
    return ObservedPod("default", spec.name, spec.uid, scheduler_name="hetsched", spec=spec)


def _asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    asked: list[float] = []
    monkeypatch.setattr(dispatch, "send", lambda *_, in_seconds=0.0: asked.append(in_seconds))
    monkeypatch.setattr(dispatch, "wake", lambda *_: asked.append(0.0))
    return asked


def test_update_batches_pause_while_a_pod_is_undecided(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_changes(cluster.pk, Changes(pods=[_waiting("late")]), epoch=1)
    asked = _asked(monkeypatch)
    assert report.run(cluster.pk) == 2
    assert asked == [report.REST_SECONDS]


def test_updates_continue_at_once_without_pending_pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _asked(monkeypatch)
    assert report.run(cluster.pk) == 2
    assert asked == [0.0]


def _at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many pods each run reports in parallel."""
    asked: list[int] = []

    def publisher(*arguments: Any, at_once: int, **named: Any) -> ResultPublisher:
        asked.append(at_once)
        return ResultPublisher(*arguments, at_once=at_once, **named)

    monkeypatch.setattr(report, "ResultPublisher", publisher)
    return asked


def _reported(server: PreparedServer) -> list[str]:
    """Return the names of the pods whose conditions were written."""
    return [path.split("/")[-2] for path in server.paths if path.endswith("/status")]


def test_updates_are_sent_one_by_one_while_a_pod_is_pending(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _at_once(monkeypatch)
    apply_changes(cluster.pk, Changes(pods=[_waiting("late")]), epoch=1)
    assert report.run(cluster.pk) == 2
    assert asked == [1]


def test_updates_are_sent_in_parallel_without_pending_pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _at_once(monkeypatch)
    assert report.run(cluster.pk) == 2
    assert asked == [report.AT_ONCE]


def test_overdue_updates_are_sent_in_parallel_despite_a_pending_pod(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _at_once(monkeypatch)
    apply_changes(cluster.pk, Changes(pods=[_waiting("late")]), epoch=1)
    monkeypatch.setattr(report, "LATE", timedelta(hours=-1))
    assert report.run(cluster.pk) == 2
    assert asked == [report.AT_ONCE]


def test_run_reports_several_steps_without_pending_pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PODS_PER_RUN", 3)
    asked = _asked(monkeypatch)
    assert report.run(cluster.pk) == 3
    assert asked == []


@pytest.fixture
def steps_of_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report one pod after the other, in steps of one pod."""
    monkeypatch.setattr(report, "AT_ONCE", 1)
    monkeypatch.setattr(report, "PODS_PER_STEP", 1)
    monkeypatch.setattr(report, "PODS_PER_RUN", 3)


@pytest.mark.usefixtures("steps_of_one")
def test_run_ends_after_a_step_if_a_pod_arrives(
    cluster: Cluster, server: PreparedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])  # before and after the first step
    monkeypatch.setattr(report, "_has_undecided_pods", lambda _: next(answers, True))
    asked = _asked(monkeypatch)
    assert report.run(cluster.pk) == 1
    assert _reported(server) == ["p0"]
    assert Pod.objects.filter(report.unreported(cluster.pk), report_failed_at=None).count() == 2
    assert asked == [report.REST_SECONDS]


@pytest.mark.usefixtures("steps_of_one")
def test_run_ends_after_a_step_without_its_lease(
    cluster: Cluster, server: PreparedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report.reporting, "renew", lambda _: False)
    assert report.run(cluster.pk) == 1
    assert _reported(server) == ["p0"]


def test_nominated_pods_are_reported_first(cluster: Cluster, server: PreparedServer) -> None:
    apply_changes(cluster.pk, Changes(pods=[_waiting("late")]), epoch=1)  # one report at a time
    decided = Decision.objects.filter(pod_name="p1").values().get() | {"id": None, "nominated_node": "n1"}
    nomination = Decision.objects.create(**decided)
    Pod.objects.filter(name="p1").update(decision=nomination)
    report.run(cluster.pk)
    assert _reported(server) == ["p1", "p0"]
    assert server.connections == 1


def test_one_pod_is_in_flight_while_pods_wait(cluster: Cluster, server: PreparedServer) -> None:
    apply_changes(cluster.pk, Changes(pods=[_waiting("late")]), epoch=1)
    report.run(cluster.pk)
    assert [call.method for call in server.received] == ["PATCH", "POST", "PATCH", "POST"]
    assert server.connections == 1


def test_run_renews_its_lease_while_the_server_is_silent(
    cluster: Cluster, server: PreparedServer, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.HETSCHED_LEASE_SECONDS = 0.3
    monkeypatch.setattr(result_publisher, "_WAIT_SECONDS", 0.05)
    renewals: list[object] = []

    def renew(lease: object) -> bool:
        renewals.append(lease)
        if len(renewals) == 3:
            server.released.set()
        return True

    monkeypatch.setattr(report.reporting, "renew", renew)
    server.released.clear()
    assert report.run(cluster.pk) == 2
    assert len(renewals) >= 3
