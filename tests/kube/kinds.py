"""CRDs on the test control plane: those in `deploy/crds`, and stand-ins for third-party CRDs.

A stand-in accepts any content; the contents of these kinds are tested in the tests of the readers.
"""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hetsched.adapters.kubernetes.api import Resource
from hetsched.adapters.kubernetes.resources import CRANE_TOPOLOGIES, POD_GROUPS, QUOTAS, TOPOLOGIES

from .control_plane import ControlPlane

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "crds"
_ESTABLISHED_SECONDS = 30


def ours() -> list[dict[str, Any]]:
    """Return the shipped CRDs."""
    return [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]


def theirs() -> list[dict[str, Any]]:
    """Return stand-ins for the third-party kinds that are watched if they are installed."""
    return [
        _anything(TOPOLOGIES, "Cluster"), _anything(CRANE_TOPOLOGIES, "Cluster"), _anything(POD_GROUPS, "Namespaced"),
        _anything(QUOTAS, "Namespaced"),
    ]  # fmt: skip


def _anything(resource: Resource, scope: str) -> dict[str, Any]:
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    name = f"{resource.plural}.{resource.group}"
    # The API server requires an approval annotation for API groups of the Kubernetes community.
    approved = {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"}
    return {
        "metadata": {"name": name, "annotations": approved},
        "spec": {"group": resource.group, "scope": scope, "names": names, "versions": [version]},
    }


@contextmanager
def installed(plane: ControlPlane, definitions: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Install CRDs for the duration of the block; then delete them and their objects.

    Yields the CRDs as the API server returns them, established and served.
    """
    names = [definition["metadata"]["name"] for definition in definitions]
    try:
        for definition in definitions:
            plane.call("POST", DEFINITIONS, definition)
        established = [_when(plane, name, _is_established) for name in names]
        for definition in definitions:
            _wait_until_listed(plane, definition)
        yield established
    finally:
        for name in names:
            plane.call("DELETE", f"{DEFINITIONS}/{name}")
        for name in names:
            _when(plane, name, lambda found: not found)


def _is_established(found: dict[str, Any]) -> bool:
    # The API server returns `conditions: null` until its controller has processed a new CRD.
    reported = found.get("status", {}).get("conditions") or ()
    conditions = {condition["type"]: condition["status"] for condition in reported}
    if conditions.get("Established") != "True":
        return False
    return conditions.get("NonStructuralSchema") != "True"


def _wait_until_listed(plane: ControlPlane, definition: dict[str, Any]) -> None:
    """Wait until the storage of an established kind works: at first the response is 404, or 429 after a deletion."""
    spec = definition["spec"]
    version = next(item["name"] for item in spec["versions"] if item["served"])
    until = time.monotonic() + _ESTABLISHED_SECONDS
    while True:
        try:
            plane.call("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
        except urllib.error.HTTPError as error:
            if error.code not in (404, 429) or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _when(plane: ControlPlane, name: str, holds: Any) -> dict[str, Any]:
    """Return a CRD once a condition is true for it; a missing CRD is represented by an empty document."""
    until = time.monotonic() + _ESTABLISHED_SECONDS
    while True:
        try:
            found: dict[str, Any] = plane.call("GET", f"{DEFINITIONS}/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            found = {}
        if holds(found):
            return found
        assert time.monotonic() < until, f"{name} did not come that far: {found.get('status')}"
        time.sleep(0.1)
