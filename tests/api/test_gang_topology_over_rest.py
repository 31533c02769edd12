"""Gangs with topology domains over REST: what-if, submission, and the reasons of a rejected gang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.inventory.models import Cluster
from hetsched.placement.models import Pod
from tests.builders import a_node
from tests.situations import a_cluster
from workers.schedule import run

from .conftest import Api
from .test_what_if_endpoint import ask

REQUIRED = "kueue.x-k8s.io/podset-required-topology"


def gang(count: int, annotations: dict[str, str], name: str = "ring") -> dict[str, Any]:
    """Return a List of `count` pods of 1 CPU that form one gang."""
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": name,
        "pod-group.scheduling.sigs.k8s.io/min-available": str(count),
    }
    container = {"name": "main", "image": "job:1", "resources": {"requests": {"cpu": "1"}}}
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}", "labels": labels, "annotations": annotations},
            "spec": {"containers": [container]},
        }
        for number in range(count)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


@pytest.fixture
def operator(api: Callable[..., Api], db: None) -> Api:
    # Rack a: n0 and n2, rack b: n1 and n3; each node has 2 CPUs.
    a_cluster(*(a_node(f"n{n}").cpu(2).labelled({"example.com/rack": rack}) for n, rack in enumerate("abab")))
    made = api("operator")
    made.get("nodes/")  # records the first use of the token
    return made


def nodes(answer: Any) -> set[str]:
    return {placement["node"] for placement in answer["placements"]}


def test_what_if_keeps_the_gang_in_one_rack(operator: Api) -> None:
    found = ask(operator, gang(4, {REQUIRED: "example.com/rack"}))
    assert (found["verdict"], nodes(found)) == ("placed", {"n0", "n2"})
    assert nodes(ask(operator, gang(4, {}))) == {"n0", "n1", "n2", "n3"}


def test_what_if_names_the_nearest_rack(operator: Api) -> None:
    found = ask(operator, gang(5, {REQUIRED: "example.com/rack"}))
    assert found["verdict"] == "never-fits"
    reason = found["unplaced"][0]["reasons"][0]
    assert (reason["code"], reason["plugin"], reason["missing"]) == ("GangNoDomain", "gang", ["example.com/rack"])
    assert "the nearest domain a now has capacity for 4" in reason["message"]
    # A preferred level is given up: five members use both racks.
    preferred = ask(operator, gang(5, {"hetsched.io/podset-preferred-topology": "example.com/rack"}))
    assert (preferred["verdict"], len(preferred["placements"])) == ("placed", 5)


def test_invalid_level_is_misconfigured_with_its_field(operator: Api) -> None:
    found = ask(operator, gang(2, {REQUIRED: "no key"}))
    assert found["verdict"] == "misconfigured"
    reason = found["unplaced"][0]["reasons"][0]
    assert (reason["code"], reason["field"]) == ("GangTopologyInvalid", REQUIRED)


def test_submitted_gangs_run_in_separate_racks_or_give_the_reason(operator: Api) -> None:
    for name, count in (("first", 3), ("second", 3), ("third", 2)):
        operator("POST", "workloads/", {"manifest": gang(count, {REQUIRED: "example.com/rack"}, name)}, status=202)
    run(Cluster.objects.get().pk)
    states = dict(Pod.objects.values_list("name", "state"))
    assert {name for name, state in states.items() if state != "placed"} == {"third-0", "third-1"}
    why = operator.get(f"pods/{Pod.objects.get(name='third-0').pk}/why/")
    assert "one domain of example.com/rack, but the nearest domain a has capacity for 1" in str(why)
