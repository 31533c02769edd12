"""Generator of the table of known fields of pods, controllers and settings; reads the models of the Kubernetes client.

Importing the models takes a second, so the table is stored as a data file of the package. After an upgrade of the
client, `python -m hetsched.adapters.kubernetes.field_table` regenerates it. A test compares the file with the models.
Source: the OpenAPI document of kube-apiserver, as shipped with the `kubernetes` package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from hetsched.contracts.documents import encode

PATH = Path(__file__).parent.parent / "data" / "kubernetes_fields.json"
ROOTS = {
    "Pod": "V1Pod", "Job": "V1Job", "Deployment": "V1Deployment", "ReplicaSet": "V1ReplicaSet",
    "StatefulSet": "V1StatefulSet", "DaemonSet": "V1DaemonSet", "CronJob": "V1CronJob",
    "ReplicationController": "V1ReplicationController", "Namespace": "V1Namespace",
}  # fmt: skip
_HEAD = {"apiVersion": "", "kind": "", "metadata": "V1ObjectMeta"}
# Custom resources for which the client has no models. NodeResourceTopology combines the fields of both its API groups.
# Source: scheduler-plugins `scheduling/v1alpha1`; noderesourcetopology-api v1alpha2; gocrane/api `topology/v1alpha1`.
CUSTOM_ROOTS = {"PodGroup": "PodGroup", "ElasticQuota": "ElasticQuota", "NodeResourceTopology": "NodeResourceTopology"}
CUSTOM: dict[str, dict[str, str]] = {
    "PodGroup": {**_HEAD, "spec": "PodGroupSpec", "status": ""},
    "PodGroupSpec": {"minMember": "", "minResources": "", "scheduleTimeoutSeconds": ""},
    "ElasticQuota": {**_HEAD, "spec": "ElasticQuotaSpec", "status": ""},
    "ElasticQuotaSpec": {"min": "", "max": ""},
    "NodeResourceTopology": {
        **_HEAD, "attributes": "", "craneManagerPolicy": "CraneManagerPolicy", "reserved": "", "topologyPolicies": "",
        "zones": "NumaZone",
    },
    "CraneManagerPolicy": {"cpuManagerPolicy": "", "topologyManagerPolicy": ""},
    "NumaZone": {
        "attributes": "", "costs": "NumaCost", "name": "", "parent": "", "resources": "NumaResources", "type": "",
    },
    "NumaCost": {"name": "", "value": ""},
    "NumaResources": {"allocatable": "", "available": "", "capacity": "", "name": "", "reservedCPUNums": ""},
}  # fmt: skip
# Fields of earlier API versions that hetsched still reads.
EARLIER = {"V1PodSpec": {"workloadRef": ""}}
_MODEL = re.compile(r"(?:[Ll]ist\[)?([A-Z]\w+)\]?")


def build_table() -> dict[str, Any]:
    """Return `roots` (kind -> model) and `models` (model -> field -> model of the field's value, or "")."""
    from kubernetes.client import models

    found: dict[str, dict[str, str]] = {}
    open_models = sorted(set(ROOTS.values()))
    while open_models:
        name = open_models.pop()
        if name in found:
            continue
        model = getattr(models, name)
        fields = {written: _model_of(models, model.openapi_types[own]) for own, written in model.attribute_map.items()}
        if "status" in fields:
            fields["status"] = ""  # written by the cluster, not by users
        found[name] = dict(sorted({**fields, **EARLIER.get(name, {})}.items()))
        open_models.extend(value for value in found[name].values() if value)
    found |= {name: dict(sorted(fields.items())) for name, fields in CUSTOM.items()}
    return {"roots": ROOTS | CUSTOM_ROOTS, "models": dict(sorted(found.items()))}


def _model_of(models: Any, written: str) -> str:
    match = _MODEL.fullmatch(written)
    return match[1] if match is not None and hasattr(getattr(models, match[1], None), "attribute_map") else ""


if __name__ == "__main__":
    PATH.write_bytes(msgspec.json.format(encode(build_table()), indent=1) + b"\n")
