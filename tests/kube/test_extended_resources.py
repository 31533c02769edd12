"""Pods with extended resources that devices of a class serve, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.devices.allocation import allocate, release
from hetsched.adapters.kubernetes.devices.resource_claims import delete_claim, patch_claim
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.adapters.kubernetes.pods.pod_events import patch_status
from hetsched.adapters.kubernetes.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from hetsched.contracts.objects.devices import DeviceId
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.actions import begin_binding
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.devices import DRIVER, claim_of, clear, device, given, make_class, make_slice
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
GPU = "example.com/gpu"


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node, whose only device serves an extended resource."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_class(api, extendedResourceName=GPU)
    if "extendedResourceName" not in _class(api)["spec"]:
        clear(api)
        pytest.skip("the API server does not store extendedResourceName")
    make_slice(api, "a", device("gpu-0"))
    make_node(api, "a")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    eventually(follower, lambda: len(Cluster.objects.get().definitions.devices.devices) == 1)
    yield follower
    follower.ended.set()
    clear(api)


def _class(api: Api) -> Any:
    return json.loads(api.get("/apis/resource.k8s.io/v1/deviceclasses/gpu"))


def asking(api: Api, follower: Informer, name: str) -> None:
    """Create a pod with two containers, of which one requests a GPU, and wait until the informer sees it."""
    side = {"name": "side", "image": "busybox", "resources": {"requests": {"cpu": "100m"}}}
    limits = {"cpu": "1", GPU: "1"}
    make_pod(api, name, containers=[side, {"name": "train", "image": "busybox", "resources": {"limits": limits}}])
    eventually(follower, lambda: name in states())


def decide(follower: Informer, cluster: Cluster) -> None:
    follower._write_sync()
    schedule.run(cluster.pk)


class Calls:
    """Function that returns True for the first `count` calls."""

    def __init__(self, count: int) -> None:
        self._remaining = count

    def __call__(self) -> bool:
        self._remaining -= 1
        return self._remaining >= 0


def claims(api: Api) -> list[str]:
    found = json.loads(api.get(RESOURCE_CLAIMS.path(namespace="default")))["items"]
    return [claim["metadata"]["name"] for claim in found]


def known_claims() -> int:
    return len(Cluster.objects.get().definitions.devices.claims)


def end(api: Api, follower: Informer, name: str) -> None:
    """Delete a pod and its claim, as the garbage collector does."""
    claim = claim_of(api, pod_of(api, name)["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
    api.send("DELETE", PODS.path(namespace="default", name=name), query={"gracePeriodSeconds": "0"})
    delete_claim(api, claim)
    eventually(follower, lambda: states()[name] == "cancelled" and known_claims() == 0)


def test_second_pod_waits_for_the_device_of_the_first(api: Api, cluster: Cluster, followed: Informer) -> None:
    asking(api, followed, "one")
    asking(api, followed, "two")
    decide(followed, cluster)
    assert states() == {"one": "placed", "two": "not-now"}
    reason = Decision.objects.filter(pod__name="two").latest("id").reasons[0]
    assert (reason.code, str(reason.message)) == ("DevicesNotAvailable", f"no free devices for {GPU}")
    assert binding_cycle.run(cluster.pk) == 1
    pod = pod_of(api, "one")
    assert pod["spec"]["nodeName"] == "a"
    (name,) = claims(api)
    mapping = {"containerName": "train", "resourceName": GPU, "requestName": "container-1-request-1"}
    assert pod["status"]["extendedResourceClaimStatus"] == {"resourceClaimName": name, "requestMappings": [mapping]}
    claim = claim_of(api, name)
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["name"], request["exactly"]["deviceClassName"]) == ("container-1-request-1", "gpu")
    assert given(api, name) == ["a/gpu-0"]
    assert [user["uid"] for user in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    eventually(followed, lambda: known_claims() == 1)
    assert check_invariants() == []
    end(api, followed, "one")
    Pod.objects.filter(name="two").update(not_before=None)
    decide(followed, cluster)
    assert states()["two"] == "placed"
    assert binding_cycle.run(cluster.pk) == 1
    assert given(api, *claims(api)) == ["a/gpu-0"]
    assert check_invariants() == []


@pytest.fixture
def placed(api: Api, cluster: Cluster, followed: Informer) -> BindingRequest:
    """Return the binding of a placed pod."""
    asking(api, followed, "one")
    decide(followed, cluster)
    pods = list(Pod.objects.values_list("id", flat=True))
    begin_binding(cluster.pk, pods)
    (request,) = binding_cycle.binding_requests(pods)
    return request


def test_repeated_binding_finds_the_claim_of_the_first_one(api: Api, placed: BindingRequest) -> None:
    assert allocate(api, placed) is None
    (name,) = claims(api)
    uid = claim_of(api, name)["metadata"]["uid"]
    assert allocate(api, placed) is None
    assert claims(api) == [name]
    assert claim_of(api, name)["metadata"]["uid"] == uid


def test_claim_with_other_devices_is_replaced(api: Api, placed: BindingRequest) -> None:
    assert allocate(api, placed) is None
    grants = tuple(msgspec.structs.replace(grant, device=DeviceId(DRIVER, "a", "gpu-1")) for grant in placed.devices)
    assert allocate(api, msgspec.structs.replace(placed, devices=grants)) is None
    (name,) = claims(api)
    assert given(api, name) == ["a/gpu-1"]


def test_claim_of_a_deleted_pod_is_deleted(api: Api, placed: BindingRequest) -> None:
    api.send("DELETE", PODS.path(namespace="default", name="one"), query={"gracePeriodSeconds": "0"})
    outcome = binding_cycle.write(api, "live", placed)
    assert outcome.result in (BindingResult.GONE, BindingResult.REFUSED)
    assert claims(api) == []


def test_claim_for_another_node_is_replaced(api: Api, placed: BindingRequest) -> None:
    """A device with `bindsToNode` can be chosen again for another node."""
    assert allocate(api, placed) is None
    (name,) = claims(api)
    first = claim_of(api, name)
    elsewhere = msgspec.structs.replace(placed, node="b")
    assert allocate(api, elsewhere) is None
    second = claim_of(api, name)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    (term,) = second["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["b"]
    assert allocate(api, elsewhere) is None
    assert claim_of(api, name)["metadata"]["uid"] == second["metadata"]["uid"]


def test_changed_claim_is_not_deleted(api: Api, placed: BindingRequest) -> None:
    assert allocate(api, placed) is None
    (name,) = claims(api)
    read = claim_of(api, name)
    patch_claim(api, read, {"metadata": {"finalizers": None}})
    read["metadata"]["finalizers"] = []
    with pytest.raises(ApiFailure) as refused:
        delete_claim(api, read)
    assert refused.value.status == 409
    assert claims(api) == [name]
    delete_claim(api, claim_of(api, name))
    assert claims(api) == []


def test_release_deletes_a_claim_that_the_pod_does_not_name(api: Api, placed: BindingRequest) -> None:
    assert allocate(api, placed, is_ours=Calls(2)) is not None
    assert len(claims(api)) == 1
    release(api, placed)
    assert claims(api) == []
    release(api, placed)  # the claim may have been deleted before


def test_refused_pod_that_names_its_claim_needs_devices_again(
    api: Api, cluster: Cluster, followed: Informer, placed: BindingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of the pod cannot be cleared, and its kubelet would ask no device plugin."""
    refused = BindingOutcome(placed.pod_id, BindingResult.REFUSED, "denied by an admission webhook")
    with monkeypatch.context() as patched:
        patched.setattr(binding_cycle, "bind", lambda *_, **__: refused)
        outcome = binding_cycle.write(api, "live", placed)
    assert outcome.result is BindingResult.REFUSED
    binding_cycle.record_results(cluster, [outcome])
    patch_status(api, placed, {"extendedResourceClaimStatus": None})
    (name,) = claims(api)
    assert pod_of(api, "one")["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == name
    assert "allocation" not in claim_of(api, name).get("status", {})
    plugin = {"cpu": "8", "memory": "32Gi", "pods": "110", GPU: "1"}
    make(api, NODES, "b", status={"allocatable": plugin, "conditions": [{"type": "Ready", "status": "True"}]})
    api.send("DELETE", RESOURCE_SLICES.path())
    eventually(followed, lambda: Node.objects.count() == 2)
    eventually(followed, lambda: not Cluster.objects.get().definitions.devices.devices and known_claims() == 1)
    Pod.objects.update(not_before=None)
    decide(followed, cluster)
    codes = {reason.code for reason in Decision.objects.latest("id").reasons}
    assert codes == {"DevicesNotAvailable", "ExtendedClaimNamed"}
    make_slice(api, "a", device("gpu-0"))
    eventually(followed, lambda: len(Cluster.objects.get().definitions.devices.devices) == 1)
    Pod.objects.update(not_before=None)
    decide(followed, cluster)
    assert binding_cycle.run(cluster.pk) == 1
    assert (pod_of(api, "one")["spec"]["nodeName"], given(api, name)) == ("a", ["a/gpu-0"])
    assert check_invariants() == []


def test_claim_of_another_owner_is_not_used(api: Api, placed: BindingRequest) -> None:
    assert allocate(api, placed) is None
    outcome = allocate(api, msgspec.structs.replace(placed, uid="11111111-1111-1111-1111-111111111111"))
    assert outcome is not None
    assert (outcome.result, "belongs to another object" in str(outcome.message)) == (BindingResult.REFUSED, True)
