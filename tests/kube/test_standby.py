"""A warm standby becomes the informer without another list, and only if its store contains all that is in the rows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from structlog.testing import capture_logs

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.inventory.node_events import is_synced
from hetsched.placement.models import Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling import standby as standby_module
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import Lease, following, leading
from hetsched.scheduling.standby import Standby
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import refusal, replies
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
PATIENCE_SECONDS = 60


@pytest.fixture
def lists(api: Api, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the answered lists by path; lists of kinds that the server does not serve are repeated."""
    counts: Counter[str] = Counter()
    list_pages = api.list_pages

    def counted(resource: Any) -> Any:
        for page in list_pages(resource):
            counts[resource.path()] += 1
            yield page

    monkeypatch.setattr(api, "list_pages", counted)
    return counts


@pytest.fixture
def informer(api: Api, cluster: Cluster) -> Iterator[Informer]:
    """Return an informer that has written a node and a pod of another scheduler."""
    make_node(api, "n1")
    make_pod(api, "foreign", schedulerName="default-scheduler", nodeName="n1")
    found = an_informer(api, cluster)
    eventually(found, lambda: states() == {"foreign": "running"} and is_synced(cluster))
    yield found
    found.ended.set()


@pytest.fixture
def standby(api: Api, cluster: Cluster, informer: Informer) -> Iterator[Standby]:
    """Return a warm standby of the informer."""
    ended = threading.Event()
    found = Standby(cluster.pk, api, ended)
    while_waiting(found, lambda: found.is_warm, informer)
    yield found
    ended.set()


def while_waiting(standby: Standby, holds: Callable[[], bool], *informers: Informer) -> None:
    """Run the standby, and these informers at each of its polls for the lease, until a condition is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    lease = Lease(0, 0)

    def poll() -> Lease | None:
        assert time.monotonic() < deadline, "the standby did not get there"
        for informer in informers:
            informer.iterate()
        return lease if holds() else None

    start, standby.watches.start = standby.watches.start, lambda: None  # type: ignore[method-assign]
    if not any(state.alive_at for state in standby.watches.states.values()):
        start()
    assert standby.wait_for_lease(poll) is lease
    standby.watches.start = start  # type: ignore[method-assign]


def taken(cluster: Cluster) -> Lease:
    lease = following.take(cluster.pk, "standby")
    assert lease is not None
    return lease


def end(informer: Informer) -> None:
    """End an informer as SIGTERM does."""
    informer.ended.set()
    informer.run()


def test_standby_takes_over_without_a_list(
    api: Api, cluster: Cluster, lists: Counter[str], informer: Informer, standby: Standby
) -> None:
    make_node(api, "n2")
    make_pod(api, "before")
    while_waiting(standby, lambda: states().get("before") == "pending", informer)
    end(informer)
    make_pod(api, "between", schedulerName="default-scheduler", nodeName="n2")
    api.send("DELETE", PODS.path(namespace="default", name="foreign"), query={"gracePeriodSeconds": "0"})
    listed = lists.copy()
    lease = taken(cluster)
    assert standby.has_caught_up(lease, api)
    host = InformerHost(cluster, api)
    after = Informer(lease, api, threading.Event(), host=host, standby=standby)
    try:
        expected = {"foreign": "cancelled", "before": "bound", "between": "running"}
        eventually(after, lambda: expected.items() <= states().items())
        make_pod(api, "after")
        eventually(after, lambda: states().get("after") == "bound")
    finally:
        host.close()
    assert lists == listed
    assert listed[PODS.path()] >= 2
    assert pod_of(api, "after")["spec"]["nodeName"]
    assert Node.objects.count() == 2
    assert is_synced(cluster)
    assert check_invariants() == []


def test_standby_writes_nothing(api: Api, cluster: Cluster, informer: Informer) -> None:
    ended = threading.Event()
    found = Standby(cluster.pk, api, ended)
    make_pod(api, "late")
    with CaptureQueriesContext(connection) as queries:
        while_waiting(found, lambda: found.is_warm and "default/late" in found.watches.states[PODS].keys)
    ended.set()
    statements = {query["sql"].split()[0] for query in queries}
    assert statements == {"SELECT"}
    assert states() == {"foreign": "running"}


def test_standby_keeps_only_changes_that_the_rows_lack(api: Api, informer: Informer, standby: Standby) -> None:
    assert not standby.take()
    make_pod(api, "late", schedulerName="default-scheduler", nodeName="n1")
    while_waiting(standby, lambda: "default/late" in standby.watches.states[PODS].keys)
    assert [pod.name for pod in standby.take().pods] == ["late"]


def test_standby_that_lacks_written_events_has_not_caught_up(
    api: Api, cluster: Cluster, informer: Informer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The informer wrote the end of a pod that the standby still sees running."""
    monkeypatch.setattr(standby_module, "CATCH_UP_SECONDS", 0.3)
    api.send("DELETE", PODS.path(namespace="default", name="foreign"), query={"gracePeriodSeconds": "0"})
    eventually(informer, lambda: states()["foreign"] == "cancelled")
    end(informer)
    lease = taken(cluster)
    monkeypatch.setattr(standby, "_collect_events", lambda: time.sleep(0.05))
    assert not standby.has_caught_up(lease, api)
    monkeypatch.undo()
    assert standby.has_caught_up(lease, api)
    after = Informer(lease, api, threading.Event(), standby=standby)
    eventually(after, lambda: after.has_applied)
    assert states()["foreign"] == "cancelled"


