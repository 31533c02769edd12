"""Pods with devices that have binding conditions, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.devices.allocation import timestamp
from hetsched.adapters.kubernetes.pods.pod_events import EVENTS
from hetsched.adapters.kubernetes.resources import RESOURCE_CLAIMS
from hetsched.adapters.objects.devices.binding_conditions import BINDING_TIMEOUT
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.models import Pod, ReservedDevice
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.devices import (
    DRIVER,
    MERGE,
    claim_of,
    clear,
    device,
    exactly,
    given,
    make_claim,
    make_class,
    make_shared_slice,
    using,
)
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
CONDITIONS = {"bindsToNode": True, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node and a fabric of two devices with binding conditions."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_class(api)
    make_shared_slice(api, "fabric", *(device(f"gpu-{i}", fields=CONDITIONS) for i in range(2)), allNodes=True)
    make_node(api, "a")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    eventually(follower, lambda: len(Cluster.objects.get().definitions.devices.devices) == 2)
    yield follower
    follower.ended.set()
    clear(api)


def place(api: Api, follower: Informer, cluster: Cluster, *pods: str, claim: str) -> None:
    """Create pods and decide them one after the other; all use the same claim."""
    for name in pods:
        make_pod(api, name, resourceClaims=using(claim))
        eventually(follower, lambda name=name: name in states())
        follower._write_sync()
        schedule.run(cluster.pk)
        assert states()[name] == "placed"
        binding_cycle.run(cluster.pk)
        eventually(follower, lambda: _known(claim).allocated is not None)


def _known(claim: str) -> Any:
    return Cluster.objects.get().definitions.devices.claims[f"default/{claim}"]


def created(api: Api, follower: Informer, name: str) -> None:
    make_claim(api, name, exactly("gpu"))
    eventually(follower, lambda: f"default/{name}" in Cluster.objects.get().definitions.devices.claims)


def report(api: Api, claim: str, **conditions: str) -> None:
    """Report conditions of the claim's device as its driver does."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    (result,) = claim_of(api, claim)["status"]["allocation"]["devices"]["results"]
    written = [
        {"type": kind, "status": status, "reason": "Test", "message": "no link", "lastTransitionTime": now}
        for kind, status in conditions.items()
    ]
    status = {"driver": DRIVER, "pool": result["pool"], "device": result["device"], "conditions": written}
    patch(api, claim, {"devices": [status]})


def patch(api: Api, claim: str, status: dict[str, Any]) -> None:
    path = RESOURCE_CLAIMS.path(namespace="default", name=claim, part="status")
    api.send("PATCH", path, json.dumps({"status": status}).encode(), content=MERGE)


def test_pod_is_bound_when_its_conditions_are_true(api: Api, cluster: Cluster, followed: Informer) -> None:
    created(api, followed, "train")
    place(api, followed, cluster, "train", claim="train")
    allocation = claim_of(api, "train")["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert (result["bindingConditions"], result["bindingFailureConditions"]) == (["Attached"], ["Broken"])
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["a"]
    written = datetime.fromisoformat(allocation["allocationTimestamp"])
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=5)
    assert binding_cycle.run(cluster.pk) == 0
    assert (states(), pod_of(api, "train")["spec"].get("nodeName")) == ({"train": "binding"}, None)
    device = f"{result['driver']}/{result['pool']}/{result['device']}"
    assert Pod.objects.get().message == f"device {device} of claim train does not report Attached yet"
    events = json.loads(api.get(EVENTS.path(namespace="default")))["items"]
    (event,) = [one for one in events if one["regarding"]["uid"] == pod_of(api, "train")["metadata"]["uid"]]
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "BindingConditionsPending", "Scheduling")
    assert event["note"] == "waiting for binding conditions for device on node a"
    report(api, "train", Attached="True")
    assert binding_cycle.run(cluster.pk) == 1
    assert pod_of(api, "train")["spec"]["nodeName"] == "a"
    assert Pod.objects.get().message == ""
    assert check_invariants() == []


def test_failure_condition_withdraws_the_allocation(api: Api, cluster: Cluster, followed: Informer) -> None:
    created(api, followed, "train")
    place(api, followed, cluster, "train", claim="train")
    report(api, "train", Attached="True", Broken="True")
    assert binding_cycle.run(cluster.pk) == 0
    assert states() == {"train": "pending"}
    assert Pod.objects.get().message == f"device {DRIVER}/fabric/gpu-0 of claim train reports Broken: no link"
    assert given(api, "train") == []
    assert "reservedFor" not in claim_of(api, "train")["status"]
    assert ReservedDevice.objects.filter(active=True).count() == 0
    assert check_invariants() == []


def test_wait_ends_at_the_timeout(api: Api, cluster: Cluster, followed: Informer) -> None:
    created(api, followed, "train")
    place(api, followed, cluster, "train", claim="train")
    allocation = claim_of(api, "train")["status"]["allocation"]
    long_ago = datetime.now(UTC) - BINDING_TIMEOUT - timedelta(seconds=1)
    # The API server rejects changes of an allocation, so the allocation is removed and written with an earlier time.
    users = claim_of(api, "train")["status"]["reservedFor"]
    patch(api, "train", {"allocation": None, "reservedFor": None})
    allocation["allocationTimestamp"] = timestamp(long_ago)
    patch(api, "train", {"allocation": allocation, "reservedFor": users})
    binding_cycle.run(cluster.pk)
    assert states() == {"train": "pending"}
    assert "did not become true within 10 minutes" in Pod.objects.get().message
    assert given(api, "train") == []


def test_last_pod_of_a_failed_claim_withdraws_the_allocation(api: Api, cluster: Cluster, followed: Informer) -> None:
    created(api, followed, "shared")
    place(api, followed, cluster, "one", "two", claim="shared")
    assert states() == {"one": "binding", "two": "binding"}
    report(api, "shared", Broken="True")
    binding_cycle.run(cluster.pk)
    assert states() == {"one": "pending", "two": "pending"}
    assert given(api, "shared") == []
    assert check_invariants() == []
