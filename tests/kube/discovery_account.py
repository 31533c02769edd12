"""The service account of discovery on the test control plane, with `deploy/discovery` applied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.node_discovery import is_guarded
from hetsched.adapters.kubernetes.resources import NODE_GPUS, TOPOLOGIES

from . import access, kinds
from .control_plane import ControlPlane
from .scene import make_node

NAME = "hetsched-discovery"
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "discovery"
_EFFECTIVE_SECONDS = 30


def objects() -> list[dict[str, Any]]:
    """Return every object in the folder, the admission policy first."""
    files = sorted(FOLDER.glob("*.yaml"), key=lambda path: (path.name != "guard.yaml", path.name))
    return [document for path in files for document in yaml.safe_load_all(path.read_text())]


def written_kinds() -> list[dict[str, Any]]:
    """Return the CRDs of the objects that discovery writes."""
    plurals = {TOPOLOGIES.plural: TOPOLOGIES.group, NODE_GPUS.plural: NODE_GPUS.group}
    specs = [*kinds.ours(), *kinds.theirs()]
    return [spec for spec in specs if plurals.get(spec["spec"]["names"]["plural"]) == spec["spec"]["group"]]


def rules_of(kind: str) -> list[dict[str, Any]]:
    """Return the rules of the only role of a kind."""
    (found,) = [obj for obj in objects() if obj["kind"] == kind]
    rules: list[dict[str, Any]] = found["rules"]
    return rules


@contextmanager
def discovering(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Apply the folder for the duration of the block, wait for it to take effect, and yield the kubeconfig."""
    if access.NAMESPACE not in {item["metadata"]["name"] for item in plane.call("GET", "/api/v1/namespaces")["items"]}:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": access.NAMESPACE}})
    shipped = objects()
    try:
        for item in shipped:
            plane.call("POST", access.collection(item["kind"]), item)
        kubeconfig = access.as_account(plane, NAME)
        _wait_until_guarded(plane, Api(from_kubeconfig(kubeconfig)))
        yield kubeconfig
    finally:
        for item in shipped:
            plane.call("DELETE", f"{access.collection(item['kind'])}/{item['metadata']['name']}")


def _wait_until_guarded(plane: ControlPlane, api: Api) -> None:
    """Wait until the permissions and the admission policy take effect: changes take a moment."""
    make_node(Api(from_kubeconfig(plane.kubeconfig())), "probed")
    until = time.monotonic() + _EFFECTIVE_SECONDS
    while not _tried(api):
        assert time.monotonic() < until, "the guard did not take effect"
        time.sleep(0.1)
    plane.call("DELETE", "/api/v1/nodes/probed")


def _tried(api: Api) -> bool:
    try:
        return is_guarded(api, "probed")
    except ApiFailure as failure:
        if failure.status == 403:  # its role has not taken effect yet
            return False
        raise
