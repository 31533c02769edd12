"""Pods with resource claims on a real API server: placed by devices, bound after their claims are allocated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.devices.allocation import allocate
from hetsched.adapters.kubernetes.pods.binding import BindingResult
from hetsched.adapters.kubernetes.resources import PODS, RESOURCE_CLAIMS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.actions import begin_binding
from hetsched.placement.models import Decision, Pod, ReservedDevice
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.devices import (
    MERGE,
    claim_of,
    clear,
    device,
    exactly,
    given,
    make_claim,
    make_class,
    make_shared_slice,
    make_slice,
    using,
    wish,
)
from tests.kube.feature_gates import MINOR
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node without devices, and one with two."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_class(api)
    make_slice(api, "b", device("gpu-0", "a100", root=1), device("gpu-1", "h100", root=2))
    for name in ("a", "b"):
        make_node(api, name)
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 2)
    yield follower
    follower.ended.set()
    clear(api)


def known(name: str) -> Any:
    return Cluster.objects.get().definitions.devices.claims.get(f"default/{name}")


def decide(follower: Informer, cluster: Cluster) -> None:
    follower._write_sync()
    schedule.run(cluster.pk)


def reasons() -> list[str]:
    return [reason.code for reason in Decision.objects.latest("id").reasons]


def asking(api: Api, follower: Informer, name: str, *requests: dict[str, Any], **more: Any) -> None:
    """Create a claim and a pod with the same name, and wait until the informer sees both."""
    make_claim(api, name, *requests, **more)
    make_pod(api, name, resourceClaims=using(name))
    eventually(follower, lambda: known(name) is not None and name in states())


def test_pod_is_bound_after_its_claim_is_allocated(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "train", exactly("gpu", 'device.attributes["gpu.example.com"].model == "h100"'))
    decide(followed, cluster)
    assert states() == {"train": "placed"}
    assert ReservedDevice.objects.get(active=True).device == "gpu-1"
    assert binding_cycle.run(cluster.pk) == 1
    found, pod = claim_of(api, "train"), pod_of(api, "train")
    assert given(api, "train") == ["b/gpu-1"]
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    (user,) = found["status"]["reservedFor"]
    assert (user["resource"], user["name"], user["uid"]) == ("pods", "train", pod["metadata"]["uid"])
    (term,) = found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["b"]
    assert pod["spec"]["nodeName"] == "b"
    allocation = json.loads(pod["metadata"]["annotations"]["hetsched.io/allocation"])
    assert allocation["devices"][0]["device"] == {"driver": "gpu.example.com", "pool": "b", "name": "gpu-1"}
    eventually(followed, lambda: known("train").allocated is not None)
    assert check_invariants() == []


def test_undecidable_selector_is_rejected_and_never_guessed(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "odd", exactly("gpu", 'device.attributes["gpu.example.com"].speed > 3'))
    decide(followed, cluster)
    assert (states(), reasons()) == ({"odd": "not-now"}, ["DeviceSelectorUnknown"])
    assert "CEL runtime error: the device has no speed" in Decision.objects.latest("id").summary


def test_claims_get_shares_of_a_device(api: Api, cluster: Cluster, followed: Informer) -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    memory = {"memory": {"value": "4Gi", "requestPolicy": policy}}
    counted = {"consumesCounters": [{"counterSet": "slots", "counters": {"n": {"value": "1"}}}]}
    shared = device("part", "l40", fields={"allowMultipleAllocations": True, "capacity": memory, **counted})
    other = device("whole", "l40", fields=counted)
    counters = [{"name": "slots", "counters": {"n": {"value": "1"}}}]
    if MINOR == 34:  # until 1.34, a slice contains the counters of its devices
        make_shared_slice(api, "parts", shared, other, nodeName="a", sharedCounters=counters)
    else:
        make_shared_slice(api, "parts", shared, other, nodeName="a", count=2)
        make_shared_slice(api, "parts", name="counters", count=2, allNodes=True, sharedCounters=counters)
    eventually(followed, lambda: len(Cluster.objects.get().definitions.devices.devices) == 4)
    request = exactly(
        "gpu", 'device.attributes["gpu.example.com"].model == "l40"', capacity={"requests": {"memory": "1500Mi"}}
    )
    for name in ("one", "two", "more"):
        asking(api, followed, name, request)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert states()["more"] == "not-now"
    results = [claim_of(api, name)["status"]["allocation"]["devices"]["results"] for name in ("one", "two")]
    assert [result["device"] for (result,) in results] == ["part", "part"]
    assert [result["consumedCapacity"] for (result,) in results] == [{"memory": str(2**31)}] * 2
    assert len({result["shareID"] for (result,) in results}) == 2
    assert not ReservedDevice.objects.filter(device="part").exists()
    eventually(followed, lambda: all(known(name).allocated is not None for name in ("one", "two")))
    decide(followed, cluster)
    assert states()["more"] == "not-now"
    assert check_invariants() == []


def test_allocation_contains_the_tolerations_of_its_request(api: Api, cluster: Cluster, followed: Informer) -> None:
    taints = {"taints": [{"key": "broken", "value": "fan", "effect": "NoExecute"}]}
    make_slice(api, "a", device("gpu-0", fields=taints))
    eventually(followed, lambda: len(Cluster.objects.get().definitions.devices.devices) == 3)
    tolerations = [{"key": "broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    old = wish('!has(device.attributes["gpu.example.com"].root)', tolerations=tolerations)
    choice = [{"name": "many", **wish(count=9)}, {"name": "old", **old}]
    asking(api, followed, "one", {"name": "gpu", "firstAvailable": choice})
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    (result,) = claim_of(api, "one")["status"]["allocation"]["devices"]["results"]
    assert (result["request"], result["pool"], result["tolerations"]) == ("gpu/old", "a", tolerations)


def test_allocation_selects_the_nodes_of_its_devices(api: Api, cluster: Cluster, followed: Informer) -> None:
    term = {"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}
    free = device("any", "l40", fields={"allNodes": True})
    selected = device("some", "l40", fields={"nodeSelector": {"nodeSelectorTerms": [term]}})
    make_shared_slice(api, "fabric", free, selected, perDeviceNodeSelection=True)
    eventually(followed, lambda: len(Cluster.objects.get().definitions.devices.devices) == 4)
    l40 = 'device.attributes["gpu.example.com"].model == "l40"'
    for name, devices in (("any", ["fabric/any"]), ("some", ["fabric/some"])):
        asking(api, followed, name, exactly("gpu", l40))
        decide(followed, cluster)
        binding_cycle.run(cluster.pk)
        assert given(api, name) == devices
        eventually(followed, lambda name=name: known(name).allocated is not None)
    assert "nodeSelector" not in claim_of(api, "any")["status"]["allocation"]
    assert claim_of(api, "some")["status"]["allocation"]["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert check_invariants() == []


def test_devices_allocated_by_others_are_not_free(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_claim(api, "theirs", exactly("gpu"))
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "b", "device": "gpu-0"}
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    path = RESOURCE_CLAIMS.path(namespace="default", name="theirs", part="status")
    api.send("PATCH", path, json.dumps(status).encode(), content=MERGE)
    eventually(followed, lambda: known("theirs") is not None and known("theirs").allocated is not None)
    asking(api, followed, "both", exactly("gpu", count=2))
    decide(followed, cluster)
    assert (states()["both"], reasons()) == ("not-now", ["DevicesNotAvailable"])
    asking(api, followed, "one", exactly("gpu"))
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert given(api, "one") == ["b/gpu-1"]


def test_pod_with_an_allocated_claim_goes_to_its_node(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "shared", exactly("gpu"))
    make_pod(api, "second", resourceClaims=using("shared"))
    eventually(followed, lambda: "second" in states())
    decide(followed, cluster)
    assert states() == {"shared": "placed", "second": "not-now"}
    assert reasons() == ["ResourceClaimBusy"]
    binding_cycle.run(cluster.pk)
    eventually(followed, lambda: known("shared").allocated is not None)
    Pod.objects.filter(name="second").update(queued=True, not_before=None)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert pod_of(api, "second")["spec"]["nodeName"] == "b"
    assert len(claim_of(api, "shared")["status"]["reservedFor"]) == 2
    assert given(api, "shared") == ["b/gpu-0"]
    assert check_invariants() == []


def test_pod_waits_for_the_claim_of_its_template(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "late", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "any"}])
    eventually(followed, lambda: states() == {"late": "pending"})
    decide(followed, cluster)
    assert (states(), reasons()) == ({"late": "not-now"}, ["ResourceClaimMissing"])
    # Act as the controller: create the claim, then record its name.
    make_claim(api, "late-gpu-x", exactly("gpu"))
    noted = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "late-gpu-x"}]}}
    path = PODS.path(namespace="default", name="late", part="status")
    api.send("PATCH", path, json.dumps(noted).encode(), content=MERGE)
    eventually(followed, lambda: Pod.objects.get().spec.shape.devices[0].claim == "late-gpu-x")
    eventually(followed, lambda: known("late-gpu-x") is not None)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert given(api, "late-gpu-x") == ["b/gpu-0"]


def test_allocation_without_a_response_is_read_back(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "train", exactly("gpu"))
    decide(followed, cluster)
    begin_binding(cluster.pk, [Pod.objects.get().pk])
    (request,) = binding_cycle.binding_requests([Pod.objects.get().pk])
    assert allocate(api, request) is None  # the write succeeds, then the worker dies
    version = claim_of(api, "train")["metadata"]["resourceVersion"]
    assert allocate(api, request) is None
    assert claim_of(api, "train")["metadata"]["resourceVersion"] == version
    assert binding_cycle.write(api, "live", request).result is BindingResult.BOUND


def test_rejected_pod_releases_its_devices(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking(api, followed, "train", exactly("gpu"))
    decide(followed, cluster)
    monkeypatch.setattr(
        binding_cycle,
        "bind",
        lambda api, item, **_: binding_cycle.BindingOutcome(item.pod_id, BindingResult.REFUSED, "no"),
    )
    binding_cycle.run(cluster.pk)
    status = claim_of(api, "train").get("status", {})
    assert "allocation" not in status
    assert "reservedFor" not in status
    assert (states(), ReservedDevice.objects.filter(active=True).count()) == ({"train": "pending"}, 0)
    assert check_invariants() == []


def test_claim_allocated_by_another_scheduler_requeues_the_pod(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "train", exactly("gpu"))
    decide(followed, cluster)
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "b", "device": "gpu-1"}
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    path = RESOURCE_CLAIMS.path(namespace="default", name="train", part="status")
    api.send("PATCH", path, json.dumps(status).encode(), content=MERGE)
    binding_cycle.run(cluster.pk)
    assert states() == {"train": "pending"}
    assert Pod.objects.get().message == "another scheduler allocated other devices to claim train"
    assert given(api, "train") == ["b/gpu-1"]


def test_every_device_is_allocated_once_under_load(api: Api, cluster: Cluster, followed: Informer) -> None:
    """Allocate all devices fast: a stress test that found upstream allocating one device to two claims."""
    for number in range(4):
        make_slice(api, f"n{number}", *(device(f"gpu-{i}") for i in range(8)))
        make_node(api, f"n{number}")
    eventually(followed, lambda: len(Cluster.objects.get().definitions.devices.devices) == 34)
    eventually(followed, lambda: Node.objects.count() == 6)
    for number in range(40):
        make_claim(api, f"c{number}", exactly("gpu"))
    for number in range(40):
        make_pod(api, f"c{number}", cpu="10m", resourceClaims=using(f"c{number}"))
    eventually(followed, lambda: len(states()) == 40 and known("c39") is not None, seconds=60)
    decide(followed, cluster)
    # 4 nodes with 8 devices and one with 2: 34 of the 40 pods.
    assert Counter(states().values()) == {"placed": 34, "not-now": 6}
    binding_cycle.run(cluster.pk)
    everything = [one for number in range(40) for one in given(api, f"c{number}")]
    assert (len(everything), len(set(everything))) == (34, 34)
    # Half of them end; their claims are deleted, and pending pods get their devices.
    done = [pod.name for pod in Pod.objects.filter(state__in=["binding", "bound"]).order_by("id")[:17]]
    for name in done:
        api.send("DELETE", PODS.path(namespace="default", name=name), query={"gracePeriodSeconds": "0"})
        path = RESOURCE_CLAIMS.path(namespace="default", name=name)
        free = {"status": {"reservedFor": None, "allocation": None}}
        api.send("PATCH", f"{path}/status", json.dumps(free).encode(), content=MERGE)
    eventually(followed, lambda: all(known(name).allocated is None for name in done), seconds=60)
    eventually(followed, lambda: Pod.objects.filter(state="cancelled").count() == 17, seconds=60)
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    everything = [one for number in range(40) for one in given(api, f"c{number}")]
    assert (len(everything), len(set(everything))) == (23, 23)  # 34 - 17 + 6
    assert check_invariants() == []
