"""Bindings that the informer thread sends itself, and their way to a thread after a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from hetsched.adapters.kubernetes import parallel_calls
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods import binding
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.arrivals import ArrivalScheduler
from hetsched.scheduling.bindings_in_flight import BindingsInFlight
from hetsched.scheduling.leases import Lease
from tests.builders import a_node, a_pod
from tests.prepared_server import CLOSE, CONFLICT, OK, PreparedServer, prepared_server, response
from tests.situations import a_live_cluster, acquire_lease, arrived

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()]), epoch=1)
    return made


@pytest.fixture
def lease(cluster: Cluster) -> Lease:
    return acquire_lease(cluster)


@pytest.fixture
def server() -> Iterator[PreparedServer]:
    with prepared_server() as listening:
        yield listening


@pytest.fixture
def api(server: PreparedServer, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return a client of a proven API server with one open connection."""
    monkeypatch.setattr(parallel_calls, "CONNECTIONS", 1)
    made = server.client()
    binding._proven.add(made)
    made.send("POST", "/first", b"{}")
    server.received.clear()
    return made


@pytest.fixture
def is_leader() -> list[bool]:
    return [True]


@pytest.fixture
def bindings(cluster: Cluster, api: Api, is_leader: list[bool]) -> Iterator[BindingsInFlight]:
    with ThreadPoolExecutor(2) as threads:
        made = BindingsInFlight(cluster, api, threads, lambda lease: is_leader[0])
        yield made
        made._calls.close()


def start(bindings: BindingsInFlight, lease: Lease, *names: str) -> None:
    """Place pods with these names and start their bindings."""
    specs = [a_pod(name).cpu(1).having(uid=f"uid-{name}").build() for name in names]
    pods = [ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec) for spec in specs]
    scheduler = ArrivalScheduler(cache_of(lease.cluster_id), "live")
    bindings.start(lease, scheduler.place(arrived(pods), lease, 1, most=200).results)


def finish(bindings: BindingsInFlight) -> None:
    until = time.monotonic() + 20
    while bindings.count:
        assert time.monotonic() < until
        bindings.advance(0.01)
        bindings.take_results()
    bindings.confirm_due(time.monotonic(), is_idle=True)


def path_of(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}/binding"


def test_informer_thread_binds_a_pod_with_one_call(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding_cycle, "write", lambda *_, **__: pytest.fail("a thread made a call"))
    start(bindings, lease, "a", "b")
    finish(bindings)
    assert sorted(server.paths) == [path_of("a"), path_of("b")]
    assert set(Pod.objects.values_list("state", flat=True)) == {"bound"}


def test_bindings_wait_for_room_on_the_connections(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_calls, "DEPTH", 2)
    server.released.clear()
    start(bindings, lease, "a", "b", "c")
    assert bindings.has_unsent
    server.released.set()
    finish(bindings)
    assert not bindings.has_unsent
    assert len(server.paths) == 3


def test_bindings_without_a_lease_are_not_sent(
    server: PreparedServer,
    bindings: BindingsInFlight,
    lease: Lease,
    is_leader: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel_calls, "DEPTH", 1)
    server.released.clear()
    start(bindings, lease, "a", "b")
    is_leader[0] = False
    server.released.set()
    finish(bindings)
    assert len(server.paths) == 1
    assert sorted(Pod.objects.values_list("state", flat=True)) == ["binding", "bound"]


def test_refused_binding_is_read_back_by_a_thread(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease
) -> None:
    pod = {"metadata": {"uid": "uid-a"}, "spec": {"nodeName": "another"}}
    server.responses = {path_of("a"): CONFLICT, "/api/v1/namespaces/default/pods/a": response(200, pod)}
    start(bindings, lease, "a")
    finish(bindings)
    assert server.paths == [path_of("a"), "/api/v1/namespaces/default/pods/a"]
    assert Pod.objects.get().state == "binding"  # until the watch reports the node


def test_binding_on_a_closed_connection_is_sent_again(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease
) -> None:
    server.responses = {path_of("a"): CLOSE}
    server.released.clear()
    start(bindings, lease, "a", "b")
    server.released.set()
    finish(bindings)
    assert server.paths.count(path_of("b")) == 1  # the server did not read the first request
    assert set(Pod.objects.values_list("state", flat=True)) == {"bound"}


def test_binding_of_a_busy_server_is_retried(server: PreparedServer, bindings: BindingsInFlight, lease: Lease) -> None:
    busy = response(429, {"reason": "TooManyRequests", "message": "wait"})
    server.responses = {path_of("a"): busy}
    start(bindings, lease, "a")
    until = time.monotonic() + 20
    while not server.paths:
        assert time.monotonic() < until
        bindings.advance(0.01)
    server.responses = {path_of("a"): OK}
    finish(bindings)
    assert server.paths.count(path_of("a")) >= 2
    assert Pod.objects.get().state == "bound"


def test_close_waits_for_sent_bindings(server: PreparedServer, bindings: BindingsInFlight, lease: Lease) -> None:
    start(bindings, lease, "a", "b")
    bindings.close()
    assert set(Pod.objects.values_list("state", flat=True)) == {"bound"}


def test_busy_server_gets_few_further_bindings(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two threads wait as long as the server asks, and the connection has room for two calls; the other four wait.
    monkeypatch.setattr(parallel_calls, "DEPTH", 2)
    monkeypatch.setattr(binding_cycle, "AT_ONCE", 2)
    names = [f"p{number}" for number in range(8)]
    body = b'{"reason": "TooManyRequests", "message": "wait"}'
    busy = b"HTTP/1.1 429 Busy\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    server.responses = {path_of(name): busy for name in names}
    start(bindings, lease, *names)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        bindings.advance(0.01)
    assert len(server.paths) <= 4
    server.responses = {}
    finish(bindings)
    assert set(Pod.objects.values_list("state", flat=True)) == {"bound"}


def test_unexpected_error_of_a_call_is_left_to_a_thread(
    bindings: BindingsInFlight, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(bindings._calls, "start", fail)
    start(bindings, lease, "a")
    finish(bindings)
    assert Pod.objects.get().state == "bound"


def test_expired_bindings_end_without_a_thread(
    server: PreparedServer, bindings: BindingsInFlight, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding_cycle, "WRITE_WITHIN", timedelta(0))
    monkeypatch.setattr(bindings, "_submit", lambda *_: pytest.fail("a thread made a call"))
    start(bindings, lease, "a", "b")
    finish(bindings)
    assert server.paths == []
    assert set(Pod.objects.values_list("state", flat=True)) == {"binding"}
