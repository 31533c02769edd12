"""Stored service account tokens are renewed by a real API server before they end.

The decision when to renew uses the time that a test passes, because the shortest token lives for ten minutes. Real
here: the TokenRequest API, and RBAC with the role of `deploy/renewal`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from django.conf import LazySettings
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.access_review import Right, ask
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.connections.service_account_tokens import ACCOUNTS, TokenClaims, claims_of
from hetsched.inventory import connections, token_renewal
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import api_of, connect, purpose_of
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.token_renewal import renew_tokens, renewal_time
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.storage.sealed_secrets import unseal
from tests.builtins import builtin_policies
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.system.processes import ROOT
from web.api.monitoring.fleet import Fleet

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
FOLDER = Path(ROOT) / "deploy" / "renewal"
RENEW = Right("renew", "create", ACCOUNTS, "token", name="hetsched", namespace="hetsched")
LIFETIME = timedelta(minutes=10)
ACCOUNT = "/api/v1/namespaces/hetsched/serviceaccounts/hetsched/token"
RBAC = f"{access.RBAC}/namespaces/hetsched"
PATHS = {"Role": f"{RBAC}/roles", "RoleBinding": f"{RBAC}/rolebindings"}


def new_token(plane: ControlPlane, **spec: Any) -> str:
    body = {"spec": {"expirationSeconds": int(LIFETIME.total_seconds()), **spec}}
    token: str = plane.call("POST", ACCOUNT, body)["status"]["token"]
    return token


def kubeconfig_of(plane: ControlPlane, token: str) -> dict[str, Any]:
    return {**plane.kubeconfig(), "users": [{"name": "admin", "user": {"token": token}}]}


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[None]:
    with access.granted(plane):
        yield


@pytest.fixture
def token(plane: ControlPlane, account: None) -> str:
    return new_token(plane)


@pytest.fixture
def live(plane: ControlPlane, token: str, db: None, settings: LazySettings, monkeypatch: Any) -> Cluster:
    """Return a cluster connected with a token of ten minutes."""
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connect(cluster, kubeconfig=kubeconfig_of(plane, token), actor=SYSTEM, reason="test")
    return cluster


@pytest.fixture
def renewable(plane: ControlPlane, live: Cluster) -> Iterator[None]:
    """Grant the role, and wait until the API server applies it."""
    items = list(yaml.safe_load_all((FOLDER / "scheduler.yaml").read_text()))
    ours = Api(from_kubeconfig(access.as_account(plane, "hetsched")))
    try:
        for item in items:
            plane.call("POST", PATHS[item["kind"]], item)
        until = time.monotonic() + 30
        while not is_granted(ours):
            assert time.monotonic() < until, "the role did not take effect"
            time.sleep(0.1)
        yield
    finally:
        for item in items:
            plane.call("DELETE", f"{PATHS[item['kind']]}/{item['metadata']['name']}")
        until = time.monotonic() + 30
        while is_granted(ours):
            assert time.monotonic() < until, "the role is still granted"
            time.sleep(0.1)


def is_granted(api: Api) -> bool:
    """Return whether the account may create a token of itself."""
    return all(review.granted for review in ask(api, namespaces=(), rights=[RENEW]))


def stored_token(cluster: Cluster) -> str:
    sealed = Connection.objects.get(cluster=cluster).sealed_kubeconfig
    document = msgspec.json.decode(unseal(sealed, purpose=purpose_of(cluster)))
    return str(document["users"][0]["user"]["token"])


def claims(token: str) -> TokenClaims:
    found = claims_of(token)
    assert found is not None
    return found


def due_time(cluster: Cluster, token: str) -> datetime:
    return renewal_time(claims(token), cluster.connection.installation)


def test_token_is_renewed_when_it_is_due(live: Cluster, token: str, renewable: None) -> None:
    api, due = api_of(live), due_time(live, token)
    share = (due - claims(token).issued_at) / LIFETIME
    assert 0.75 <= share <= 0.85
    assert renew_tokens(due - timedelta(seconds=1)) == 0
    assert stored_token(live) == token
    time.sleep(1.1)  # tokens of one second are equal
    assert renew_tokens(due) == 1
    fresh = stored_token(live)
    old, new = claims(token), claims(fresh)
    assert (new.namespace, new.account, new.audiences, new.lifetime) == (
        "hetsched",
        "hetsched",
        old.audiences,
        LIFETIME,
    )
    assert new.expires_at > old.expires_at
    # The client of running informers continues with the new token.
    assert api_of(live) is api
    assert api._headers()["Authorization"] == f"Bearer {fresh}"
    assert api.get("/api/v1/namespaces/kube-system")
    (state,) = Connection.objects.get(cluster=live).stored_tokens
    assert (state.purpose, state.account, state.failure) == ("connection", "hetsched/hetsched", "")
    assert datetime.fromisoformat(state.expires_at) == new.expires_at
    entry = AuditEntry.objects.filter(action="cluster.renew-token").get()
    stored = Connection.objects.filter(cluster=live).values().get()
    for value in (*stored.values(), *vars(entry).values()):
        assert token not in str(value)
        assert fresh not in str(value)


def test_missing_right_is_reported_with_the_end_of_the_token(live: Cluster, token: str) -> None:
    assert renew_tokens(due_time(live, token)) == 0
    assert stored_token(live) == token
    (state,) = Connection.objects.get(cluster=live).stored_tokens
    assert state.failure.startswith("403 Forbidden")
    live.refresh_from_db()
    (check,) = [check for check in check_cluster(live) if check.check == "token of connection"]
    assert not check.ok
    assert state.expires_at in check.detail
    samples = {sample.name: sample.value for family in Fleet().collect() for sample in family.samples}
    assert samples["hetsched_token_renewal_failed"] == 1
    assert samples["hetsched_token_expiry_timestamp_seconds"] == claims(token).expires_at.timestamp()


def test_kubeconfig_that_was_entered_in_the_meantime_is_kept(
    plane: ControlPlane, live: Cluster, token: str, renewable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, request = new_token(plane, audiences=claims(token).audiences), token_renewal._requested_token

    def requested(*arguments: Any) -> Any:
        connect(live, kubeconfig=kubeconfig_of(plane, entered), actor=SYSTEM, reason="test")
        return request(*arguments)

    monkeypatch.setattr(token_renewal, "_requested_token", requested)
    time.sleep(1.1)
    assert renew_tokens(due_time(live, token)) == 0
    assert stored_token(live) == entered


def test_token_of_a_pod_is_not_renewed(plane: ControlPlane, live: Cluster, renewable: None) -> None:
    """A token that is not bound to the pod would stay valid after the pod ends."""
    pods = "/api/v1/namespaces/hetsched/pods"
    spec = {"serviceAccountName": "hetsched", "containers": [{"name": "c", "image": "x"}]}
    pod = plane.call("POST", pods, {"metadata": {"name": "holder"}, "spec": spec})
    owner = {"kind": "Pod", "apiVersion": "v1", "name": "holder", "uid": pod["metadata"]["uid"]}
    bound = new_token(plane, boundObjectRef=owner)
    try:
        connect(live, kubeconfig=kubeconfig_of(plane, bound), actor=SYSTEM, reason="test")
        assert renew_tokens(timezone.now() + LIFETIME) == 0
        (state,) = Connection.objects.get(cluster=live).stored_tokens
        assert "ends with its Pod" in state.failure
    finally:
        plane.call("DELETE", f"{pods}/holder?gracePeriodSeconds=0")


def test_shadow_mode_renews_too(live: Cluster, token: str, renewable: None) -> None:
    connect(live, shadow_of="default-scheduler", actor=SYSTEM, reason="test")
    time.sleep(1.1)
    assert renew_tokens(due_time(live, token)) == 1
    assert stored_token(live) != token


def test_roles_permit_only_tokens_of_the_same_account() -> None:
    accounts = set()
    for path in FOLDER.glob("*.yaml"):
        role, binding = yaml.safe_load_all(path.read_text())
        (subject,) = binding["subjects"]
        assert role["rules"] == [
            {
                "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [subject["name"]],
                "verbs": ["create"],
            }
        ]  # fmt: skip
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        accounts.add(subject["name"])
    assert accounts == {"hetsched", "hetsched-shadow", "hetsched-discovery"}
