"""Objects of a seeded cluster on the test control plane."""

from __future__ import annotations

from tests.seeded_clusters import Plain

from .control_plane import ControlPlane


def create(plane: ControlPlane, objects: list[Plain]) -> None:
    """Create nodes and pods; the status of a pod is written by a second call, as by a kubelet."""
    for one in objects:
        if one["kind"] == "Node":
            plane.call("POST", "/api/v1/nodes", one)
        elif one["kind"] == "Pod":
            path = "/api/v1/namespaces/default/pods"
            made = plane.call("POST", path, {**one, "metadata": _without_uid(one["metadata"])})
            made["status"] = {**made["status"], **one["status"]}
            plane.call("PUT", f"{path}/{one['metadata']['name']}/status", made)


def _without_uid(meta: Plain) -> Plain:
    return {name: value for name, value in meta.items() if name != "uid"}
