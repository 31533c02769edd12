"""One run at a time reports the decisions about a live cluster's pods."""

from __future__ import annotations

import pytest

from hetsched.adapters.kubernetes.pods.pod_events import PodResult
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.placement import dispatch
from hetsched.placement.actions import begin_binding, confirm
from hetsched.placement.models import Pod
from hetsched.scheduling.leases import reporting
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed
from workers import report

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the pods whose results are sent to the API server."""
    names: list[str] = []

    def publish(api: object, result: PodResult, **_: str) -> bool:
        names.append(result.name)
        return True

    monkeypatch.setattr(report, "publish_result", publish)
    monkeypatch.setattr(report, "api_of", lambda cluster: None)
    return names


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tasks: list[str] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: tasks.append(task))
    return tasks


@pytest.fixture
def cluster() -> Cluster:
    """Return a live cluster with two bound pods whose decisions are not reported."""
    made = a_cluster(a_node("n1"))
    pods = [pod.pk for pod in placed(made, "n1", a_pod("a"), a_pod("b"))]
    begin_binding(made.pk, pods)
    confirm(made.pk, pods)
    Cluster.objects.update(kind=ClusterKind.KUBERNETES)
    Connection.objects.create(cluster=made)
    Pod.objects.update(origin=Pod.WATCHED)
    return made


def test_decisions_are_reported_once(cluster: Cluster, sent: list[str], woken: list[str]) -> None:
    assert (report.run(cluster.pk), report.run(cluster.pk)) == (2, 0)
    assert (sorted(sent), woken) == (["a", "b"], [])


def test_concurrent_run_reports_nothing(cluster: Cluster, sent: list[str], woken: list[str]) -> None:
    lease = reporting.take(cluster.pk, "first run")
    assert lease is not None
    assert (report.run(cluster.pk), sent) == (0, [])
    reporting.release(lease)
    assert report.run(cluster.pk) == 2


def test_run_enqueues_the_next_one_if_more_is_due(
    cluster: Cluster, sent: list[str], woken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PODS_PER_STEP", 1)
    monkeypatch.setattr(report, "PODS_PER_RUN", 1)
    assert (report.run(cluster.pk), woken) == (1, [dispatch.REPORT])
    assert (report.run(cluster.pk), woken) == (1, [dispatch.REPORT])


def test_failed_report_releases_the_lease(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cluster: Cluster) -> None:
        raise OSError("no kubeconfig")

    monkeypatch.setattr(report, "api_of", fail)
    with pytest.raises(OSError, match="no kubeconfig"):
        report.run(cluster.pk)
    assert not reporting.is_held(cluster.pk)
