"""hetsched and the real kube-scheduler share nodes at the same time: no pod is lost, nothing is charged twice.

The other scheduler does not know our placements that are not bound yet, so its pods may overcommit a node; hetsched
must never add to this.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.scene import an_informer, eventually, make_node, make_pod, states
from workers import schedule

pytestmark = [pytest.mark.chaos, pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
NODES, EACH = 4, 20  # 40 pods of 500m on 4 nodes of 8 CPUs: 20 of 32 CPUs


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    for number in range(NODES):
        make_node(api, f"n{number}")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == NODES)
    follower._write_sync()
    yield follower
    follower.ended.set()


def test_both_schedulers_place_all_pods_without_double_charges(
    api: Api, cluster: Cluster, foreign: None, followed: Informer
) -> None:
    for number in range(EACH):
        make_pod(api, f"ours-{number}", cpu="500m")
        make_pod(api, f"theirs-{number}", cpu="500m", schedulerName="default-scheduler")

    def on() -> bool:
        followed._write_sync()
        schedule.run(cluster.pk)
        binding_cycle.run(cluster.pk)
        assert check_invariants() == []
        return Counter(states().values()) == {"bound": EACH, "running": EACH}

    eventually(followed, on, 60)
    pods = json.loads(api.get(PODS.path(namespace="default")))["items"]
    there = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    reservations = Reservation.objects.filter(active=True).values_list("pod__name", "node__name")
    assert sorted(reservations) == sorted(there.items())
    ours = [pod for pod in pods if pod["metadata"]["name"].startswith("ours")]
    assert all("hetsched.io/allocation" in pod["metadata"]["annotations"] for pod in ours)
    assert sum(Node.objects.values_list("pods", flat=True)) == 2 * EACH
