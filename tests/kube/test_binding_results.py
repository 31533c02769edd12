"""A binding names its pod by UID, has the pod's allocation, and its result is known or reported as unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.pods import binding
from hetsched.adapters.kubernetes.pods.binding import (
    BindingRequest,
    BindingResult,
    annotations_of,
    bind,
    read_back,
    refuses_wrong_uids,
)
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")


@pytest.fixture
def pod(api: Api) -> dict[str, Any]:
    """Return a pending pod of a cluster with the nodes n1 and n2."""
    for name in ("n1", "n2"):
        api.send("POST", NODES.path(), json.dumps({"metadata": {"name": name}}).encode())
    spec = {"containers": [{"name": "main", "image": "x"}], "schedulerName": "hetsched"}
    made = api.send(
        "POST", PODS.path(namespace="default"), json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode()
    )
    found: dict[str, Any] = json.loads(made)
    return found


def binding_request(pod: dict[str, Any], node: str = "n1", **changes: Any) -> BindingRequest:
    return BindingRequest(
        **{"pod_id": 1, "namespace": "default", "name": "p", "uid": pod["metadata"]["uid"], "node": node, **changes}
    )


def now(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(api.get(PODS.path(namespace="default", name="p")))
    return found


def test_bound_pod_carries_its_allocation(api: Api, pod: dict[str, Any]) -> None:
    held = Allocation(gpus=(CardGrant(0, 1000, 40960, "GPU-a"),), zones=(ZoneGrant("node-0", "0-3", 4000, 0),))
    annotations = annotations_of(held, uid=pod["metadata"]["uid"], node="n1", epoch=7, containers={"main": "0-3"})
    assert bind(api, binding_request(pod, annotations=annotations)).result is BindingResult.BOUND
    found = now(api)
    assert found["spec"]["nodeName"] == "n1"
    allocation = json.loads(found["metadata"]["annotations"]["hetsched.io/allocation"])
    assert (allocation["v"], allocation["cpus"], allocation["uid"], allocation["node"], allocation["epoch"]) == (
        1, "0-3", pod["metadata"]["uid"], "n1", 7,
    )  # fmt: skip
    assert allocation["containers"] == {"main": "0-3"}
    crane = json.loads(found["metadata"]["annotations"]["topology.crane.io/topology-result"])
    assert crane == [{"name": "node0", "type": "Node", "resources": {"capacity": {"cpu": "4"}}}]


def test_repeated_binding_succeeds(api: Api, pod: dict[str, Any]) -> None:
    assert bind(api, binding_request(pod)).result is BindingResult.BOUND
    assert bind(api, binding_request(pod)).result is BindingResult.BOUND


def test_pod_bound_by_another_scheduler_is_lost(api: Api, pod: dict[str, Any]) -> None:
    assert bind(api, binding_request(pod, "n2")).result is BindingResult.BOUND
    assert bind(api, binding_request(pod, "n1")).result is BindingResult.LOST
    assert now(api)["spec"]["nodeName"] == "n2"


def test_recreated_pod_with_another_uid_is_not_bound(api: Api, pod: dict[str, Any]) -> None:
    stranger = binding_request(pod, uid="11111111-1111-1111-1111-111111111111")
    assert bind(api, stranger).result is BindingResult.GONE
    assert "nodeName" not in now(api)["spec"]


def test_missing_pod_is_reported_as_deleted(api: Api, pod: dict[str, Any]) -> None:
    api.send("DELETE", PODS.path(namespace="default", name="p"), query={"gracePeriodSeconds": "0"})
    assert bind(api, binding_request(pod)).result is BindingResult.GONE


def test_binding_without_a_response_is_unknown_until_it_is_read(
    api: Api, pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*arguments: Any, **more: Any) -> bytes:
        answer: bytes = sent(*arguments, **more)
        written.append(arguments[0] == "POST" and not more.get("query"))
        if not any(written):  # the calls before the binding
            return answer
        raise ApiFailure(0, "Unreachable", "the reply was lost")

    written: list[bool] = []
    sent = api.send
    monkeypatch.setattr(api, "send", lost)
    assert bind(api, binding_request(pod)).result is BindingResult.UNKNOWN
    monkeypatch.undo()
    assert read_back(api, binding_request(pod), waiting=BindingResult.UNKNOWN).result is BindingResult.BOUND


def test_no_pod_is_bound_without_uid_checks(api: Api, pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(method: str, path: str, *arguments: Any, **more: Any) -> bytes:
        asked.append((path, more.get("query")))
        return b"{}" if more.get("query") else sent(method, path, *arguments, **more)

    asked: list[Any] = []
    sent = api.send
    monkeypatch.setattr(api, "send", careless)
    for _ in range(2):
        assert bind(api, binding_request(pod)).result is BindingResult.UNPROVEN
    assert [query for _, query in asked] == [{"dryRun": "All"}] * 2
    monkeypatch.undo()
    assert bind(api, binding_request(pod)).result is BindingResult.BOUND


def test_uid_check_of_the_server_is_verified_once(
    api: Api, pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(*arguments: Any, **more: Any) -> bytes:
        if more.get("query"):
            asked.append(more["query"])
        return sent(*arguments, **more)

    asked: list[Any] = []
    sent = api.send
    monkeypatch.setattr(api, "send", noted)
    for _ in range(2):
        assert bind(api, binding_request(pod)).result is BindingResult.BOUND
    assert asked == [{"dryRun": "All"}]


def test_bound_pod_does_not_prove_the_uid_check(api: Api, pod: dict[str, Any]) -> None:
    assert bind(api, binding_request(pod)).result is BindingResult.BOUND
    other = Api(api._configuration)
    for node, result in (("n1", BindingResult.BOUND), ("n2", BindingResult.LOST)):
        assert bind(other, binding_request(pod, node)).result is result
        assert other not in binding._proven


def test_server_rejects_a_wrong_uid_without_effect(api: Api, pod: dict[str, Any]) -> None:
    assert refuses_wrong_uids(api, "default", "p", "n1")
    assert "nodeName" not in now(api)["spec"]
