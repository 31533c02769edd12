"""Pods of one controller differ in names, nodes and tokens: their requests are parsed once, with the same result."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from hetsched.adapters import pod_groups
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.objects.cluster import ClusterContent

POD: dict[str, Any] = {
    "metadata": {
        "name": "web-1",
        "namespace": "shop",
        "uid": "uid-1",
        "labels": {"app": "web"},
        "annotations": {"hetsched.io/isa": "x86-64-v3", "hetsched.io/gpu-milli": "500"},
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "hetsched",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "command": ["serve"],
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
                "volumeMounts": [{"name": "kube-api-access-abcde", "mountPath": "/var/run/secrets"}],
            }
        ],
        "initContainers": [{"name": "set-up", "image": "tools:1", "resources": {"requests": {"cpu": "1"}}}],
        "volumes": [
            {"name": "kube-api-access-abcde", "projected": {"sources": []}},
            {"name": "scratch", "emptyDir": {}},
        ],
    },
    "status": {"phase": "Running", "qosClass": "Burstable"},
}


def reader() -> PodReader:
    return PodReader(ReferencedObjects.of(ClusterContent()))


def changed(path: str, value: Any) -> dict[str, Any]:
    pod = copy.deepcopy(POD)
    *above, last = path.split(".")
    at: Any = pod
    for step in above:
        at = at[int(step)] if step.isdigit() else at[step]
    at[int(last) if last.isdigit() else last] = value
    return pod


DIFFERENCES = {
    "metadata.name": "web-2",
    "metadata.namespace": "lab",
    "metadata.uid": "uid-2",
    "metadata.labels": {"app": "web", "hetsched.io/isa": "rv64gc"},
    "metadata.annotations": {"oks/gpu-number": "2"},
    "spec.nodeName": "n2",
    "spec.schedulerName": "default-scheduler",
    "spec.nodeSelector": {"disk": "nvme"},
    "spec.tolerations": [],
    "spec.priority": 7,
    "spec.affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
    "spec.schedulingGates": [{"name": "wait"}],
    "spec.containers.0.image": "web:2",
    "spec.containers.0.resources": {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}},
    "spec.containers.0.ports": [{"containerPort": 80, "hostPort": 8081}],
    "spec.containers.0.command": ["other"],
    "spec.initContainers.0.resources": {"requests": {"cpu": "3"}},
    "spec.volumes.1": {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    "spec.volumes.0": {"name": "kube-api-access-vwxyz", "projected": {"sources": []}},
    "spec.resourceClaims": [{"name": "card", "resourceClaimName": "card-1"}],
    "status.qosClass": "Guaranteed",
}


@pytest.mark.parametrize("path", DIFFERENCES)
def test_pod_after_a_similar_one_is_read_as_alone(path: str) -> None:
    other = changed(path, DIFFERENCES[path])
    used = reader()
    used.pod(FieldView(POD))

    assert used.pod(FieldView(other)) == reader().pod(FieldView(other))


def test_pending_and_assigned_pods_are_cached_separately() -> None:
    waiting = copy.deepcopy(POD)
    del waiting["spec"]["nodeName"]
    waiting["spec"]["schedulingGates"] = [{"name": "wait"}]
    bound = {**copy.deepcopy(waiting), "spec": {**waiting["spec"], "nodeName": "n1"}}
    used = reader()

    found = [used.pod(FieldView(pod)) for pod in (waiting, bound, waiting)]

    assert [(pod.node_name, pod.gates) for pod in found if pod] == [("", ("wait",)), ("n1", ()), ("", ("wait",))]


def test_named_claim_is_read_of_each_pending_pod() -> None:
    bound = {**POD, "status": {"extendedResourceClaimStatus": {"resourceClaimName": "left"}}}
    named = copy.deepcopy(bound)
    del named["spec"]["nodeName"]
    used = reader()

    found = [used.pod(FieldView(pod)) for pod in ({**named, "status": {}}, named, bound)]

    assert [pod.extended_claim for pod in found if pod] == ["", "left", ""]


def test_pods_of_one_controller_have_the_same_demand_key() -> None:
    copies = [
        changed("metadata.name", "web-2"),
        changed("spec.nodeName", "n2"),
        changed("spec.volumes.0", {"name": "kube-api-access-vwxyz", "projected": {"sources": []}}),
    ]

    assert {pod_groups.demand_key(pod, "shop") for pod in (POD, *copies)} == {pod_groups.demand_key(POD, "shop")}


def test_claims_named_after_their_pod_are_not_shared() -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": template}}
    first, second = changed("spec.volumes.1", volume), changed("spec.volumes.1", volume)
    second["metadata"]["name"] = "web-2"
    used = reader()

    claims = [pod.shape.claims[0].name for pod in map(used.pod, map(FieldView, (first, second))) if pod]

    assert claims == ["web-1-data", "web-2-data"]


@pytest.mark.parametrize("odd", ['{"spec": [1]}', '{"spec": {"containers": [1]}}', '{"spec": {"volumes": 3}}', "{}"])
def test_object_without_a_pod_spec_has_no_demand_key(odd: str) -> None:
    assert pod_groups.demand_key({"metadata": {}, **json.loads(odd)}, "shop") is None
