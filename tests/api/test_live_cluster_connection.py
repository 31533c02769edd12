"""`POST clusters/` takes a kubeconfig, and no response ever returns it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.objects.observed import Quarantined
from hetsched.inventory import connections
from hetsched.inventory.models import Cluster, Connection, Sync
from hetsched.journal.models import AuditEntry
from hetsched.scheduling.leases import following
from tests.unit.adapters.kubeconfigs import kubeconfig

from .conftest import Api

CANARY = "canary-5f2d"
NEW = {"name": "live", "kind": "kubernetes", "kubeconfig": kubeconfig(), "namespaces": ["team"], "reason": "to run on"}


@pytest.fixture(autouse=True)
def key(settings: Any, monkeypatch: pytest.MonkeyPatch, policies: None) -> None:
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})


@pytest.fixture
def live(operator: Api) -> Cluster:
    operator("POST", "clusters/", NEW, status=201)
    return Cluster.objects.get(name="live")


@pytest.mark.parametrize("given", [kubeconfig(), json.dumps(kubeconfig())])
def test_kubeconfig_is_never_returned(operator: Api, given: Any) -> None:
    made = operator("POST", "clusters/", {**NEW, "kubeconfig": given}, status=201)
    shown = operator("GET", "clusters/live/", status=200)
    assert (made["ETag"], made.json()) == (shown["ETag"], shown.json())
    assert shown.json()["kind"] == "kubernetes"
    connection = shown.json()["connection"]
    stale = connection.pop("stale")
    assert (stale["reason"], stale["since"]) == ("no process watches the cluster", shown.json()["createdAt"])
    assert connection == {
        "server": "api.example.org:6443", "namespaces": ["team"], "shadowOf": None, "factsAt": None, "follower": None,
        "failure": "", "followEpoch": 1, "resources": [], "policies": [], "readPullSecrets": False,
    }  # fmt: skip
    texts = [made, shown, operator("GET", "clusters/")]
    assert all(CANARY.encode() not in answer.content for answer in texts)
    entry = AuditEntry.objects.get(action="cluster.connect")
    assert (entry.role, entry.reason, CANARY in str(entry.details)) == ("operator", "to run on", False)


def test_in_cluster_needs_no_kubeconfig(operator: Api) -> None:
    new = {"name": "home", "kind": "kubernetes", "inCluster": True, "reason": "x"}
    assert operator("POST", "clusters/", new, status=201).json()["connection"]["server"] == "in-cluster"


WRONG = [
    ({"kubeconfig": None}, 400, "ConnectionUnclear", "kubeconfig"),
    ({"inCluster": True}, 400, "ConnectionUnclear", "inCluster"),
    ({"kind": "offline"}, 409, "ClusterNotLive", ""),
    ({"kubeconfig": kubeconfig(user={"exec": {"command": "sh"}})}, 400, "KubeconfigRefused", "users.user.exec"),
    ({"kubeconfig": "a: &a [*a]"}, 400, "YamlAliasRefused", "kubeconfig#1 line 1"),
    ({"namespaces": ["../x"]}, 400, "NamespaceInvalid", "namespaces"),
    ({"context": "none"}, 400, "KubeconfigContextUnknown", "current-context"),
]


@pytest.mark.parametrize(("changed", "status", "code", "place"), WRONG)
def test_invalid_connection_creates_no_cluster(
    operator: Api, changed: dict[str, Any], status: int, code: str, place: str
) -> None:
    problem = operator("POST", "clusters/", NEW | changed, status=status).json()
    assert (problem["code"], problem.get("place", "")) == (code, place)
    assert CANARY not in str(problem)
    assert not Cluster.objects.exists()


def test_followers_ages_and_unreadable_objects_are_shown(live: Cluster, operator: Api, api: Callable[..., Api]) -> None:
    lease = following.take(live.pk, "host/7")
    assert lease is not None
    now = timezone.now()
    odd = (Quarantined("pods", "team/odd", "PodMalformed", "x"), Quarantined("pods", "rest/odd", "PodMalformed", "y"))
    Sync.objects.create(
        cluster=live, resource="pods", epoch=lease.epoch, synced_at=now, alive_at=now - timedelta(seconds=30),
        objects_count=7, quarantined=odd,
    )  # fmt: skip
    shown = operator.get("clusters/live/")["connection"]
    assert (shown["follower"], shown["followEpoch"]) == ("host/7", 2)
    (pods,) = shown["resources"]
    assert (pods["resource"], pods["objects"], round(pods["ageSeconds"])) == ("pods", 7, 30)
    assert [item["name"] for item in pods["quarantined"]] == ["team/odd", "rest/odd"]
    (pods,) = api("viewer", "team").get("clusters/live/")["connection"]["resources"]
    assert [item["name"] for item in pods["quarantined"]] == ["team/odd"]


def test_connection_is_replaced_only_with_its_tag(live: Cluster, operator: Api) -> None:
    address = "clusters/live/connection/"
    tag = operator.tag("clusters/live/")
    body = {"namespaces": ["team", "more"], "reason": "more room"}
    operator("PUT", address, body, status=428)
    assert operator("PUT", address, body, if_match=tag, status=200).json()["namespaces"] == ["more", "team"]
    operator("PUT", address, body, if_match=tag, status=412)
    elsewhere = {"kubeconfig": kubeconfig(cluster={"server": "https://two.example.org"}), "reason": "moved"}
    moved = operator("PUT", address, elsewhere, if_match=operator.tag("clusters/live/"), status=200).json()
    assert (moved["server"], moved["namespaces"]) == ("two.example.org:443", ["more", "team"])


def test_pull_secrets_are_read_only_where_enabled(live: Cluster, operator: Api) -> None:
    tag = operator.tag("clusters/live/")
    body = {"readPullSecrets": True, "reason": "private images"}
    assert not operator.get("clusters/live/")["connection"]["readPullSecrets"]
    assert operator("PUT", "clusters/live/connection/", body, if_match=tag, status=200).json()["readPullSecrets"]
    operator("PUT", "clusters/live/connection/", body, if_match=tag, status=412)


def test_discovery_kubeconfig_is_never_shown(live: Cluster, operator: Api) -> None:
    body = {"discoveryKubeconfig": kubeconfig(), "reason": "labels"}
    answered = operator(
        "PUT", "clusters/live/connection/", body, if_match=operator.tag("clusters/live/"), status=200
    ).json()
    assert "canary" not in str(answered)
    assert Connection.objects.get().sealed_discovery_kubeconfig
    gone = {"discoveryKubeconfig": "", "reason": "no labels"}
    operator("PUT", "clusters/live/connection/", gone, if_match=operator.tag("clusters/live/"), status=200)
    assert Connection.objects.get().sealed_discovery_kubeconfig == ""


def test_nothing_is_imported_into_a_live_cluster(live: Cluster, operator: Api) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    problem = operator("POST", "clusters/live/import/?reason=x", node, if_match="*", status=409).json()
    assert problem["code"] == "ClusterIsLive"


def test_offline_cluster_has_no_connection_test(cluster: Cluster, operator: Api) -> None:
    assert operator.get("clusters/lab/")["connection"] is None
    tested = operator("POST", "clusters/lab/test/", {}, status=200).json()
    assert tested == {"cluster": "lab", "ok": True, "checks": []}


def test_unreachable_server_is_named(operator: Api) -> None:
    # Port 1 of this machine: no process listens there.
    here = kubeconfig(cluster={"server": "https://127.0.0.1:1"})
    operator("POST", "clusters/", NEW | {"kubeconfig": here}, status=201)
    tested = operator("POST", "clusters/live/test/", {}, status=200).json()
    assert not tested["ok"]
    assert [(check["check"], check["ok"]) for check in tested["checks"]] == [
        ("API server", False), ("follower", False), ("discovery", True),
    ]  # fmt: skip


def test_changed_key_is_reported(live: Cluster, operator: Api) -> None:
    Connection.objects.update(sealed_kubeconfig="gAAAAA")
    (first, *_) = operator("POST", "clusters/live/test/", {}, status=200).json()["checks"]
    assert (first["check"], "SecretKeyChanged" in first["detail"]) == ("connection", True)
