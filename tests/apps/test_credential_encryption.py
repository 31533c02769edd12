"""A live cluster's credentials are stored encrypted, decrypted for calls, and never part of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from django.core import serializers
from django.core.management import call_command
from django.db import connections as databases

from hetsched.adapters.exec_credentials import kept_credential
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections import connection
from hetsched.contracts.errors import InputError
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import api_of, check_identity, connect, discovery_api, purpose_of
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.scheduling.leases import following
from hetsched.storage.sealed_secrets import seal, unseal
from tests.unit.adapters.kubeconfigs import kubeconfig

CANARY = "canary-5f2d"


@pytest.fixture(autouse=True)
def key(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_CLUSTER_HOSTS = []
    monkeypatch.setattr(connections, "_apis", {})


@pytest.fixture
def live(db: None) -> Cluster:
    return create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)


def connected(cluster: Cluster, **how: Any) -> Connection:
    return connect(cluster, actor=SYSTEM, reason="for the tests", **({"kubeconfig": kubeconfig()} | how))


def test_sealed_text_opens_with_its_key_and_purpose_only(settings: Any) -> None:
    sealed = seal(CANARY, purpose="one")
    assert CANARY not in sealed
    assert unseal(sealed, purpose="one") == CANARY
    with pytest.raises(InputError, match="SecretKeyChanged"):
        unseal(sealed, purpose="another")
    settings.SECRET_KEY = "another key of more than forty characters, all of them random"
    with pytest.raises(InputError, match="SecretKeyChanged"):
        unseal(sealed, purpose="one")


def test_temporary_key_encrypts_no_credentials(settings: Any, live: Cluster) -> None:
    settings.SECRET_KEY_GIVEN = False
    with pytest.raises(InputError, match="SecretKeyMissing"):
        connected(live)
    assert not Connection.objects.exists()


def test_credentials_appear_in_no_row_text_or_audit_entry(live: Cluster, capsys: Any) -> None:
    connection = connected(live, kubeconfig=json.dumps(kubeconfig()), enrolled_namespaces=["team-b", "team-a"])
    assert (connection.server, connection.enrolled_namespaces) == (
        "https://api.example.org:6443",
        ["team-a", "team-b"],
    )
    entry = AuditEntry.objects.get(action="cluster.connect")
    expected = {"server": "api.example.org:6443", "namespaces": ["team-a", "team-b"]}
    assert entry.details == {**expected, "shadowOf": "", "readPullSecrets": False, "discovers": False}
    call_command("dumpdata")
    texts = [repr(connection), str(connection), serializers.serialize("json", [connection]), capsys.readouterr().out]
    assert all(CANARY not in text for text in texts)


def test_sealed_kubeconfig_cannot_be_opened_for_another_cluster(live: Cluster) -> None:
    sealed = connected(live).sealed_kubeconfig
    other = create_cluster(name="other", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=other, sealed_kubeconfig=sealed, server="https://api.example.org:6443")
    assert api_of(live) is api_of(live)
    with pytest.raises(InputError, match="SecretKeyChanged"):
        api_of(other)


def test_new_connection_ends_the_old_informers_lease(live: Cluster) -> None:
    connected(live)
    lease = following.take(live.pk, "follower")
    assert lease is not None
    before = api_of(live)
    connected(live)  # the same credentials again, as at the next start of a process
    assert following.renew(lease)
    assert api_of(live) is before
    assert AuditEntry.objects.filter(action="cluster.connect").count() == 1
    connected(live, kubeconfig=kubeconfig(cluster={"server": "https://two.example.org"}))
    assert not following.renew(lease)
    assert api_of(live) is not before


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
        pool.submit(databases.close_all).result()


def run_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], None]) -> None:
    """Run an action once, before the next call of a function."""
    original = getattr(owner, name)

    def replacement(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        action()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, replacement)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("server", ["https://api.example.org:6443", "https://two.example.org"])
def test_threads_that_connect_at_the_same_time_share_the_newest_client(
    live: Cluster, other_thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """A standby that has another client than the informer cannot take over without a list."""
    connected(live)
    others: list[Future[Api]] = []

    def connect_in_another_thread() -> None:
        connected(live, kubeconfig=kubeconfig(cluster={"server": server}))
        others.append(other_thread.submit(api_of, live))
        wait(others, timeout=0.3)

    run_before(monkeypatch, connection, "from_kubeconfig", connect_in_another_thread)
    first = api_of(live)
    newest = api_of(live)
    assert others[0].result() is newest
    assert (first is newest) == (server == "https://api.example.org:6443")


@pytest.mark.django_db(transaction=True)
def test_thread_with_an_older_row_does_not_restore_its_token(
    live: Cluster, other_thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected(live, kubeconfig=kubeconfig(user={"token": "first"}))
    api = api_of(live)
    connected(live, kubeconfig=kubeconfig(user={"token": "second"}))
    others: list[Future[Api]] = []

    def renew_in_another_thread() -> None:
        connected(live, kubeconfig=kubeconfig(user={"token": "third"}))
        others.append(other_thread.submit(api_of, live))
        wait(others, timeout=0.3)

    run_before(monkeypatch, Api, "use_token", renew_in_another_thread)
    assert api_of(live) is api
    assert others[0].result() is api
    assert api._headers()["Authorization"] == "Bearer third"


def test_undecryptable_connection_can_be_replaced(live: Cluster, settings: Any) -> None:
    connected(live)
    settings.SECRET_KEY = "another key of more than forty characters, all of them random"
    with pytest.raises(InputError, match="SecretKeyChanged"):
        api_of(live)
    connected(live)
    assert isinstance(api_of(live), Api)


def test_namespaces_are_enrolled_without_the_credentials_of_before(live: Cluster) -> None:
    connected(live)
    lease = following.take(live.pk, "follower")
    assert lease is not None
    changed = connected(live, kubeconfig=None, enrolled_namespaces=["team"])
    assert (changed.enrolled_namespaces, changed.server) == (["team"], "https://api.example.org:6443")
    assert following.renew(lease)


WRONG = [
    ({"kubeconfig": None}, "ConnectionUnclear"),
    ({"in_cluster": True}, "ConnectionUnclear"),
    ({"reason": " "}, "ReasonMissing"),
    ({"enrolled_namespaces": ["Team"]}, "NamespaceInvalid"),
    ({"enrolled_namespaces": [".."]}, "NamespaceInvalid"),
    ({"context": "none"}, "KubeconfigContextUnknown"),
    ({"kubeconfig": kubeconfig(user={"tokenFile": "/etc/passwd"})}, "KubeconfigRefused"),
]


@pytest.mark.parametrize(("how", "code"), WRONG)
def test_invalid_connection_changes_nothing(live: Cluster, how: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError, match=code):
        connect(live, **({"kubeconfig": kubeconfig(), "actor": SYSTEM, "reason": "x"} | how))
    assert not Connection.objects.exists()
    assert not AuditEntry.objects.filter(action="cluster.connect").exists()


def test_only_live_clusters_are_connected(db: None) -> None:
    with pytest.raises(InputError, match="ClusterNotLive"):
        connected(create_cluster(name="files", actor=SYSTEM))


@pytest.mark.parametrize(
    ("allowed", "taken"), [("api.example.org", True), ("api.example.org:6443", True), ("x", False)]
)
def test_deployment_allows_api_servers(live: Cluster, settings: Any, allowed: str, taken: bool) -> None:
    settings.HETSCHED_CLUSTER_HOSTS = [allowed]
    if taken:
        assert isinstance(_api(live), Api)
    else:
        with pytest.raises(InputError, match="ClusterHostNotAllowed"):
            connected(live)


def _api(live: Cluster) -> Api:
    connected(live)
    return api_of(live)


class Answering:
    """An API server whose namespace kube-system has this uid."""

    def __init__(self, uid: str) -> None:
        self.uid = uid

    def get(self, path: str) -> bytes:
        assert path == "/api/v1/namespaces/kube-system"
        return json.dumps({"metadata": {"uid": self.uid}}).encode()


def test_connection_to_another_cluster_is_rejected(live: Cluster) -> None:
    connected(live)
    first: Any = Answering("u-1")
    second: Any = Answering("u-2")
    assert check_identity(live, first) == check_identity(live, first) == "u-1"
    connected(live)
    with pytest.raises(InputError, match="AnotherCluster"):
        check_identity(live, second)


def test_one_cluster_is_not_scheduled_under_two_names(live: Cluster) -> None:
    connected(live)
    server: Any = Answering("u-1")
    check_identity(live, server)
    twin = create_cluster(name="twin", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connected(twin)
    with pytest.raises(InputError, match="already connected as cluster live"):
        check_identity(twin, server)


def test_shadow_connection_to_a_scheduled_cluster_is_allowed(live: Cluster) -> None:
    connected(live)
    server: Any = Answering("u-1")
    check_identity(live, server)
    shadow = create_cluster(name="shadow", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connected(shadow)
    Connection.objects.filter(cluster=shadow).update(shadow_of="default-scheduler")
    assert check_identity(shadow, server) == "u-1"


def test_discovery_kubeconfig_is_encrypted_separately_and_removable(live: Cluster) -> None:
    connected(live, kubeconfig=kubeconfig())
    api, reason = discovery_api(live)
    assert reason == "the connection has no kubeconfig for discovery"
    connection = connected(live, discovery_kubeconfig=kubeconfig())
    assert CANARY not in connection.sealed_discovery_kubeconfig
    with pytest.raises(InputError, match="SecretKeyChanged"):
        unseal(connection.sealed_discovery_kubeconfig, purpose="kubeconfig of live")
    own, reason = discovery_api(live)
    assert reason == ""
    assert own is not api
    assert AuditEntry.objects.filter(action="cluster.connect").latest("id").details["discovers"] is True
    assert connected(live, discovery_kubeconfig="").sealed_discovery_kubeconfig == ""
    connected(live, discovery_kubeconfig=kubeconfig(), shadow_of="default-scheduler")
    assert discovery_api(live)[1] == "the cluster is in shadow mode: default-scheduler places its pods"


def test_program_for_credentials_needs_the_permission_of_the_installation(
    live: Cluster, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_credential, "_kept", {})
    version = "client.authentication.k8s.io/v1"
    status = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": CANARY}}
    (tmp_path / "answer").write_text(json.dumps(status))
    user = {"exec": {"apiVersion": version, "command": "cat", "args": [str(tmp_path / "answer")]}}
    with pytest.raises(InputError, match="runs no program"):
        connected(live, kubeconfig=kubeconfig(user=user))
    settings.HETSCHED_EXEC_CREDENTIALS = ["/bin/cat"]
    connection = connected(live, kubeconfig=kubeconfig(user=user))
    entry = AuditEntry.objects.get(action="cluster.connect")
    assert entry.details["programs"] == {"connection": "cat"}
    assert api_of(live)._headers()["Authorization"] == f"Bearer {CANARY}"
    assert CANARY not in f"{unseal(connection.sealed_kubeconfig, purpose=purpose_of(live))} {entry.details}"

    connections._apis.clear()
    settings.HETSCHED_EXEC_CREDENTIALS = []  # the permission is withdrawn
    (check,) = [check for check in check_cluster(live) if check.check == "connection"]
    assert not check.ok
    assert "[KubeconfigRefused]" in check.detail
    assert "HETSCHED_EXEC_CREDENTIALS" in check.detail
