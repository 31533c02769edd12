"""The API versions of native gangs and device taint rules in the reference page are those that the API server has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest

from hetsched.adapters.kubernetes.api import Resource
from hetsched.adapters.kubernetes.resources import DEVICE_TAINT_RULES, NATIVE_GROUPS, NATIVE_WORKLOADS
from tests.kube.control_plane import ControlPlane
from tests.kube.feature_gates import GANGS, MINOR, TAINT_RULES, enabled

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kubernetes-versions.md"
ROWS = {"native gangs": (NATIVE_GROUPS, NATIVE_WORKLOADS), "taints of devices by rule": (DEVICE_TAINT_RULES,)}
Cells = dict[str, str]


@pytest.fixture(scope="module")
def complete() -> Iterator[ControlPlane]:
    """Yield an API server that serves all its API versions, with the gates of these objects."""
    gates = (*GANGS, *TAINT_RULES)
    with ControlPlane("--runtime-config=api/all=true", *([enabled(*gates)] if gates else [])) as running:
        yield running


def served(plane: ControlPlane, resource: Resource) -> list[str]:
    """Return the API versions of a kind that hetsched reads and the API server serves, newest first."""
    found = []
    for each in resource.in_all_versions():
        with suppress(HTTPError):  # 404: the API server does not serve this version of the group
            document = plane.call("GET", f"/apis/{each.api_version}")
            found += [each.version for one in document["resources"] if one["name"] == each.plural]
    return found


def cells(complete: ControlPlane, standard: ControlPlane) -> Cells:
    """Return the cells of this version; versions that are served by default are bold."""
    found = {}
    for row, resources in ROWS.items():
        texts = []
        for resource in resources:
            default = served(standard, resource)
            versions = [f"**`{v}`**" if v in default else f"`{v}`" for v in served(complete, resource)]
            texts += [f"{resource.kind} {', '.join(versions)}"] if versions else []
        found[row] = "; ".join(texts) or "-"
    return found


def stated(text: str) -> Cells:
    """Return the cells of this version in the table of a page."""
    table = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    first = next(index for index, line in enumerate(table) if line[0] == "objects")
    column = table[first].index(f"1.{MINOR}")
    return {line[0].partition(" (")[0]: line[column] for line in table[first + 2 :]}


def test_reference_page_states_the_served_versions(plane: ControlPlane, complete: ControlPlane) -> None:
    assert stated(PAGE.read_text()) == cells(complete, plane)
