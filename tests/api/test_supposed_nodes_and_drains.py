"""What-if with drained or added nodes: the page, REST and the command give the same document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetsched.inventory.models import Cluster, Node
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed
from tests.unit.cli.calling import run

from .conftest import POD, Api
from .test_what_if_endpoint import ask

# 8 CPUs each: two such pods do not fit on one node.
HUGE = POD.replace("500m", '"6"')
TWO = f"{HUGE}---\n{HUGE.replace('name: web', 'name: web-2')}"


@pytest.fixture
def viewer(api: Callable[..., Api], db: Any) -> Api:
    cluster = a_cluster(a_node("n1").cpu(8).gpus(2), a_node("n2").cpu(8))
    placed(cluster, "n1", a_pod("old").cpu("4"))
    made = api("viewer")
    made.get("nodes/")  # records the first use of the token
    return made


def test_copies_accept_the_pods_of_the_original(viewer: Api) -> None:
    assert ask(viewer, TWO)["verdict"] == "not-now"  # n1 has 4 CPUs left
    answer = ask(viewer, TWO, copyNodes={"n1": 2})
    assert answer["verdict"] == "placed"
    assert {placement["node"] for placement in answer["placements"]} <= {"n2", "n1-copy-1", "n1-copy-2"}
    assert Node.objects.count() == 2


@pytest.mark.parametrize("wanted", [{"n1": 0}, {"n1": -1}, {"n1": 5001}])
def test_copies_are_counted(viewer: Api, wanted: dict[str, int]) -> None:
    problem = viewer("POST", "what-if/", {"manifest": POD, "copyNodes": wanted}, status=400).json()
    assert (problem["code"], problem["place"]) == ("NodeCopiesInvalid", "copyNodes")
    unknown = viewer("POST", "what-if/", {"manifest": POD, "copyNodes": {"n9": 1}}, status=400).json()
    assert unknown["code"] == "NodeUnknown"


def test_displaced_pods_are_named(viewer: Api) -> None:
    answer = ask(viewer, POD, drain=["n1"])
    assert answer["displaced"] == [
        {"pod": "default/old", "from": "n1", "to": "n2", "verdict": "placed", "blockedBy": None}
    ]


def test_displaced_pod_without_a_node_is_not_now(viewer: Api) -> None:
    placed(Cluster.objects.get(), "n2", a_pod("wide").cpu("7"))
    nothing = "kind: List\napiVersion: v1\nitems: []"
    for manifest in (nothing, POD):
        answer = ask(viewer, manifest, drain=["n2"])
        assert answer["verdict"] == "not-now"
        assert answer["summary"].startswith("the displaced pod fits on no other node; default/wide does not fit now: ")
        assert answer["displaced"][0]["to"] is None


def test_command_and_rest_give_the_same_document(viewer: Api, api: Callable[..., Api], tmp_path: Path) -> None:
    exported = api("operator")("GET", "clusters/fleet/export/", status=200).content
    (tmp_path / "cluster.json").write_bytes(exported)
    (tmp_path / "pods.yaml").write_text(TWO)
    files = ("-f", str(tmp_path / "pods.yaml"), "--cluster", str(tmp_path / "cluster.json"))
    result = run("whatif", *files, "--drain", "n1", "--copy-node", "n2=1", "--explain", "-o", "json")
    offline = json.loads(result.stdout)
    answer = ask(viewer, TWO, drain=["n1"], copyNodes={"n2": 1}, explain=True)
    for document in (offline, answer):
        del document["evaluatedAt"]
    assert offline == answer
