"""The discovery account may only write node facts: its permissions, its admission policy, and its calls.

Real here: RBAC, the ValidatingAdmissionPolicy of `deploy/discovery`, and the API server's audit of our calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.connections.access_review import DISCOVERY_RIGHTS, SECRETS, ask
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.node_discovery import MANAGER, REFUSAL
from hetsched.adapters.kubernetes.resources import LEASES, NODE_GPUS, NODES, PODS, TOPOLOGIES
from tests.kube import discovery_account, kinds
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import make
from tests.kube.test_rbac_permissions import grant, listed

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
STATUS = {
    "capacity": {"cpu": "8", "example.com/dongle": "1"},
    "allocatable": {"cpu": "8", "memory": "32Gi"},
    "conditions": [{"type": "Ready", "status": "True"}],
    "nodeInfo": {"kernelVersion": "6.1"},
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
}
MINE = {"labels": {"app.kubernetes.io/managed-by": MANAGER}}


@pytest.fixture(scope="module")
def theirs(plane: ControlPlane) -> Iterator[Api]:
    """Return an API client with the account of discovery."""
    served = kinds.installed(plane, discovery_account.written_kinds())
    with served, discovery_account.discovering(plane) as kubeconfig:
        yield Api(from_kubeconfig(kubeconfig))


@pytest.fixture(autouse=True)
def node(api: Api) -> Iterator[None]:
    """Create a node with the fields that a kubelet and users set."""
    meta = {"labels": {"team": "a", "ARCH": "X86"}, "annotations": {"note": "b"}, "finalizers": ["example.com/keep"]}
    make(api, NODES, "n1", metadata=meta, status=STATUS, spec={"podCIDR": "10.1.0.0/24"})
    yield
    patch(api, {"metadata": {"finalizers": None}})


def patch(api: Api, body: Any, part: str = "", kind: Resource = NODES, name: str = "n1") -> None:
    api.send(
        "PATCH", kind.path(name=name, part=part), json.dumps(body).encode(), content="application/merge-patch+json"
    )


@pytest.mark.parametrize(
    ("part", "body"),
    [
        ("", {"spec": {"unschedulable": True}}),
        ("", {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}),
        ("", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        ("", {"metadata": {"labels": {"node-restriction.kubernetes.io/secure": "yes"}}}),
        ("", {"metadata": {"labels": {"hetsched.io/pool": "mine"}}}),
        ("", {"metadata": {"labels": {"hetsched.io/isa": "rv64gcv"}}}),
        ("", {"metadata": {"labels": {"team": "b"}}}),
        ("", {"metadata": {"labels": {"team": None}}}),
        ("", {"metadata": {"labels": None}}),
        ("", {"metadata": {"annotations": {"note": "c"}}}),
        ("", {"metadata": {"annotations": {"note": None}}}),
        ("", {"metadata": {"annotations": {"scheduling.koordinator.sh/x": "c"}}}),
        ("", {"metadata": {"finalizers": None}}),
        ("", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}}),
        ("status", {"metadata": {"labels": {"team": "b"}}}),
        ("status", {"metadata": {"annotations": {"note": "c"}}}),
        ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ("status", {"status": {"conditions": None}}),
        ("status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}),
        ("status", {"status": {"nodeInfo": {"kernelVersion": "9"}}}),
        ("status", {"status": {"images": [{"names": ["x"], "sizeBytes": 1}]}}),
        ("status", {"status": {"capacity": {"cpu": "64"}}}),
        ("status", {"status": {"capacity": {"example.com/dongle": "9"}}}),
        ("status", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}),
        ("status", {"status": {"allocatable": {"memory": "64Gi"}}}),
        ("status", {"status": {"allocatable": {"memory": None}}}),
    ],
)
def test_foreign_fields_of_a_node_cannot_be_changed(theirs: Api, part: str, body: dict[str, Any]) -> None:
    with pytest.raises(ApiFailure) as refused:
        patch(theirs, body, part)
    assert refused.value.status == 403
    assert REFUSAL in refused.value.message


@pytest.mark.parametrize(
    ("part", "body"),
    [
        ("", {"metadata": {"labels": {"ARCH": "RV64GC", "QEMU": "X86", "hetsched.io/isa-level": "rva22u64"}}}),
        ("", {"metadata": {"labels": {"hetsched.io/riscv.zba": "true"}}}),
        ("", {"metadata": {"annotations": {"hetsched.io/isa": "rv64gc_zba", "hetsched.io/cross-isa": "rv64gc"}}}),
        ("status", {"status": {"capacity": {"hetsched.io/network-mbps": "9"}}}),
        ("status", {"status": {"allocatable": {"hetsched.io/disk-mbps": "9"}}}),
    ],
)
def test_own_changes_are_allowed(theirs: Api, part: str, body: dict[str, Any]) -> None:
    patch(theirs, body, part)


def test_policy_does_not_restrict_other_accounts(api: Api) -> None:
    patch(api, {"spec": {"unschedulable": True}, "metadata": {"labels": {"team": "b"}}})


def test_only_labelled_objects_can_be_written(api: Api, theirs: Api) -> None:
    contents: dict[Resource, dict[str, Any]] = {TOPOLOGIES: {"zones": []}, NODE_GPUS: {"spec": {"cards": []}}}
    for kind, content in contents.items():
        make(theirs, kind, "ours", metadata=MINE, **content)
        make(api, kind, "foreign", **content)
        refused = (
            lambda kind=kind, content=content: make(theirs, kind, "unlabelled", **content),
            lambda kind=kind: patch(theirs, {"metadata": MINE}, kind=kind, name="foreign"),
            lambda kind=kind: patch(theirs, {"metadata": {"labels": None}}, kind=kind, name="ours"),
        )
        for attempt in refused:
            with pytest.raises(ApiFailure, match=REFUSAL):
                attempt()
        for name in ("ours", "foreign"):
            api.send("DELETE", kind.path(name=name))


def test_account_has_no_other_rights(theirs: Api) -> None:
    make_pod = b'{"metadata":{"name":"p"},"spec":{"containers":[{"name":"m","image":"busybox"}]}}'
    calls = (
        ("DELETE", NODES.path(name="n1"), b""),
        ("POST", NODES.path(), b'{"metadata":{"name":"n9"}}'),
        ("POST", PODS.path(namespace="default"), make_pod),
        ("GET", SECRETS.path(namespace="hetsched"), b""),
        ("PATCH", LEASES.path(namespace="kube-system", name="hetsched"), b"{}"),
        ("DELETE", NODE_GPUS.path(name="n1"), b""),
    )
    for verb, path, body in calls:
        with pytest.raises(ApiFailure) as refused:
            theirs.send(verb, path, body, content="application/merge-patch+json" if verb == "PATCH" else "")
        assert refused.value.status == 403, path


def test_manifests_grant_exactly_the_table(theirs: Api) -> None:
    for kind, namespace in (("ClusterRole", ""), ("Role", "kube-system")):
        rights = [right for right in DISCOVERY_RIGHTS if right.namespace == namespace]
        assert sorted(listed(discovery_account.rules_of(kind))) == sorted(map(grant, rights))
    assert [answer.right for answer in ask(theirs, namespaces=(), rights=DISCOVERY_RIGHTS) if not answer.granted] == []
