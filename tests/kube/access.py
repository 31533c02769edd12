"""hetsched's own service account on the test control plane, with the permissions of `deploy/access`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.resources import PODS

from .control_plane import ControlPlane

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "access"
NAMESPACE = "hetsched"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Role": f"{RBAC}/namespaces/kube-system/roles",
    "RoleBinding": f"{RBAC}/namespaces/kube-system/rolebindings",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}
_EFFECTIVE_SECONDS = 30


def collection(kind: str) -> str:
    """Return the path of the collection of a kind."""
    return _COLLECTIONS[kind]


def objects() -> list[dict[str, Any]]:
    """Return every object in the folder `deploy/access`."""
    return [document for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]


def rules_of(name: str) -> list[dict[str, Any]]:
    """Return the rules of a shipped Role or ClusterRole."""
    roles = [obj for obj in objects() if obj["kind"] in ("ClusterRole", "Role")]
    (found,) = [role for role in roles if role["metadata"]["name"] == name]
    rules: list[dict[str, Any]] = found["rules"]
    return rules


@contextmanager
def granted(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Apply the folder for the duration of the block and yield the kubeconfig of hetsched's account.

    The namespace is not deleted, because no controller deletes its content in this test control plane.
    """
    if NAMESPACE not in {item["metadata"]["name"] for item in plane.call("GET", "/api/v1/namespaces")["items"]}:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    shipped = [obj for obj in objects() if obj["kind"] != "Namespace"]
    try:
        for item in shipped:
            plane.call("POST", _COLLECTIONS[item["kind"]], item)
        wait_until_guarded(plane, guarded=True)
        yield as_account(plane, "hetsched")
    finally:
        for item in shipped:
            plane.call("DELETE", f"{_COLLECTIONS[item['kind']]}/{item['metadata']['name']}")
        wait_until_guarded(plane, guarded=False)


def as_account(plane: ControlPlane, name: str) -> dict[str, Any]:
    """Return the kubeconfig of an account of hetsched's namespace."""
    path = f"{_COLLECTIONS['ServiceAccount']}/{name}/token"
    token = plane.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    return {**plane.kubeconfig(), "users": [{"name": "admin", "user": {"token": token}}]}


def wait_until_guarded(plane: ControlPlane, *, guarded: bool) -> None:
    """Wait until the API server enforces the admission policy, or with `guarded` false until it does not: changes take
    a moment.
    """
    admin = Api(from_kubeconfig(plane.kubeconfig()))
    until = time.monotonic() + _EFFECTIVE_SECONDS
    while forges(admin) is guarded:
        assert time.monotonic() < until, "the guard did not take effect"
        time.sleep(0.1)


def forges(api: Api) -> bool:
    """Return whether a caller may create, as a dry run, a pod with an allocation annotation."""
    pod = {
        "metadata": {"name": "forged", "annotations": {"hetsched.io/allocation": "{}"}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    try:
        api.send("POST", PODS.path(namespace="default"), json.dumps(pod).encode(), query={"dryRun": "All"})
    except ApiFailure as failure:
        if "only hetsched writes" in failure.message:
            return False
        raise
    return True
