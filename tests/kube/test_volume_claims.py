"""Pods with volume claims on a real API server: placed by the location of volumes, bound after their claims.

Not here: volume controllers. A test acts as them, after it has checked the requests to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.resources import CLAIMS, CSI_NODES, PODS, STORAGE_CLASSES, VOLUMES
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
ZONE = "topology.kubernetes.io/zone"
MERGE = "application/merge-patch+json"


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with a node in each of the zones a and b, and two WaitForFirstConsumer classes."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    monkeypatch.setattr(binding_cycle, "CLAIM_AFTER", timedelta(0))
    scheduler_cache.cache_of(cluster.pk).invalidate()
    for resource in (VOLUMES, STORAGE_CLASSES, CSI_NODES):
        api.send("DELETE", resource.path())
    for zone in ("a", "b"):
        make_node(api, zone, **{ZONE: zone})
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", "csi.example.org")):
        make(api, STORAGE_CLASSES, name, provisioner=provisioner, volumeBindingMode="WaitForFirstConsumer")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 2)
    yield follower
    follower.ended.set()
    for claim in json.loads(api.get(CLAIMS.path(namespace="default")))["items"]:
        path = CLAIMS.path(namespace="default", name=claim["metadata"]["name"])
        change(api, path, {"metadata": {"finalizers": None}})
        api.send("DELETE", path, query={"gracePeriodSeconds": "0"})
    for volume in json.loads(api.get(VOLUMES.path()))["items"]:
        path = VOLUMES.path(name=volume["metadata"]["name"])
        change(api, path, {"metadata": {"finalizers": None}})
        api.send("DELETE", path)


def change(api: Api, path: str, plain: dict[str, Any]) -> None:
    api.send("PATCH", path, json.dumps(plain).encode(), content=MERGE)


def make_volume(api: Api, name: str, zone: str, kind: str = "local") -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec = {
        "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": kind,
        "persistentVolumeReclaimPolicy": "Retain", "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }  # fmt: skip
    make(api, VOLUMES, name, spec=spec)


def make_claim(api: Api, name: str, kind: str = "local") -> None:
    asks = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}, "storageClassName": kind}
    make(api, CLAIMS, name, "default", spec=asks)


def claiming(name: str) -> list[dict[str, Any]]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]


def found(api: Api, resource: Resource, name: str) -> dict[str, Any]:
    namespace = "default" if resource is CLAIMS else ""
    plain: dict[str, Any] = json.loads(api.get(resource.path(namespace=namespace, name=name)))
    return plain


def control(api: Api, claim: str, volume: str) -> None:
    """Bind a claim to a volume as the controllers do."""
    path = CLAIMS.path(namespace="default", name=claim)
    change(api, path, {"spec": {"volumeName": volume}})
    change(api, f"{path}/status", {"status": {"phase": "Bound"}})


def decide(follower: Informer, cluster: Cluster) -> None:
    follower._write_sync()
    assert schedule.run(cluster.pk) == 1


def test_pod_is_bound_in_the_zone_of_its_selected_volume(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_volume(api, "disk-b", "b")
    make_claim(api, "data")
    make_pod(api, "db", volumes=claiming("data"))
    eventually(followed, lambda: states() == {"db": "pending"})
    eventually(followed, lambda: "disk-b" in Cluster.objects.get().definitions.storage.volumes)
    eventually(followed, lambda: "default/data" in Cluster.objects.get().definitions.storage.claims)
    decide(followed, cluster)
    assert states() == {"db": "placed"}
    assert binding_cycle.run(cluster.pk) == 0
    reference = found(api, VOLUMES, "disk-b")["spec"]["claimRef"]
    assert (reference["name"], reference["uid"]) == ("data", found(api, CLAIMS, "data")["metadata"]["uid"])
    assert states() == {"db": "binding"}
    assert binding_cycle.run(cluster.pk) == 0
    assert "nodeName" not in pod_of(api, "db")["spec"]
    control(api, "data", "disk-b")
    assert binding_cycle.run(cluster.pk) == 1
    assert pod_of(api, "db")["spec"]["nodeName"] == "b"
    allocation = json.loads(pod_of(api, "db")["metadata"]["annotations"]["hetsched.io/allocation"])
    assert allocation["volumes"] == [{"claim": "data", "volume": "disk-b"}]
    eventually(followed, lambda: states() == {"db": "bound"})
    assert check_invariants() == []


def test_claim_marked_as_bound_needs_no_phase(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_volume(api, "disk-b", "b")
    make_claim(api, "data")
    marked = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    change(api, CLAIMS.path(namespace="default", name="data"), {"metadata": marked, "spec": {"volumeName": "disk-b"}})
    assert found(api, CLAIMS, "data")["status"]["phase"] == "Pending"
    make_pod(api, "db", volumes=claiming("data"))
    eventually(followed, lambda: states() == {"db": "pending"})
    eventually(followed, lambda: "disk-b" in Cluster.objects.get().definitions.storage.volumes)
    eventually(followed, lambda: "default/data" in Cluster.objects.get().definitions.storage.claims)
    decide(followed, cluster)
    assert binding_cycle.run(cluster.pk) == 1
    assert pod_of(api, "db")["spec"]["nodeName"] == "b"


def test_volume_is_provisioned_and_a_failure_requeues_the_pod(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_claim(api, "data", "made")
    eventually(followed, lambda: "default/data" in Cluster.objects.get().definitions.storage.claims)
    make_pod(api, "db", volumes=claiming("data"))
    eventually(followed, lambda: states() == {"db": "pending"})
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    selected = "volume.kubernetes.io/selected-node"
    assert found(api, CLAIMS, "data")["metadata"]["annotations"][selected] == "a"
    # A provisioner that gives up removes the selected node again.
    change(api, CLAIMS.path(namespace="default", name="data"), {"metadata": {"annotations": {selected: None}}})
    binding_cycle.run(cluster.pk)
    assert states() == {"db": "pending"}
    assert Pod.objects.get().message == "no volume for claim data could be provisioned for a"
    assert check_invariants() == []


def test_volume_bound_by_another_scheduler_requeues_the_pod(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_volume(api, "disk-a", "a")
    make_claim(api, "data")
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.storage.claims))
    eventually(followed, lambda: bool(Cluster.objects.get().definitions.storage.volumes))
    make_pod(api, "db", volumes=claiming("data"))
    eventually(followed, lambda: states() == {"db": "pending"})
    decide(followed, cluster)
    theirs = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default", "name": "theirs"}
    change(api, VOLUMES.path(name="disk-a"), {"spec": {"claimRef": theirs}})
    binding_cycle.run(cluster.pk)
    assert states() == {"db": "pending"}
    assert Pod.objects.get().message == "volume disk-a is now bound to another claim"


def test_pod_with_a_late_claim_is_decided_when_it_exists(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "db", volumes=claiming("data"))
    eventually(followed, lambda: states() == {"db": "pending"})
    decide(followed, cluster)
    assert states() == {"db": "not-now"}
    assert [reason.code for reason in Decision.objects.get().reasons] == ["VolumeClaimMissing"]
    make_claim(api, "data", "made")
    # The pod skips its back-off, because the object that it waits for has changed.
    eventually(followed, lambda: Pod.objects.get().not_before is None)
    decide(followed, cluster)
    assert states() == {"db": "placed"}


def test_pod_is_decided_after_its_gates_are_removed(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "held", schedulingGates=[{"name": "example.org/quota"}])
    eventually(followed, lambda: states() == {"held": "pending"})
    followed._write_sync()
    assert schedule.run(cluster.pk) == 0
    assert Pod.objects.get().message == "SchedulingGated: example.org/quota"
    change(api, PODS.path(namespace="default", name="held"), {"spec": {"schedulingGates": None}})
    eventually(followed, lambda: Pod.objects.get().queued)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert pod_of(api, "held")["spec"]["nodeName"] in ("a", "b")
    assert Pod.objects.get().message == ""


def test_attach_limits_are_read_from_csi_nodes(api: Api, followed: Informer) -> None:
    drivers = [{"name": "csi.example.org", "nodeID": "a", "topologyKeys": [], "allocatable": {"count": 2}}]
    make(api, CSI_NODES, "a", spec={"drivers": drivers})
    eventually(followed, lambda: Node.objects.get(name="a").report.attach_limits == {"csi.example.org": 2})
    with pytest.raises(ApiFailure):  # the API server validated our write
        make(api, CSI_NODES, "b", spec={"drivers": [{"name": "x", "nodeID": ""}]})
