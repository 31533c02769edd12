"""Bindings under faults: each pod is bound once, to its assigned node; an unknown result keeps its reservation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods import binding
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Connection, Node, Sync
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.faults import refusal, replies
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.chaos, pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def placed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster of two nodes with the pod `p` placed and not bound yet."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    monkeypatch.setattr(binding, "_LONGEST_WAIT_SECONDS", 0.05)
    for name in ("n1", "n2"):
        make_node(api, name)
    make_pod(api, "p")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 2 and states() == {"p": "pending"})
    follower._write_sync()
    assert schedule.run(cluster.pk) == 1
    yield follower
    follower.ended.set()


def held() -> int:
    return Reservation.objects.filter(active=True).count()


def expire_attempts() -> None:
    """Expire the time in which only the worker that started a binding may write."""
    Pod.objects.update(not_before=timezone.now() - timedelta(seconds=1))


def is_bound_as_placed(api: Api) -> bool:
    node = Pod.objects.select_related("node").get().node
    return node is not None and pod_of(api, "p")["spec"].get("nodeName") == node.name


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_server_is_retried_and_the_pod_is_bound_once(
    api: Api, cluster: Cluster, placed: Informer, status: int
) -> None:
    def respond(call: int, real: Any) -> Any:
        if call < 3:
            raise refusal(status, retry_after=1.0)
        return real()

    with replies(api, to="/p/binding", respond=respond) as calls:
        assert binding_cycle.run(cluster.pk) == 1
    assert len(calls) == 3
    assert (states(), held(), is_bound_as_placed(api)) == ({"p": "bound"}, 1, True)


def test_busy_server_leaves_the_pod_with_its_reservation(api: Api, cluster: Cluster, placed: Informer) -> None:
    def respond(_: int, __: Any) -> Any:
        raise refusal(503)

    with replies(api, to="/p/binding", respond=respond) as calls:
        assert binding_cycle.run(cluster.pk) == 0
    assert (len(calls), states(), held()) == (4, {"p": "binding"}, 1)
    assert binding_cycle.run(cluster.pk) == 0  # another worker may still be binding it
    expire_attempts()
    assert binding_cycle.run(cluster.pk) == 1
    assert (states(), held(), is_bound_as_placed(api)) == ({"p": "bound"}, 1, True)
    assert check_invariants() == []


def test_rejection_keeps_the_reservation_during_an_earlier_attempt(
    api: Api, cluster: Cluster, placed: Informer
) -> None:
    late: list[Any] = []

    def respond(call: int, real: Any) -> Any:
        late.append(real)
        raise refusal(504 if call == 1 else 422)

    with replies(api, to="/p/binding", respond=respond) as calls:
        assert binding_cycle.run(cluster.pk) == 0
        assert (len(calls), states(), held()) == (2, {"p": "binding"}, 1)
        expire_attempts()
        assert binding_cycle.run(cluster.pk) == 0
        assert (len(calls), states(), held()) == (3, {"p": "binding"}, 1)
        late[0]()
        expire_attempts()
        assert binding_cycle.run(cluster.pk) == 1
    assert (states(), held(), is_bound_as_placed(api)) == ({"p": "bound"}, 1, True)
    assert check_invariants() == []


def test_rejection_releases_after_all_attempts_ended(api: Api, cluster: Cluster, placed: Informer) -> None:
    def respond(call: int, _: Any) -> Any:
        raise refusal(504 if call == 1 else 422)

    with replies(api, to="/p/binding", respond=respond):
        assert binding_cycle.run(cluster.pk) == 0
        expire_attempts()
        Pod.objects.update(decided_at=timezone.now() - binding_cycle.UNKNOWN_FOR)
        assert binding_cycle.run(cluster.pk) == 0
    assert (states(), held()) == ({"p": "pending"}, 0)


def test_unstarted_binding_is_left_to_other_processes(
    api: Api, cluster: Cluster, placed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding_cycle, "WRITE_WITHIN", timedelta(0))
    with replies(api, to="/p/binding", respond=lambda _, real: real()) as calls:
        assert binding_cycle.run(cluster.pk) == 0
    assert (calls, states(), held()) == ([], {"p": "binding"}, 1)


def test_no_pod_is_bound_while_the_cluster_is_out_of_sync(api: Api, cluster: Cluster, placed: Informer) -> None:
    Sync.objects.update(synced_at=None)  # another installation may hold the Lease
    with replies(api, to="/p/binding", respond=lambda _, real: real()) as calls:
        assert binding_cycle.run(cluster.pk) == 0
        assert (calls, states()) == ([], {"p": "placed"})
        placed._write_sync()
        assert binding_cycle.run(cluster.pk) == 1


def test_missing_uid_check_is_reported_and_nothing_is_bound(
    api: Api, cluster: Cluster, placed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "refuses_wrong_uids", lambda *_: False)
    with replies(api, to="/p/binding", respond=lambda _, real: real()) as calls:
        assert binding_cycle.run(cluster.pk) == 0
        expire_attempts()
        assert binding_cycle.run(cluster.pk) == 0
    assert (calls, states(), held()) == ([], {"p": "binding"}, 1)
    assert Connection.objects.get().failure == binding.UNPROVEN
    make_pod(api, "q")
    eventually(placed, lambda: "q" in states())
    placed._write_sync()
    assert schedule.run(cluster.pk) == 0


def test_lost_response_is_read_back(api: Api, cluster: Cluster, placed: Informer) -> None:
    def respond(_: int, real: Any) -> Any:
        real()
        raise refusal(0)

    with replies(api, to="/p/binding", respond=respond):
        assert binding_cycle.run(cluster.pk) == 1
    assert (states(), held(), is_bound_as_placed(api)) == ({"p": "bound"}, 1, True)


def test_late_binding_keeps_its_reservation(api: Api, cluster: Cluster, placed: Informer) -> None:
    late: list[Any] = []

    def respond(_: int, real: Any) -> Any:
        late.append(real)
        raise refusal(0)

    with replies(api, to="/p/binding", respond=respond):
        assert binding_cycle.run(cluster.pk) == 0
    assert (states(), held()) == ({"p": "binding"}, 1)
    late[0]()
    eventually(placed, lambda: states() == {"p": "bound"})
    assert (binding_cycle.run(cluster.pk), held(), is_bound_as_placed(api)) == (0, 1, True)
    assert check_invariants() == []


def test_recreated_pod_is_not_bound_by_the_earlier_binding(api: Api, cluster: Cluster, placed: Informer) -> None:
    def respond(_: int, real: Any) -> Any:
        api.send("DELETE", PODS.path(namespace="default", name="p"), query={"gracePeriodSeconds": "0"})
        make_pod(api, "p", cpu="2")
        return real()

    with replies(api, to="/p/binding", respond=respond):
        assert binding_cycle.run(cluster.pk) == 0
    assert "nodeName" not in pod_of(api, "p")["spec"]
    assert held() == 1  # until the watch reports that the old one is deleted
    eventually(
        placed, lambda: list(Pod.objects.order_by("id").values_list("state", flat=True)) == ["cancelled", "pending"]
    )
    assert held() == 0
    placed._write_sync()
    assert (schedule.run(cluster.pk), binding_cycle.run(cluster.pk)) == (1, 1)
    assert Reservation.objects.get(active=True).requests["cpu"] == 2000
    assert check_invariants() == []


def test_concurrent_workers_bind_each_pod_once(api: Api, cluster: Cluster, placed: Informer) -> None:
    for number in range(20):
        make_pod(api, f"more-{number}", cpu="100m")
    eventually(placed, lambda: len(states()) == 21)
    placed._write_sync()
    assert schedule.run(cluster.pk) == 20
    waiting = binding_cycle._pods(cluster.pk, State.PLACED)
    binding_cycle.begin_binding(cluster.pk, waiting)
    wanted = binding_cycle.binding_requests(waiting)
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda item: binding.bind(api, item), [*wanted, *reversed(wanted)]))
    assert {outcome.result for outcome in outcomes} == {binding.BindingResult.BOUND}
    binding_cycle.record_results(cluster, outcomes[:21])
    binding_cycle.record_results(cluster, outcomes[21:])
    assert set(states().values()) == {"bound"}
    assert held() == 21
    assert check_invariants() == []


def test_pod_bound_elsewhere_is_charged_on_its_node(api: Api, cluster: Cluster, placed: Informer) -> None:
    ours = Pod.objects.select_related("node").get().node
    assert ours is not None
    other = "n2" if ours.name == "n1" else "n1"
    uid = pod_of(api, "p")["metadata"]["uid"]
    assert (
        binding.bind(api, binding.BindingRequest(0, "default", "p", uid, other)).result is binding.BindingResult.BOUND
    )
    assert binding_cycle.run(cluster.pk) == 0
    assert held() == 1
    eventually(
        placed, lambda: list(Pod.objects.order_by("id").values_list("state", flat=True)) == ["cancelled", "running"]
    )
    assert Reservation.objects.get(active=True).node.name == other
    assert check_invariants() == []
