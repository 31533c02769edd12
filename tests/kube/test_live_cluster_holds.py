"""Holds on a real cluster: a submission's pods get the held capacity when they are created; other pods go elsewhere.

A node of 8 CPUs fits one pod of 6. Each test relies on this being the only capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.adapters.kubernetes.api import Api
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement import scheduler_cache
from hetsched.placement.actions import cancel, end_holds
from hetsched.placement.models import Hold, Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import following
from tests.kube.scene import an_informer, eventually, make_node, make_pod, states
from workers import create, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: default}
spec: {containers: [{name: main, image: busybox, resources: {requests: {cpu: "6"}}}]}
"""


class RestClient:
    """A REST client with the token of an operator."""

    def __init__(self) -> None:
        text = create_token(role="operator", name="test")[1]
        self._client = Client(headers={"authorization": f"Bearer {text}"})

    def __call__(self, address: str, manifest: str = POD, *, status: int, **more: Any) -> Any:
        answer = self._client.post(
            f"/api/v1/{address}", {"manifest": manifest, **more}, content_type="application/json"
        )
        assert answer.status_code == status, answer.content
        return answer.json()


@pytest.fixture
def there(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node, in which submissions may use the namespace default."""
    monkeypatch.setattr(scheduler_cache, "_caches", {})
    for worker in (create, binding_cycle):
        monkeypatch.setattr(worker, "api_of", lambda _: api)
    Connection.objects.filter(cluster=cluster).update(enrolled_namespaces=["default"])
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    follower._write_sync()
    yield follower
    follower.ended.set()


def run_tasks(there: Informer, cluster: Cluster) -> None:
    """Run every periodic task once."""
    there._write_sync()
    create.run(cluster.pk)
    schedule.run(cluster.pk)
    binding_cycle.run(cluster.pk)


def test_pod_of_a_submission_gets_the_held_capacity(cluster: Cluster, there: Informer) -> None:
    ask = RestClient()
    hold = ask("holds/", status=201)
    assert hold["pods"] == [{"pod": "default/train", "node": "n1"}]
    assert ask("holds/", status=409)["code"] == "NoRoom"
    accepted = ask("workloads/", status=202, hold=hold["id"])

    def bound() -> bool:
        run_tasks(there, cluster)
        return Workload.objects.get(pk=accepted["id"]).state == "bound"

    eventually(there, bound)
    row = Hold.objects.get()
    assert (row.state, row.workload_id) == ("used", accepted["id"])
    assert Reservation.objects.filter(active=True).count() == 1
    assert check_invariants() == []


def test_plan_is_fulfilled_despite_competing_pods(api: Api, cluster: Cluster, there: Informer) -> None:
    ask = RestClient()
    plan = ask("what-if/", status=200, plan=True)["plan"]["token"]
    accepted = ask("workloads/", status=202, plan=plan)
    make_pod(api, "other", cpu="6")  # it exists and is decided before the pod of the hold
    eventually(there, lambda: "other" in states())
    schedule.run(cluster.pk)
    assert states()["other"] == "not-now"

    def bound() -> bool:
        run_tasks(there, cluster)
        return Workload.objects.get(pk=accepted["id"]).state == "bound"

    eventually(there, bound)
    assert states()["other"] == "not-now"
    assert check_invariants() == []


def test_locally_stored_holds_survive_an_informer_change(api: Api, cluster: Cluster, there: Informer) -> None:
    hold = RestClient()("holds/", status=201)
    there.ended.set()
    following.release(there.lease)
    another = an_informer(api, cluster)
    make_pod(api, "seen", cpu="1")
    eventually(another, lambda: "seen" in states())
    assert Hold.objects.get().state == "held"
    assert Pod.objects.get(origin=Pod.HELD).name == f"train~{hold['id']}"
    assert Reservation.objects.filter(active=True).count() == 1
    another.ended.set()


def test_hold_is_lost_to_a_pod_of_another_scheduler(api: Api, cluster: Cluster, there: Informer) -> None:
    RestClient()("holds/", status=201)
    make_pod(api, "foreign", cpu="4", schedulerName="default-scheduler", nodeName="n1")
    eventually(there, lambda: Hold.objects.get().state == "lost")
    assert "default/foreign" in Hold.objects.get().end_reason
    assert list(Reservation.objects.filter(active=True).values_list("pod__name", flat=True)) == ["foreign"]
    assert check_invariants() == []


def test_hold_of_an_ended_submission_is_released(cluster: Cluster, there: Informer) -> None:
    ask = RestClient()
    hold = ask("holds/", status=201)
    accepted = ask("workloads/", status=202, hold=hold["id"])
    cancel(Workload.objects.get(pk=accepted["id"]), actor=SYSTEM, reason="superseded")

    def gone() -> bool:
        run_tasks(there, cluster)
        return Workload.objects.get(pk=accepted["id"]).state == "cancelled"

    eventually(there, gone)
    assert end_holds(cluster.pk) == 1
    assert (Hold.objects.get().state, Reservation.objects.filter(active=True).count()) == ("used", 0)


def test_hold_is_rejected_on_stale_facts(cluster: Cluster, there: Informer) -> None:
    following.release(there.lease)
    following.take(cluster.pk, "another")  # which has not listed anything yet
    assert RestClient()("holds/", status=409)["code"] == "ClusterNotInStep"
