"""Zones whose capacity fell below their grants, and the pods at risk there, within the reader's scope."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Api

FILE = """\
apiVersion: v1
kind: Node
metadata: {name: n0}
status: {allocatable: {cpu: "4", memory: 16Gi, pods: "110"}}
---
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: n0}
attributes: [{name: cpuManagerPolicy, value: none}, {name: powerState, value: capped}]
zones:
- {name: node-0, type: Node, attributes: [{name: hetsched.io/cpus, value: 0-3}, {name: offline_capacity, value: 1500m}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: pinned
  annotations:
    hetsched.io/allocation: '{"v":1,"zones":[{"name":"node-0","cpus":"0-1"}],"policy":"exclusive"}'
spec:
  nodeName: n0
  containers: [{name: main, resources: {limits: {cpu: "2", memory: 1Gi}}}]
"""


@pytest.fixture
def imported(operator: Api, policies: None) -> Api:
    operator("POST", "clusters/", {"name": "site", "reason": "first"}, status=201)
    operator("POST", "clusters/site/import/?reason=first", FILE, kind="application/yaml", status=200)
    return operator


def test_cluster_lists_pods_at_risk(imported: Api) -> None:
    # 2 CPUs are granted, online workloads leave 1.5.
    shown = imported.get("metrics/at-risk/")
    assert shown["zones"] == [{"node": "n0", "zone": "node-0", "short": "500m", "pods": ["default/pinned"]}]


def test_node_shows_pods_at_risk_and_remaining_capacity(imported: Api) -> None:
    (zone,) = imported.get("nodes/n0/numa/")["zones"]
    assert (zone["offlineCapacity"], zone["short"], zone["atRisk"]) == ("1500m", "500m", ["default/pinned"])
    assert imported.get("nodes/n0/")["power"] == {"state": "capped", "headroomWatts": None}


def test_pods_of_other_namespaces_are_not_named(imported: Api, api: Callable[..., Api]) -> None:
    limited = api("viewer", "elsewhere")
    (zone,) = limited.get("metrics/at-risk/")["zones"]
    assert (zone["short"], zone["pods"]) == ("500m", [])
    assert limited.get("nodes/n0/numa/")["zones"][0]["atRisk"] == []
