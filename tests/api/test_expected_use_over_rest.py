"""Expected use of a pod and its source, from the import of measured use to the document of the decision."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.inventory.models import Cluster
from workers.schedule import run

from .conftest import POD, Api

MEASURED = "".join(
    f"""---
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata:
  name: web-{number}
  ownerReferences: [{{kind: Deployment, name: web, controller: true}}]
containers: [{{name: main, usage: {{cpu: 2500m}}}}]
"""
    for number in range(6)
)
FILE = f"""\
apiVersion: v1
kind: Node
metadata: {{name: n1}}
status: {{allocatable: {{cpu: "8", memory: 32Gi, pods: "110"}}}}
{MEASURED}"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: main, resources: {requests: {cpu: 500m}}}]}}}
"""
LEARNT = {"basis": "learnt p95 of 6 pods of Deployment/web", "amounts": {"cpu": "2500m"}}


@pytest.fixture
def measured(policies: None, operator: Api) -> Cluster:
    operator("POST", "clusters/", {"name": "site", "reason": "first"}, status=201)
    operator("POST", "clusters/site/import/?reason=first", FILE, kind="application/yaml", status=200)
    return Cluster.objects.get(name="site")


def placements(operator: Api, **asked: Any) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = operator("POST", "what-if/", asked, status=200).json()["placements"]
    return placed


def test_what_if_on_an_imported_cluster_has_expected_use(operator: Api, measured: Cluster) -> None:
    (placement,) = placements(operator, manifest=DEPLOYMENT, cluster="site")
    assert placement["expectedUse"] == LEARNT
    (placement,) = placements(operator, manifest=POD, cluster="site")
    assert "expectedUse" not in placement


def test_what_if_on_files_and_supposed_nodes_has_expected_use(operator: Api, policies: None) -> None:
    (placement,) = placements(operator, manifest=DEPLOYMENT, cluster=FILE)
    assert placement["expectedUse"] == LEARNT
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: n2}\nstatus: {allocatable: {cpu: '8', pods: '9'}}\n"
    (placement,) = placements(operator, manifest=DEPLOYMENT, cluster=FILE, addNodes=node)
    assert placement["expectedUse"] == LEARNT


def test_decision_shows_expected_use_while_it_can_be_recomputed(operator: Api, measured: Cluster) -> None:
    operator("POST", "workloads/", DEPLOYMENT, kind="application/yaml", status=202)
    run(measured.pk)
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    assert operator.get(f"decisions/{row['id']}/", nearestFit="true")["expectedUse"] == LEARNT
    assert operator.get(f"decisions/{row['id']}/")["expectedUse"] is None
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match="*", status=200)
    assert operator.get(f"decisions/{row['id']}/", nearestFit="true")["expectedUse"] is None
