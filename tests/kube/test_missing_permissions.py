"""The test of a live cluster names each missing permission and each source that does not respond."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import Check, check_cluster
from hetsched.inventory.connections import api_of, connect
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.scheduling import informer_process

from .control_plane import ControlPlane

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db(transaction=True)]
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(autouse=True)
def key(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})


@pytest.fixture
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Return the kubeconfig of a service account that may read nodes and pods, and bind."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "looker", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"}
    plane.call("POST", ACCOUNTS, {"metadata": {"name": "looker"}})
    plane.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "looker"}, "rules": rules})
    binding = {"metadata": {"name": "looker"}, "subjects": [subject], "roleRef": role}
    plane.call("POST", f"{RBAC}/clusterrolebindings", binding)
    token = plane.call("POST", f"{ACCOUNTS}/looker/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    yield {**plane.kubeconfig(), "users": [{"name": "admin", "user": {"token": token}}]}
    for path in (f"{ACCOUNTS}/looker", f"{RBAC}/clusterroles/looker", f"{RBAC}/clusterrolebindings/looker"):
        plane.call("DELETE", path)


def connected(kubeconfig: dict[str, Any]) -> Cluster:
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connect(cluster, kubeconfig=kubeconfig, enrolled_namespaces=["team"], actor=SYSTEM, reason="test")
    return cluster


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.check: check.detail for check in checks if not check.ok}


def test_administrator_only_lacks_an_informer(plane: ControlPlane) -> None:
    checks = check_cluster(connected(plane.kubeconfig()))
    assert list(failed(checks)) == ["follower"]
    assert [check.check for check in checks][:2] == ["API server", "identity"]


def test_each_missing_permission_of_the_account_is_named(account: dict[str, Any]) -> None:
    missing = failed(check_cluster(connected(account)))
    assert {"right to list runtimeclasses.node.k8s.io", "right to create pods/eviction"} <= set(missing)
    assert missing["right to create jobs.batch"].startswith("required to submit in namespace team")
    granted = {"right to list nodes", "right to watch pods", "right to create pods/binding"}
    assert not granted & set(missing)
    assert "right to get namespaces kube-system" not in missing
    # These kinds are not installed here, so no permission for them is missing.
    assert not any("nodegpus" in name for name in missing)


def test_rejected_token_is_reported_and_its_cluster_is_not_watched(plane: ControlPlane) -> None:
    cluster = connected({**plane.kubeconfig(), "users": [{"name": "admin", "user": {"token": "wrong"}}]})
    assert "401" in failed(check_cluster(cluster))["API server"]
    ended = threading.Event()
    watching = threading.Thread(target=informer_process.main, args=(api_of, ended))
    watching.start()
    try:
        for _ in range(100):
            failure = Connection.objects.get().failure
            if failure:
                break
            ended.wait(0.1)
        assert "401" in failure
        assert "wrong" not in failure
    finally:
        ended.set()
        watching.join(30)
    assert "401" in failed(check_cluster(cluster))["follower"]
