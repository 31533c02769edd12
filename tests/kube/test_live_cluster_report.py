"""`hetsched look` on a real API server: the report equals that of a dump, and the audit log contains only lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from hetsched.adapters.kubernetes import api as calls
from hetsched.adapters.kubernetes.api import Api
from tests.seeded_clusters import Plain, node, pod, seeded_cluster
from tests.unit.cli.calling import document, run

from .control_plane import ControlPlane
from .seeded_objects import create

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
NAMESPACE = "/api/v1/namespaces/hetsched"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def looker(plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """Return the kubeconfig of a service account in the audited namespace that may list nodes and pods only."""
    rules = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
    subject = {"kind": "ServiceAccount", "name": "looker", "namespace": "hetsched"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"}
    with suppress(HTTPError):  # another test of the run may have created it
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "hetsched"}})
    plane.call("POST", f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "looker"}})
    plane.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "looker"}, "rules": rules})
    binding = {"metadata": {"name": "looker"}, "subjects": [subject], "roleRef": role}
    plane.call("POST", f"{RBAC}/clusterrolebindings", binding)
    request = {"spec": {"expirationSeconds": 3600}}
    token = plane.call("POST", f"{NAMESPACE}/serviceaccounts/looker/token", request)["status"]["token"]
    yield _kubeconfig(plane, tmp_path, {"token": token})
    for path in (f"{NAMESPACE}/serviceaccounts/looker", f"{RBAC}/clusterroles/looker"):
        plane.call("DELETE", path)
    plane.call("DELETE", f"{RBAC}/clusterrolebindings/looker")


def _kubeconfig(plane: ControlPlane, folder: Path, user: dict[str, Any] | None = None) -> Path:
    config = plane.kubeconfig()
    path = folder / "config"
    path.write_text(json.dumps({**config, "users": [{"name": "admin", "user": user}]} if user else config))
    return path


def found(report: Plain) -> set[tuple[str, str, str]]:
    return {(one["code"], one["kind"], one["name"]) for one in report["findings"]}


@pytest.mark.parametrize("kind", ["instruction_sets", "pending_pods"])
def test_seeded_faults_are_found(
    plane: ControlPlane, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(calls, "PAGE", 3)
    cluster = seeded_cluster(kind, 0, faults=True)
    create(plane, cluster.objects)
    result = run("look", "--kubeconfig", _kubeconfig(plane, tmp_path), "-o", "json")
    report = document(result)
    assert (found(report), report["unchecked"], result.exit_code) == (cluster.expected, [], 1)


def test_account_that_lists_nodes_and_pods_suffices_and_only_lists(plane: ControlPlane, api: Api, looker: Path) -> None:
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource"}
    create(plane, [node("n"), pod("refused", on="n", status=status)])
    report = document(run("look", "--kubeconfig", looker, "-o", "json"))
    assert found(report) == {("KubeletRejectedPods", "Node", "n")}
    unchecked = {part["part"]: part["reason"] for part in report["unchecked"]}
    assert unchecked["priorityclasses.scheduling.k8s.io"] == "the user may not list this kind"
    assert "persistentvolumes" in unchecked
    assert not {"nodes", "pods"} & set(unchecked)
    made = [event for event in plane.audited() if event["user"]["username"] == "system:serviceaccount:hetsched:looker"]
    assert len(made) >= 20
    assert {event["verb"] for event in made} == {"list"}
    assert {event["objectRef"]["resource"] for event in made} & {"secrets", "configmaps"} == set()


def test_exec_plugin_of_the_kubeconfig_logs_in(plane: ControlPlane, api: Api, looker: Path, tmp_path: Path) -> None:
    token = json.loads(looker.read_text())["users"][0]["user"]["token"]
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}})
    (tmp_path / "answer").write_text(answer)
    user = {
        "exec": {
            "apiVersion": version,
            "command": "cat",
            "args": [str(tmp_path / "answer")],
            "interactiveMode": "Never",
        }
    }
    create(plane, [node("n")])
    result = run("look", "--kubeconfig", _kubeconfig(plane, tmp_path, user))
    assert (result.exit_code, token in result.output) == (0, False)
    (tmp_path / "answer").write_text(answer.replace(token, "expired"))
    assert run("look", "--kubeconfig", tmp_path / "config").exit_code == 3
