"""Objects of a seeded cluster on the test control plane."""

from __future__ import annotations

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODE_GPUS, TOPOLOGIES
from tests.seeded_clusters import Plain

from .control_plane import ControlPlane
from .scene import empty_cluster

REPORTS = {resource.kind: resource for resource in (NODE_GPUS, TOPOLOGIES)}


def create(plane: ControlPlane, objects: list[Plain]) -> None:
    """Create the objects; the status of a pod is written by a second call, as by a kubelet."""
    for one in objects:
        if one["kind"] == "Node":
            plane.call("POST", "/api/v1/nodes", one)
        elif one["kind"] == "Pod":
            path = "/api/v1/namespaces/default/pods"
            made = plane.call("POST", path, {**one, "metadata": _without_uid(one["metadata"])})
            made["status"] = {**made["status"], **one["status"]}
            plane.call("PUT", f"{path}/{one['metadata']['name']}/status", made)
        else:
            plane.call("POST", REPORTS[one["kind"]].path(), one)


def replace(plane: ControlPlane, objects: list[Plain]) -> Api:
    """Delete all nodes, their reports and the pods of the namespace default; create other ones."""
    for resource in REPORTS.values():
        plane.call("DELETE", resource.path())
    api = empty_cluster(plane)
    create(plane, objects)
    return api


def _without_uid(meta: Plain) -> Plain:
    return {name: value for name, value in meta.items() if name != "uid"}
