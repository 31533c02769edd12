"""The admission policy: only hetsched may write allocation annotations, on creation, on update and on subresources."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.pods.binding import BindingRequest, BindingResult, bind
from hetsched.adapters.kubernetes.resources import PODS
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import make, make_node, pod_of

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
ALLOCATION, CRANE, EXPORT = (
    "hetsched.io/allocation", "topology.crane.io/topology-result", "hetsched.io/export-scoring-request",
)  # fmt: skip
MERGE = "application/merge-patch+json"
FORGED = json.dumps({"v": 1, "cpus": "0-7"})


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Api]:
    """Return an API client with our account; for the policy the administrator is like any other user."""
    with access.granted(plane) as kubeconfig:
        yield Api(from_kubeconfig(kubeconfig))


@pytest.fixture
def bound(api: Api, account: Api) -> dict[str, Any]:
    """Return a pod that hetsched bound."""
    make_node(api, "n1")
    make(api, PODS, "p", "default", spec=spec())
    uid = pod_of(api, "p")["metadata"]["uid"]
    assert (
        bind(account, BindingRequest(1, "default", "p", uid, "n1", {ALLOCATION: "{}", CRANE: "[]"})).result
        is BindingResult.BOUND
    )
    return pod_of(api, "p")


def spec() -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "hetsched"}


def patch(api: Api, part: str = "", **annotations: Any) -> None:
    body = {"metadata": {"annotations": annotations}}
    api.send("PATCH", PODS.path(namespace="default", name="p", part=part), json.dumps(body).encode(), content=MERGE)


@pytest.mark.parametrize("key", [ALLOCATION, CRANE, EXPORT])
def test_pod_with_the_annotation_is_not_created(api: Api, account: Api, key: str) -> None:
    with pytest.raises(ApiFailure, match=key.partition("-scoring")[0]) as refused:
        make(api, PODS, "p", "default", metadata={"annotations": {key: FORGED}}, spec=spec())
    assert refused.value.status == 403


def test_own_account_cannot_create_a_pod_with_the_annotation(plane: ControlPlane, account: Api) -> None:
    """A submission may contain any annotation, and our account creates its objects."""
    subject = {"kind": "ServiceAccount", "name": "hetsched", "namespace": access.NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hetsched-submit"}
    bindings = f"{access.RBAC}/namespaces/default/rolebindings"
    plane.call("POST", bindings, {"metadata": {"name": "submit"}, "subjects": [subject], "roleRef": role})
    until = time.monotonic() + 30
    while True:
        with pytest.raises(ApiFailure) as refused:
            make(account, PODS, "p", "default", metadata={"annotations": {ALLOCATION: FORGED}}, spec=spec())
        if "only hetsched writes" in refused.value.message:
            break
        assert time.monotonic() < until, refused.value  # the create permission takes effect after a moment
    plane.call("DELETE", f"{bindings}/submit")


@pytest.mark.parametrize("part", ["", "status"])
@pytest.mark.parametrize("forged", [FORGED, None])
def test_annotation_cannot_be_changed_or_removed(
    api: Api, bound: dict[str, Any], part: str, forged: str | None
) -> None:
    for key in (ALLOCATION, CRANE):
        with pytest.raises(ApiFailure, match="only hetsched writes"):
            patch(api, part, **{key: forged})
    assert pod_of(api, "p")["metadata"]["annotations"] == bound["metadata"]["annotations"]


def test_binding_of_another_account_has_no_allocation(api: Api, account: Api) -> None:
    make_node(api, "n1")
    make(api, PODS, "p", "default", spec=spec())
    uid = pod_of(api, "p")["metadata"]["uid"]
    assert bind(api, BindingRequest(1, "default", "p", uid, "n1", {ALLOCATION: FORGED})).result is BindingResult.REFUSED
    assert bind(api, BindingRequest(1, "default", "p", uid, "n1", {})).result is BindingResult.BOUND


def test_unrelated_changes_are_allowed(api: Api, bound: dict[str, Any]) -> None:
    patch(api, team="a")
    patch(api, team=None)
    status = json.dumps({"status": {"phase": "Running"}}).encode()
    api.send("PATCH", PODS.path(namespace="default", name="p", part="status"), status, content=MERGE)
    make(api, PODS, "q", "default", metadata={"annotations": {"hetsched.io/isa": "rv64gcv"}}, spec=spec())
    found = pod_of(api, "p")
    assert found["status"]["phase"] == "Running"
    assert found["metadata"]["annotations"] == bound["metadata"]["annotations"]
