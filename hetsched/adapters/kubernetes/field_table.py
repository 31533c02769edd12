"""Generator of the table of known fields of pods and controllers, from the models of the Kubernetes client.

Importing the models takes a second, so the table is a data file of the package:
`python -m hetsched.adapters.kubernetes.field_table` regenerates it after an upgrade of the client. A test compares the
two.
Source: the OpenAPI document of kube-apiserver, as the `kubernetes` package carries it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

PATH = Path(__file__).parent.parent / "data" / "kubernetes_fields.json"
ROOTS = {
    "Pod": "V1Pod", "Job": "V1Job", "Deployment": "V1Deployment", "ReplicaSet": "V1ReplicaSet",
    "StatefulSet": "V1StatefulSet", "DaemonSet": "V1DaemonSet", "CronJob": "V1CronJob",
    "ReplicationController": "V1ReplicationController",
}  # fmt: skip
# Fields of earlier API versions that hetsched still reads.
EARLIER = {"V1PodSpec": {"workloadRef": ""}}
_MODEL = re.compile(r"(?:[Ll]ist\[)?([A-Z]\w+)\]?")


def build_table() -> dict[str, Any]:
    """Return `roots` (kind to model) and `models`: for each its fields with the model of their value, or ""."""
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
    return {"roots": ROOTS, "models": dict(sorted(found.items()))}


def _model_of(models: Any, written: str) -> str:
    match = _MODEL.fullmatch(written)
    return match[1] if match is not None and hasattr(getattr(models, match[1], None), "attribute_map") else ""


if __name__ == "__main__":
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(build_table()), indent=1) + b"\n")
