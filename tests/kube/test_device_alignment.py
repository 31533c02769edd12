"""Devices of claims and exclusive CPUs in one NUMA decision, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, TOPOLOGIES
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube import kinds
from tests.kube.control_plane import ControlPlane
from tests.kube.devices import clear, device, exactly, given, make_claim, make_class, make_slice, using
from tests.kube.scene import an_informer, eventually, make, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
STANDARD = "resource.kubernetes.io/numaNode"
EXCLUSIVE = {"topology.crane.io/topology-awareness": "true", "topology.crane.io/cpu-policy": "exclusive"}
CPUS = {"node-0": parse_cpuset("0-7"), "node-1": parse_cpuset("8-15")}


@pytest.fixture(scope="module", autouse=True)
def served(plane: ControlPlane) -> Iterator[None]:
    with kinds.installed(plane, kinds.theirs()):
        yield


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of two zones, each with 8 CPUs and one device."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_class(api)
    make_slice(api, "n", device("gpu-0", **{STANDARD: 0}), device("gpu-1", **{STANDARD: 1}))
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    make(api, NODES, "n", status={"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]})
    follower = an_informer(api, cluster)
    yield follower
    follower.ended.set()
    api.send("DELETE", TOPOLOGIES.path())
    clear(api)


def make_zones(api: Api, follower: Informer, **kubelet: str) -> None:
    """Report the zones of the node and the policies of its kubelet, and wait until the informer sees them."""
    zones = [
        {
            "name": name, "type": "Node",
            "attributes": [{"name": "hetsched.io/cpus", "value": cpus}],
            "resources": [
                {"name": resource, "capacity": amount, "allocatable": amount, "available": amount}
                for resource, amount in (("cpu", "8"), ("memory", "32Gi"))
            ],
        }
        for name, cpus in (("node-0", "0-7"), ("node-1", "8-15"))
    ]  # fmt: skip
    attributes = [{"name": name, "value": value} for name, value in kubelet.items()]
    make(api, TOPOLOGIES, "n", attributes=attributes, zones=zones)
    eventually(follower, lambda: [node.report.numa is not None for node in Node.objects.all()] == [True])
    eventually(follower, lambda: len(Cluster.objects.get().definitions.devices.devices) == 2)


def bound(api: Api, cluster: Cluster, follower: Informer, **annotations: str) -> dict[str, Any]:
    """Create a Guaranteed pod with four CPUs and the claim `train`; return its allocation after it is bound."""
    amounts = {"cpu": "4", "memory": "1Gi"}
    container = {
        "name": "main", "image": "busybox",
        "resources": {"requests": amounts, "limits": amounts, "claims": [{"name": "train"}]},
    }  # fmt: skip
    make_pod(api, "p", annotations=annotations, containers=[container], resourceClaims=using("train"))
    eventually(follower, lambda: "p" in states())
    eventually(follower, lambda: "default/train" in Cluster.objects.get().definitions.devices.claims)
    follower._write_sync()
    schedule.run(cluster.pk)
    assert binding_cycle.run(cluster.pk) == 1
    found: dict[str, Any] = json.loads(pod_of(api, "p")["metadata"]["annotations"]["hetsched.io/allocation"])
    return found


def explained() -> tuple[str, Any]:
    """Return the why page of the pod and the allocation in the REST document of its decision."""
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(get_user_model().objects.create_superuser("looks"))
    page = browser.get(f"/why/{Pod.objects.get().pk}/").content.decode()
    return page, browser.get(f"/api/v1/decisions/{Decision.objects.get().pk}/").json()["allocation"]


@pytest.mark.parametrize("zone", [0, 1])
def test_exclusive_cpus_are_in_the_zone_of_the_device(
    api: Api, cluster: Cluster, followed: Informer, zone: int
) -> None:
    """One of the two zones is not the one that the pod would get without the claim."""
    make_zones(api, followed, cpuManagerPolicy="none")
    domain, _, name = STANDARD.partition("/")
    make_claim(api, "train", exactly("gpu", f'device.attributes["{domain}"].{name} == {zone}'))
    allocation = bound(api, cluster, followed, **EXCLUSIVE)
    cpus = parse_cpuset(allocation["containers"]["main"])
    assert len(cpus) == 4
    assert cpus <= CPUS[f"node-{zone}"]
    assert given(api, "train") == [f"n/gpu-{zone}"]
    page, shown = explained()
    assert f"the devices of claim train and the CPUs are in NUMA zone node-{zone}" in page
    assert [grant["zone"] for grant in shown["devices"]] == [f"node-{zone}"]
    assert [part["name"] for part in shown["zones"]] == [f"node-{zone}"]
    assert check_invariants() == []


def test_device_is_in_the_zone_that_the_kubelet_will_assign(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_zones(api, followed, cpuManagerPolicy="static", topologyManagerPolicy="single-numa-node")
    make_claim(api, "train", exactly("gpu"))
    bound(api, cluster, followed)
    page, shown = explained()
    (predicted,) = [part["name"] for part in shown["predicted"]]
    assert [grant["zone"] for grant in shown["devices"]] == [predicted]
    assert given(api, "train") == [f"n/gpu-{predicted.removeprefix('node-')}"]
    assert f"the devices of claim train and the CPUs are in NUMA zone {predicted}" in page
    assert check_invariants() == []
