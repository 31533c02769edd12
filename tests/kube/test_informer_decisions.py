"""The informer process decides and binds immediately: the order of its writes, and the state after it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods import binding
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.placement.actions import reject
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following, leading
from tests.kube.faults import refusal, replies
from tests.kube.scene import eventually, make_node, make_pod, pod_of, states

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def live(api: Api, cluster: Cluster) -> Iterator[InformerHost]:
    made = InformerHost(cluster, api)
    yield made
    made.close()


@pytest.fixture
def followed(api: Api, cluster: Cluster, live: InformerHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of 8 CPUs, and decide for it."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_node(api, "only")
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    follower = Informer(lease, api, threading.Event(), host=live)
    follower.start()
    eventually(follower, lambda: Node.objects.count() == 1)
    yield follower
    follower.ended.set()


def test_pods_are_bound_without_a_worker(api: Api, followed: Informer) -> None:
    for number in range(5):
        make_pod(api, f"p{number}")
    eventually(followed, lambda: list(states().values()) == ["bound"] * 5)
    assert {pod_of(api, f"p{number}")["spec"]["nodeName"] for number in range(5)} == {"only"}
    assert "hetsched.io/allocation" in pod_of(api, "p0")["metadata"]["annotations"]
    assert check_invariants() == []


def test_reservation_and_binding_state_precede_the_call(api: Api, followed: Informer) -> None:
    called, go_on = threading.Event(), threading.Event()

    def respond(_: int, call: Any) -> bytes:
        called.set()
        assert go_on.wait(30)
        answer: bytes = call()
        return answer

    with replies(api, to="/binding", respond=respond):
        make_pod(api, "held")
        eventually(followed, called.is_set)
        reservation = Reservation.objects.get(active=True)
        assert (reservation.pod.name, reservation.pod.state, reservation.leader_epoch) == (
            "held",
            "binding",
            reservation.cluster.leader_epoch,
        )
        go_on.set()
        eventually(followed, lambda: states() == {"held": "bound"})


def test_late_binding_response_is_replaced_by_the_watch_confirmation(api: Api, followed: Informer) -> None:
    go_on = threading.Event()

    def respond(_: int, call: Any) -> bytes:
        answer: bytes = call()
        assert go_on.wait(60)
        return answer

    with replies(api, to="/binding", respond=respond) as calls:
        make_pod(api, "late")
        eventually(followed, lambda: states() == {"late": "bound"})
        go_on.set()
        for _ in range(3):
            followed.iterate()
    assert len(calls) == 1
    assert states() == {"late": "bound"}


def test_rejected_binding_requeues_the_pod(api: Api, followed: Informer) -> None:
    def respond(count: int, call: Any) -> bytes:
        if count == 1:
            raise refusal(422)
        answer: bytes = call()
        return answer

    with replies(api, to="/binding", respond=respond) as calls:
        make_pod(api, "again")
        eventually(followed, lambda: states() == {"again": "bound"})
    assert len(calls) == 2
    assert list(Reservation.objects.order_by("id").values_list("active", flat=True)) == [False, True]
    assert check_invariants() == []


def test_standby_informer_decides_nothing(api: Api, cluster: Cluster, followed: Informer, live: InformerHost) -> None:
    if live._lease is not None:
        leading.release(live._lease)
    theirs = leading.take(cluster.pk, "another")
    assert theirs is not None
    with replies(api, to="/binding", respond=lambda _, call: call()) as calls:
        make_pod(api, "waits")
        eventually(followed, lambda: states() == {"waits": "pending"})
        for _ in range(20):
            live.mark_due()
            followed.iterate()
        assert (states(), calls) == ({"waits": "pending"}, [])
        leading.release(theirs)
        eventually(followed, lambda: states() == {"waits": "bound"})


def test_stale_epoch_records_nothing(api: Api, cluster: Cluster, followed: Informer, live: InformerHost) -> None:
    make_pod(api, "first")
    eventually(followed, lambda: states() == {"first": "bound"})
    # Another process took over while this one slept, and its lease renewal is not due yet.
    Cluster.objects.filter(pk=cluster.pk).update(leader_epoch=F("leader_epoch") + 1, leader_id="another")
    make_pod(api, "second")
    eventually(followed, lambda: "second" in states())
    live.mark_due()
    live.iterate()
    assert states()["second"] == "pending"
    assert Reservation.objects.count() == 1


def test_unsent_binding_is_sent_by_a_worker(
    api: Api, cluster: Cluster, followed: Informer, live: InformerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        live.bindings, "start", lambda lease, placed: None
    )  # it dies between the commit and the first call
    with replies(api, to="/binding", respond=lambda _, call: call()) as calls:
        make_pod(api, "left")
        eventually(followed, lambda: states() == {"left": "binding"})
        Pod.objects.update(decided_at=F("decided_at") - 2 * binding_cycle.CLAIM_AFTER - timedelta(seconds=1))
        assert binding_cycle.run(cluster.pk) == 1
        eventually(followed, lambda: states() == {"left": "bound"})
    assert len(calls) == 1
    assert check_invariants() == []


def test_watch_confirmation_of_a_requeued_pod_is_looked_up(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(_: int, call: Any) -> bytes:
        # A worker whose binding was rejected released the placement, and nothing is decided for a while.
        monkeypatch.setattr(InformerHost, "_decide", lambda self: False)
        taken_back.wait(30)
        answer: bytes = call()
        return answer

    taken_back = threading.Event()
    with replies(api, to="/binding", respond=respond) as calls:
        make_pod(api, "late")
        eventually(followed, lambda: len(calls) == 1)
        reject(cluster.pk, [Pod.objects.get().pk], reason="no")
        taken_back.set()
        eventually(
            followed,
            lambda: list(Pod.objects.order_by("id").values_list("state", flat=True)) == ["cancelled", "running"],
        )
    assert Reservation.objects.get(active=True).pod.origin == Pod.IMPORTED
    assert check_invariants() == []


def test_bindings_stop_when_another_installation_may_hold_the_lease(
    api: Api, followed: Informer, live: InformerHost
) -> None:
    live._is_elected = lambda: False
    with replies(api, to="/binding", respond=lambda _, call: call()) as calls:
        make_pod(api, "decided")
        eventually(followed, lambda: states() == {"decided": "binding"} and not live.bindings.count)
    assert calls == []
    assert Reservation.objects.filter(active=True).count() == 1


def test_lost_lease_keeps_pending_writes_from_being_written(api: Api, followed: Informer, live: InformerHost) -> None:
    called, go_on = threading.Event(), threading.Event()

    def respond(_: int, call: Any) -> bytes:
        called.set()
        assert go_on.wait(30)
        raise refusal(503)

    with replies(api, to="/binding", respond=respond) as calls:
        make_pod(api, "held")
        eventually(followed, called.is_set)
        live._lease = None
        go_on.set()
        eventually(followed, lambda: not live.bindings.count)
    assert len(calls) == 1
    assert states() == {"held": "binding"}


def test_missing_uid_check_stops_decisions(
    api: Api, followed: Informer, live: InformerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "refuses_wrong_uids", lambda *_: False)
    with replies(api, to="/binding", respond=lambda _, call: call()) as calls:
        make_pod(api, "first")
        eventually(followed, lambda: Connection.objects.get().failure == binding.UNPROVEN)
        make_pod(api, "second")
        eventually(followed, lambda: "second" in states())
        live.mark_due()
        live.iterate()
    assert calls == []
    assert states() == {"first": "binding", "second": "pending"}
