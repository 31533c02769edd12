"""An API server that always fails for one pod does not delay the status updates of other pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Pod
from hetsched.scheduling import worker_host
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.prepared_server import PreparedServer, prepared_server, response
from workers import report

pytestmark = pytest.mark.django_db


class ApiServer:
    """Accept status updates, except those of broken pods."""

    def __init__(self, server: PreparedServer) -> None:
        self.server = server
        self.broken = {"p0", "p1"}

    def round(self, cluster: Cluster) -> set[str]:
        self.server.received.clear()
        self.server.responses = {status_path(name): response(500, {}) for name in self.broken}
        report.run(cluster.pk)
        return {path.split("/")[-2] for path in self.server.paths if path.endswith("/status")}


def status_path(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}/status"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with prepared_server() as listening:
        api = listening.client()
        monkeypatch.setattr(report, "api_of", lambda _: api)
        monkeypatch.setattr(report, "PODS_PER_STEP", 2)
        monkeypatch.setattr(report, "PODS_PER_RUN", 2)
        yield ApiServer(listening)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with five pods, `p0` to `p4`, that are too large for its node."""
    monkeypatch.setattr(worker_host, "is_synced", lambda _: True)
    monkeypatch.setattr(dispatch, "wake", lambda *_: None)
    monkeypatch.setattr(dispatch, "send", lambda *_, **__: None)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    specs = [a_pod(f"p{number}").cpu(500).having(uid=f"u{number}").build() for number in range(5)]
    pods = [ObservedPod("default", spec.name, spec.uid, scheduler_name="hetsched", spec=spec) for spec in specs]
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()], pods=pods), epoch=1)
    worker_host.run(made.pk)
    assert Pod.objects.filter(report.unreported(made.pk)).count() == 5
    return made


def test_failed_status_update_is_retried_after_other_pods(cluster: Cluster, server: ApiServer) -> None:
    assert server.round(cluster) == {"p0", "p1"}  # a whole step fails
    assert server.round(cluster) == {"p2", "p3"}
    assert server.round(cluster) == {"p4", "p0"}
    assert server.round(cluster) == {"p1", "p0"}  # the pod with the oldest failure comes first
    server.broken = set()
    assert server.round(cluster) == {"p0", "p1"}
    assert server.round(cluster) == set()
    assert not Pod.objects.exclude(report_failed_at=None).exists()


def test_next_run_starts_while_pods_have_no_failed_report(
    cluster: Cluster, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(dispatch, "wake", lambda cluster_id, task: woken.append(cluster_id))
    server.broken = {f"p{number}" for number in range(5)}
    runs = [(server.round(cluster), len(woken)) for _ in range(4)]
    # Five pods in steps of two: the third run reaches the last one. Then all reports have failed, and `sweep` retries.
    assert [count for _, count in runs] == [1, 2, 2, 2]
    assert {"p4"} < runs[2][0]
