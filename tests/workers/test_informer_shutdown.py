"""An informer process stops with all its threads, and stops deciding immediately when it loses the lead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Decision, Pod
from hetsched.scheduling import binding_cycle, bindings_in_flight, informer_host
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import Lease, following, leading
from hetsched.scheduling.scheduling_loop import SchedulingLoop
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import arrived

pytestmark = pytest.mark.django_db


class Server:
    """An API server with empty lists and failing watches; `odd`: its lists fail with an unexpected error."""

    def __init__(self, *, odd: bool = False) -> None:
        self.odd = odd

    def list_pages(self, resource: Any) -> Iterator[tuple[list[bytes], str]]:
        if self.odd:
            raise RuntimeError("the token's file is empty")
        yield [], "1"

    def stream(self, *args: Any, **options: Any) -> Any:
        raise ApiFailure(500, "InternalError", "not now")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    from hetsched.placement import dispatch

    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made)
    return made


def a_lease(cluster: Cluster) -> Lease:
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    return lease


def test_failing_informer_stops_its_threads(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Informer(a_lease(cluster), Server(), threading.Event(), kinds=[PODS])  # type: ignore[arg-type]

    def fail() -> None:
        raise RuntimeError("database unavailable")

    monkeypatch.setattr(follower, "iterate", fail)
    others = set(threading.enumerate())
    with pytest.raises(RuntimeError):
        follower.run()
    for thread in set(threading.enumerate()) - others:
        if thread.name == "watch pods":
            thread.join(30)
            assert not thread.is_alive()


def test_informer_with_a_failing_kind_ends_and_releases_its_lease(cluster: Cluster) -> None:
    Informer(a_lease(cluster), Server(odd=True), threading.Event(), kinds=[PODS]).run()  # type: ignore[arg-type]
    assert not following.is_held(cluster.pk)


def test_nothing_is_decided_once_the_cluster_is_followed_in_shadow(cluster: Cluster) -> None:
    lease = a_lease(cluster)
    spec = a_pod("p").having(uid="u1").build()
    pods = [ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec)]
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").build()], pods=pods), epoch=lease.epoch)
    leads = leading.take(cluster.pk, "test")
    assert leads is not None
    Connection.objects.update(shadow_of="default-scheduler")
    host = informer_host.InformerHost(cluster, Server())  # type: ignore[arg-type]
    loop = SchedulingLoop(host, cluster.pk, cluster.name, 10)
    assert not loop.iterate(leads).results
    assert not Decision.objects.exists()
    Connection.objects.update(shadow_of="")
    assert len(loop.iterate(leads).results) == 1
    host.close()


def test_slow_bindings_are_left_to_other_processes_at_shutdown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, written = threading.Event(), threading.Event(), []

    def write(_: Any, __: str, request: BindingRequest, **___: Any) -> BindingOutcome:
        written.append(request.name)
        begun.set()
        go_on.wait(60)
        return BindingOutcome(request.pod_id, BindingResult.BOUND)

    monkeypatch.setattr(binding_cycle, "AT_ONCE", 1)
    monkeypatch.setattr(binding_cycle, "write", write)
    monkeypatch.setattr(bindings_in_flight, "DRAIN_SECONDS", 0.05)
    specs = [a_pod(name).having(uid=name).build() for name in ("p", "q")]
    pods = [ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec) for spec in specs]
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").build()], pods=pods), epoch=a_lease(cluster).epoch)
    decides = informer_host.InformerHost(cluster, Server())  # type: ignore[arg-type]
    while Pod.objects.filter(state="pending").exists():
        decides.iterate()
    assert begun.wait(30)
    decides.close()
    assert not leading.is_held(cluster.pk)
    go_on.set()
    decides._threads.shutdown()
    assert len(written) == 1
    assert set(Pod.objects.values_list("state", flat=True)) == {"binding"}


def test_arriving_pods_fill_the_bindings_in_flight(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit 10, smallest batch 3: with 6 bindings in flight, 4 of 5 pods are placed, and with 8 none."""
    monkeypatch.setattr(informer_host, "MAX_BINDINGS", 10)
    monkeypatch.setattr(informer_host, "MIN_ARRIVALS", 3)
    started: list[int] = []
    in_flight = bindings_in_flight.BindingsInFlight
    monkeypatch.setattr(in_flight, "start", lambda self, lease, placed: started.append(len(placed)))
    epoch = a_lease(cluster).epoch
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").build()]), epoch=epoch)
    specs = [a_pod(f"p{number}").having(uid=f"u{number}").build() for number in range(5)]
    pods = [ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec) for spec in specs]
    host = informer_host.InformerHost(cluster, Server())  # type: ignore[arg-type]
    host.bindings.count = 6
    batch = host.place_arrivals(arrived(pods), epoch)
    assert (len(batch.results), len(batch.tried), batch.others_wait, started) == (4, 4, True, [4])
    host.bindings.count = 8
    batch = host.place_arrivals(arrived(pod for pod in pods if pod.key not in batch.tried), epoch)
    assert (len(batch.results), len(batch.tried), batch.others_wait, started) == (0, 0, True, [4])
    host.close()
