"""A restored database and a newer cluster: everything is listed before anything is decided or released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.contracts.units import CPU
from hetsched.inventory.models import Cluster, Connection, Node, Sync
from hetsched.placement import scheduler_cache
from hetsched.placement.actions.terminating_pods import release_orphaned_pods
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import end_all
from hetsched.storage import backup
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import an_informer, eventually, make_node, make_pod, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Informer]:
    """Return a function that starts informers of a cluster with two nodes of 8 CPUs, one after the other."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    monkeypatch.setattr(scheduler_cache, "_caches", {})
    for name in ("n1", "n2"):
        make_node(api, name)
    return lambda: an_informer(api, cluster)


def create(api: Api, follower: Informer, **pods: str) -> None:
    """Create pods with these CPU requests and wait until the informer sees them."""
    for name, cpu in pods.items():
        make_pod(api, name, cpu=cpu)
    eventually(follower, lambda: set(pods) <= set(states()))
    follower._write_sync()


def decide(cluster: Cluster) -> None:
    schedule.run(cluster.pk)
    binding_cycle.run(cluster.pk)


def bound(plane: ControlPlane) -> dict[str, str]:
    """Return the node of each bound pod from the API server."""
    items = plane.call("GET", "/api/v1/namespaces/default/pods")["items"]
    return {item["metadata"]["name"]: item["spec"]["nodeName"] for item in items if "nodeName" in item["spec"]}


def test_restored_ledger_catches_up_before_decisions(
    plane: ControlPlane, api: Api, cluster: Cluster, followed: Callable[[], Informer], tmp_path: Path
) -> None:
    follower = followed()
    eventually(follower, lambda: Node.objects.count() == 2)
    create(api, follower, stays="3", ends="4")
    decide(cluster)
    create(api, follower, waits="2")
    backup.write(tmp_path / "backup.gz")
    epoch = Connection.objects.get().follower_epoch
    decisions = dict(Decision.objects.values_list("id", "summary"))

    # After the backup: a pending pod is bound, one pod ends, and a new pod is bound.
    decide(cluster)
    api.send("DELETE", PODS.path(namespace="default", name="ends"), query={"gracePeriodSeconds": "0"})
    eventually(follower, lambda: states()["ends"] == "cancelled")
    create(api, follower, since="5")
    decide(cluster)
    before = bound(plane)
    assert set(before) == {"stays", "waits", "since"}
    follower.ended.set()

    # Restore the backup; the processes have no other state.
    backup.read(tmp_path / "backup.gz")
    end_all()
    Sync.objects.all().delete()
    scheduler_cache._caches.clear()
    assert states() == {"stays": "bound", "ends": "bound", "waits": "pending"}
    decide(cluster)
    assert states()["waits"] == "pending"

    follower = followed()
    assert Connection.objects.get().follower_epoch > epoch
    eventually(follower, lambda: states().get("ends") == "cancelled" and states().get("since") == "running")
    follower._write_sync()
    assert dict(Decision.objects.filter(pk__in=decisions).values_list("id", "summary")) == decisions
    live = Pod.objects.filter(state__in=["bound", "running"]).exclude(origin=Pod.REMNANT)
    assert dict(live.values_list("name", "node__name")) == before
    # The informer did not see the end of `ends`, so its allocation is kept for a while.
    pods = Pod.objects.filter(origin=Pod.REMNANT)
    assert [pod.name.partition("~")[0] for pod in pods] == ["ends"]
    pods.update(not_before=timezone.now() - timedelta(seconds=1))
    assert release_orphaned_pods(cluster.pk) == 1
    asked = {"stays": 3000, "waits": 2000, "since": 5000}
    held = Counter(dict.fromkeys(("n1", "n2"), 0))
    for name, node in before.items():
        held[node] += asked[name]
    assert {node.name: node.requested.get(CPU, 0) for node in Node.objects.all()} == dict(held)
    assert check_invariants() == []

    # 10 of 16 CPUs are used, so pods of 2 CPUs take exactly the remaining CPUs of each node.
    create(api, follower, **{f"new-{number}": "2" for number in range(4)})
    decide(cluster)
    after = bound(plane)
    assert before.items() <= after.items()
    fitting = sum((8000 - held[node]) // 2000 for node in held)
    assert len(after) - len(before) == fitting
    assert check_invariants() == []
    follower.ended.set()