@pytest.mark.parametrize("ending", ["killed", "earlier release", "another informer in between"])
def test_lease_without_a_current_handover_needs_a_list(
    api: Api, cluster: Cluster, informer: Informer, standby: Standby, ending: str
) -> None:
    rows = Connection.objects.filter(cluster=cluster)
    if ending == "killed":
        assert following.take(cluster.pk, "standby") is None
        rows.update(follower_until=timezone.now() - timedelta(seconds=1))
    else:
        end(informer)
    if ending == "earlier release":
        rows.update(follower_handover=None)
    if ending == "another informer in between":
        following.release(taken(cluster))
    assert not standby.has_caught_up(taken(cluster), api)


def test_standby_of_a_replaced_connection_lists_again(
    api: Api, cluster: Cluster, plane: ControlPlane, informer: Informer, standby: Standby
) -> None:
    end(informer)
    with capture_logs() as logs:
        assert not standby.has_caught_up(taken(cluster), Api(from_kubeconfig(plane.kubeconfig())))
    assert [entry["reason"] for entry in logs] == ["the connection of the cluster was changed"]


def test_previous_informer_is_fenced_after_the_takeover(
    api: Api, cluster: Cluster, informer: Informer, standby: Standby
) -> None:
    """The previous informer was suspended until its lease had expired, and continues with its old epoch."""
    Connection.objects.filter(cluster=cluster).update(follower_until=timezone.now() - timedelta(seconds=1))
    lease = taken(cluster)
    make_pod(api, "late", schedulerName="default-scheduler", nodeName="n1")
    for _ in range(40):
        informer.iterate()
    assert states() == {"foreign": "running"}
    assert informer._handover() is None
    informer.ended.set()
    informer.run()
    assert following.renew(lease)
    after = Informer(lease, api, threading.Event())
    after.start()
    eventually(after, lambda: states() == {"foreign": "running", "late": "running"})
    after.ended.set()


def test_leases_are_released_before_the_bindings_finish(
    api: Api, cluster: Cluster, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[bool] = []
    host = InformerHost(cluster, api)
    informer._host = host
    host.acquire_leadership()
    close = host.bindings.close

    def record_leases() -> None:
        released.append(not leading.is_held(cluster.pk) and not following.is_held(cluster.pk))
        close()

    monkeypatch.setattr(host.bindings, "close", record_leases)
    end(informer)
    assert released == [True]


@pytest.mark.parametrize("is_refused", [False, True])
def test_slow_bindings_continue_after_the_release(
    api: Api,
    cluster: Cluster,
    informer: Informer,
    standby: Standby,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_refused: bool,
) -> None:
    """The next informer decides while the previous one waits for the API server, and no worker claims its bindings."""
    called, go_on = threading.Event(), threading.Event()

    def respond(count: int, call: Callable[[], bytes]) -> bytes:
        if count == 1:
            called.set()
            assert go_on.wait(PATIENCE_SECONDS)
            if is_refused:
                raise refusal(422)
        return call()

    def take_over() -> None:
        lease = taken(cluster)
        assert standby.has_caught_up(lease, api)
        informers.append(Informer(lease, api, threading.Event(), host=InformerHost(cluster, api), standby=standby))
        make_pod(api, "next")
        eventually(informers[0], lambda: states().get("next") == "bound")
        assert binding_cycle.run(cluster.pk) == 0
        assert (states()["slow"], states()["queued"]) == ("binding", "binding")
        go_on.set()
        close()

    informers: list[Informer] = []
    monkeypatch.setattr(binding_cycle, "AT_ONCE", 1)
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    informer._host = host = InformerHost(cluster, api)
    close = host.bindings.close
    monkeypatch.setattr(host.bindings, "close", take_over)
    with replies(api, to="/binding", respond=respond) as calls:
        make_pod(api, "slow")
        eventually(informer, called.is_set)
        make_pod(api, "queued")
        eventually(informer, lambda: states().get("queued") == "binding")
        end(informer)
        (after,) = informers
        bound = {"slow": "bound", "queued": "bound", "next": "bound"}
        eventually(after, lambda: states() == {"foreign": "running", **bound})
        end(after)
    assert len(calls) == 3 + is_refused
    assert [pod_of(api, name)["spec"]["nodeName"] for name in bound] == ["n1"] * 3
    active = Reservation.objects.filter(active=True).values_list("pod__name", flat=True)
    assert sorted(active) == ["foreign", "next", "queued", "slow"]
    assert check_invariants() == []


def test_position_is_that_of_a_complete_list(api: Api, standby: Standby) -> None:
    """A page of a list contains newer objects than objects of later pages."""
    position = standby.watches.states[NODES].position
    make_node(api, "n2")
    while_waiting(standby, lambda: "n2" in standby.watches.states[NODES].keys)
    state = standby.watches.states[NODES]
    assert state.changed_version is not None
    assert position < state.changed_version <= state.position
    assert standby.watches.has_reached({"nodes": state.changed_version})
    assert not standby.watches.has_reached({"nodes": state.position + 1})
