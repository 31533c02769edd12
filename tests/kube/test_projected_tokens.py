"""Agents authenticate with projected tokens; the API server that issued them names the agent's node.

Real here: service accounts, tokens bound to pods, TokenReview, and the permission of our own account for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.service_account_tokens import TOKEN_REVIEWS, TokenHolder, holder_of
from hetsched.contracts.messages.agent_message import AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineIsa
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connections import api_of, connect
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.journal.audit import SYSTEM
from tests.builders import a_node
from tests.builtins import builtin_policies
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import make_node

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
ACCOUNTS = "/api/v1/namespaces/hetsched/serviceaccounts"
PODS = "/api/v1/namespaces/hetsched/pods"


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    with access.granted(plane) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def live(api: Api, account: dict[str, Any], db: None, settings: LazySettings, monkeypatch: Any) -> Cluster:
    """Return a cluster connected with our account, with node n1."""
    settings.SECRET_KEY_GIVEN = settings.HETSCHED_AGENT_KEYS_OVER_HTTP = True
    monkeypatch.setattr(connections, "_apis", {})
    cache.clear()
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connect(cluster, kubeconfig=account, actor=SYSTEM, reason="test")
    report = a_node("n1").build()
    Node.objects.create(cluster=cluster, name="n1", report=report, pool="general", updated_at="2026-11-21T10:00:00Z")
    make_node(api, "n1")
    return cluster


@pytest.fixture
def pods(plane: ControlPlane, account: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Create a pod for each of two accounts on n1; yield their UIDs by account."""
    found = {}
    for name in ("hetsched-agent", "stranger"):
        plane.call("POST", ACCOUNTS, {"metadata": {"name": name}})
        spec = {"nodeName": "n1", "serviceAccountName": name, "containers": [{"name": "c", "image": "x"}]}
        found[name] = plane.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})["metadata"]["uid"]
    yield found
    for name in found:
        plane.call("DELETE", f"{ACCOUNTS}/{name}")
        if plane.call("GET", PODS)["items"]:
            plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")


def token(plane: ControlPlane, name: str, uid: str = "", audience: str = "hetsched") -> str:
    """Return a token as a kubelet projects it, or one without a pod."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if uid:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    made: str = plane.call("POST", f"{ACCOUNTS}/{name}/token", {"spec": spec})["status"]["token"]
    return made


def report(bearer: str, node: str = "n1") -> tuple[int, str]:
    agent_report = AgentReport(node, MachineIsa("x86", "x86-64-v3"), None, None, None)
    message = AgentMessage(node, "i", "2026-11-21T10:00:00Z", 1, digest_of(agent_report), agent_report)
    client = Client(headers={"authorization": f"Bearer {bearer}"})
    address = "/api/v1/agent/reports/?cluster=live"
    answer = client.generic("POST", address, msgspec.json.encode(message), content_type="application/json")
    return answer.status_code, answer.json().get("code", "")


def test_token_of_a_pod_authenticates_its_node(plane: ControlPlane, live: Cluster, pods: dict[str, str]) -> None:
    since = len(plane.audited())
    own = token(plane, "hetsched-agent", pods["hetsched-agent"])
    assert holder_of(api_of(live), own) == TokenHolder("hetsched:hetsched-agent", "hetsched-agent", "n1")
    assert report(own) == (200, "")
    assert report(own, "n2") == (403, "NodeNotYours")
    assert Node.objects.get(name="n1").report.isa.native == "x86-64-v3"
    used = {(call["objectRef"]["resource"], call["verb"]) for call in plane.audited()[since:] if "objectRef" in call}
    assert used == {(TOKEN_REVIEWS.plural, "create")}


def test_other_tokens_do_not_authenticate_a_node(plane: ControlPlane, live: Cluster, pods: dict[str, str]) -> None:
    uid = pods["hetsched-agent"]
    for other in (
        token(plane, "hetsched-agent"),  # without a pod
        token(plane, "hetsched-agent", uid, audience="https://kubernetes.default.svc"),
        token(plane, "stranger", pods["stranger"]),
        token(plane, "hetsched-agent", uid)[:-8] + "AAAAAAAA",  # with an invalid signature
    ):
        assert report(other) == (401, "TokenInvalid")


def test_token_of_a_deleted_pod_is_rejected(plane: ControlPlane, live: Cluster, pods: dict[str, str]) -> None:
    own = token(plane, "hetsched-agent", pods["hetsched-agent"])
    plane.call("DELETE", f"{PODS}/hetsched-agent?gracePeriodSeconds=0")
    assert report(own) == (401, "TokenInvalid")
