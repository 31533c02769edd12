"""A cluster in shadow mode of the real kube-scheduler: its choices are compared, and nothing is written.

Real here: kube-scheduler, RBAC of the API server with the account of `deploy/shadow`, and its audit log.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import LazySettings

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.access_review import RIGHTS, ask
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import api_of, connect
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import shadow_decisions
from hetsched.placement.models import Decision, Reservation, Shadow
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.shadow_report import summary
from tests.builtins import builtin_policies
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from tests.system.processes import ROOT
from workers import bind, create, evict, report, schedule, shadow, sweep

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver", "kube-scheduler"), pytest.mark.django_db]
MANIFESTS = sorted((Path(ROOT) / "deploy" / "shadow").glob("*.yaml"))
READING = ("get", "list", "watch")
PODS_OF_THEIRS = 12


def shipped_objects() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


@pytest.fixture
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Return the kubeconfig of the read-only account."""
    if access.NAMESPACE not in {item["metadata"]["name"] for item in plane.call("GET", "/api/v1/namespaces")["items"]}:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": access.NAMESPACE}})
    shipped = shipped_objects()
    try:
        for item in shipped:
            plane.call("POST", access._COLLECTIONS[item["kind"]], item)
        kubeconfig = access.as_account(plane, "hetsched-shadow")
        reader, until = Api(from_kubeconfig(kubeconfig)), time.monotonic() + 60
        while not all(one.granted for one in ask(reader, namespaces=(), rights=_read_only())):
            assert time.monotonic() < until, "the rights did not come to count"
            time.sleep(0.1)
        yield kubeconfig
    finally:
        for item in shipped:
            plane.call("DELETE", f"{access._COLLECTIONS[item['kind']]}/{item['metadata']['name']}")


def _read_only() -> list[Any]:
    return [right for right in RIGHTS if right.purpose in ("follow", "identify")]


@pytest.fixture
def live(db: None, account: dict[str, Any], settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster connected in shadow mode of Kubernetes' own scheduler."""
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})
    monkeypatch.setattr(shadow_decisions, "_pasts", {})
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connect(cluster, kubeconfig=account, shadow_of="default-scheduler", actor=SYSTEM, reason="test")
    return cluster


def test_account_reads_the_watched_kinds_and_nothing_else() -> None:
    (role,) = [document for document in shipped_objects() if document["kind"] == "ClusterRole"]
    shipped = {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    needed = {(right.resource.group, right.resource.plural, right.verb, right.name) for right in _read_only()}
    assert shipped == needed
    assert {verb for _, _, verb, _ in shipped} <= set(READING)


def is_bound(api: Api, name: str) -> bool:
    return bool(pod_of(api, name)["spec"].get("nodeName"))


def test_bindings_are_compared_without_writes(api: Api, plane: ControlPlane, foreign: None, live: Cluster) -> None:
    for number in range(3):
        make_node(api, f"n{number}")
    make_pod(api, "before", schedulerName="default-scheduler")
    until = time.monotonic() + 60
    while not is_bound(api, "before"):
        assert time.monotonic() < until
        time.sleep(0.1)
    since = len(plane.audited())
    follower = an_informer(api_of(live), live)
    eventually(follower, lambda: Node.objects.count() == 3 and "before" in states())
    follower._write_sync()
    make_pod(api, "ours")
    for number in range(PODS_OF_THEIRS):
        make_pod(api, f"theirs-{number}", cpu=f"{250 * (1 + number % 4)}m", schedulerName="default-scheduler")
    eventually(follower, lambda: Counter(states().values()) == {"running": PODS_OF_THEIRS + 1, "pending": 1}, 60)
    follower._write_sync()

    # Run every task that ever writes to a cluster.
    assert schedule.run(live.pk) == 0
    for task in (bind, report, create, evict):
        assert task.run(live.pk) == 0
    sweep.run()
    while shadow.run(live.pk):
        pass

    judged = Shadow.objects.exclude(judged_at=None)
    assert set(judged.values_list("pod_name", flat=True)) == {f"theirs-{number}" for number in range(PODS_OF_THEIRS)}
    there = {name: pod_of(api, name)["spec"]["nodeName"] for name in judged.values_list("pod_name", flat=True)}
    assert dict(judged.values_list("pod_name", "node_name")) == there
    found = summary(live, Shadow.objects.all())
    assert (found.judged, found.waiting, found.dropped) == (PODS_OF_THEIRS, 0, 0)
    assert found.same + found.equal + found.worse + found.infeasible == PODS_OF_THEIRS
    assert found.infeasible == 0  # three empty nodes have capacity for all
    assert all(row.regret is not None and row.regret >= 0 and row.feasible == 3 for row in judged)
    # All running pods are charged, including the earlier one; only the earlier one is not compared.
    assert Reservation.objects.filter(active=True).count() == PODS_OF_THEIRS + 1
    assert not Decision.objects.exists()
    assert check_invariants() == []

    assert "nodeName" not in pod_of(api, "ours")["spec"]
    assert "conditions" not in pod_of(api, "ours")["status"]
    events = json.loads(api.get("/api/v1/namespaces/default/events"))["items"]
    assert [event for event in events if "hetsched" in json.dumps(event.get("source", {}))] == []
    calls = [call for call in plane.audited()[since:] if "objectRef" in call]
    assert {call["verb"] for call in calls} <= {*READING, "create"}
    asked = [call for call in calls if call["verb"] not in READING]
    assert {call["objectRef"]["resource"] for call in asked} <= {"selfsubjectaccessreviews"}
    assert calls
    follower.ended.set()


def test_shadow_mode_cannot_write(api: Api, account: dict[str, Any], live: Cluster) -> None:
    make_pod(api, "p")
    path = PODS.path(namespace="default", name="p", part="binding")
    body = json.dumps({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}).encode()
    for calls, reason in ((api_of(live), "InShadow"), (Api(from_kubeconfig(account)), "Forbidden")):
        with pytest.raises(ApiFailure) as refused:
            calls.send("POST", path, body)
        assert (refused.value.status, refused.value.reason) == (403, reason)
    assert [check.detail for check in check_cluster(live) if check.check.startswith("right ")] == []


def test_changed_shadow_mode_is_a_new_connection(live: Cluster, account: dict[str, Any]) -> None:
    first = api_of(live)
    connect(live, shadow_of="", actor=SYSTEM, reason="test")
    assert api_of(live) is not first
    connection = connect(live, shadow_of="volcano", actor=SYSTEM, reason="test")
    assert connection.shadow_of == "volcano"
    assert api_of(live) is not first
