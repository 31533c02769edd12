"""After any fault of the API server or its connection, the ledger matches the cluster within ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes import reflector
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.models import Cluster, Node, Sync
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling.informer import Informer
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Link, kill_api_server
from tests.kube.scene import an_informer, eventually, make_node, make_pod, states

pytestmark = [pytest.mark.chaos, pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
AT_ONCE = {"gracePeriodSeconds": "0"}


@pytest.fixture
def link(plane: ControlPlane, api: Api) -> Iterator[Link]:
    with Link(plane) as link:
        yield link


@pytest.fixture
def short_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make watches fail after one second without data; request it before `followed`, whose watches then use it."""
    monkeypatch.setattr(reflector, "QUIET_SECONDS", 1.0)


@pytest.fixture
def followed(api: Api, cluster: Cluster, link: Link, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer over a faulty link for a cluster of two nodes with one running and one pending pod."""
    monkeypatch.setattr(reflector, "LONGEST_WAIT_SECONDS", 0.5)
    make_node(api, "n1")
    make_node(api, "n2")
    make_pod(api, "runs", schedulerName="default-scheduler", nodeName="n1")
    make_pod(api, "waits")
    follower = an_informer(link.api(), cluster)
    eventually(follower, lambda: states() == {"runs": "running", "waits": "pending"})
    yield follower
    follower.ended.set()


def make_changes(api: Api) -> None:
    api.send("DELETE", PODS.path(namespace="default", name="runs"), query=AT_ONCE)
    api.send("DELETE", NODES.path(name="n1"))
    make_node(api, "n3")
    make_pod(api, "late", cpu="2", schedulerName="default-scheduler", nodeName="n2")


def is_caught_up() -> bool:
    names = set(Node.objects.filter(gone=False).values_list("name", flat=True))
    known = {"runs": "cancelled", "waits": "pending", "late": "running"}
    return names == {"n2", "n3"} and known.items() <= states().items()


def has_no_violations() -> bool:
    reserved = Reservation.objects.filter(active=True).exclude(pod__origin=Pod.REMNANT)
    return [(reservation.pod.name, reservation.requests["cpu"]) for reservation in reserved] == [
        ("late", 2000)
    ] and check_invariants() == []


def test_reflector_recovers_from_a_closed_connection(api: Api, link: Link, followed: Informer) -> None:
    link.cut()
    make_changes(api)
    for _ in range(20):
        followed.iterate()
    followed._write_sync()
    assert states() == {"runs": "running", "waits": "pending"}  # no response does not mean that a pod is deleted
    assert Sync.objects.get(resource="pods").failures > 0
    link.restore()
    eventually(followed, is_caught_up)
    assert has_no_violations()


def test_reflector_recovers_from_a_silent_connection(
    api: Api, link: Link, short_quiet_time: None, followed: Informer
) -> None:
    make_pod(api, "seen", schedulerName="default-scheduler", nodeName="n1")
    eventually(followed, lambda: "seen" in states())
    api.send("DELETE", PODS.path(namespace="default", name="seen"), query=AT_ONCE)
    eventually(followed, lambda: states()["seen"] == "cancelled")
    link.silence()
    failures = followed.watches.states[PODS].failures
    make_changes(api)
    eventually(followed, lambda: followed.watches.states[PODS].failures > failures)
    link.restore()
    eventually(followed, lambda: states().get("late") == "running" and states()["runs"] == "cancelled")
    assert has_no_violations()


def test_reflector_relists_after_an_api_server_restart(
    plane: ControlPlane, api: Api, link: Link, followed: Informer
) -> None:
    lists = followed.watches.states[PODS].lists
    link.cut()
    make_changes(api)
    kill_api_server(plane)
    link.restore()
    eventually(followed, is_caught_up)
    assert followed.watches.states[PODS].lists > lists  # 410: only a list can find the events that the watch missed
    reservation = Reservation.objects.get(
        active=True, pod__origin=Pod.REMNANT
    )  # the informer did not see the end of `runs`
    assert (reservation.pod.name.partition("~")[0], reservation.node.name, reservation.node.gone) == (
        "runs",
        "n1",
        True,
    )
    assert has_no_violations()


def test_pod_seen_before_its_node_is_charged_with_the_node(api: Api, followed: Informer) -> None:
    make_pod(api, "first", cpu="3", schedulerName="default-scheduler", nodeName="n9")
    eventually(followed, lambda: states().get("first") == "running")
    make_node(api, "n9")
    eventually(followed, lambda: Node.objects.filter(name="n9", pods=1).exists())
    assert Node.objects.get(name="n9").requested["cpu"] == 3000
    assert check_invariants() == []
