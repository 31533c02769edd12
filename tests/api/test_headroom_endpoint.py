"""Headroom by pool: how many more copies of common shapes fit, and the revision of the count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster, submit
from hetsched.placement.queries import headroom
from tests.builders import a_node, a_pod
from workers.schedule import run as schedule

from .conftest import Api

pytestmark = pytest.mark.django_db
ADDRESS = "metrics/headroom/?cluster=rooms"
Seen = dict[str, Any]


@pytest.fixture(autouse=True)
def counted_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEPT_SECONDS", 0.0), ("SHARE", 0), ("SHAPES_SECONDS", 0.0), ("_counters", {})):
        monkeypatch.setattr(headroom, name, value)


@pytest.fixture
def cluster(policies: None) -> Cluster:
    pool = {"hetsched.io/pool": "big"}
    nodes = (
        a_node("a1").labelled(pool).isa("x86-64-v3"),
        a_node("a2").labelled(pool).isa("x86-64-v3").cordoned(),
        a_node("b1").cpu("2").isa("rv64gc"),
    )
    return import_cluster(ClusterContent(nodes=tuple(node.build() for node in nodes)), name="rooms", actor=SYSTEM)


def shape_of(seen: Seen, cpu: str) -> Seen:
    return next(shape for shape in seen["shapes"] if shape["cpu"] == cpu)


def test_fleet_without_pods_uses_example_shapes(api: Callable[..., Api], cluster: Cluster) -> None:
    seen = api("viewer").get(ADDRESS)
    assert [(pool["family"], pool["name"], pool["nodes"]) for pool in seen["pools"]] == [
        ("riscv", "general", 1),
        ("x86", "big", 2),
    ]
    assert [pool["selector"] for pool in seen["pools"]] == [{}, {"hetsched.io/pool": "big"}]
    # 1 CPU and 2Gi: 2 on b1's 2 CPUs; 8 on a1; a2 is cordoned.
    assert shape_of(seen, "1")["counts"] == [2, 8]
    assert shape_of(seen, "1")["like"] is None


def test_placement_reduces_headroom(api: Callable[..., Api], cluster: Cluster) -> None:
    viewer = api("viewer")
    submit(cluster, [a_pod("web").cpu("3").isa("x86-64-v2").build()], actor=SYSTEM)
    before = viewer.get(ADDRESS)
    # floor(8 / 3) = 2 on a1; b1 runs RISC-V.
    shape = shape_of(before, "3")
    assert (shape["counts"], shape["exact"], shape["like"]) == ([0, 2], [True, True], "default/web")
    assert "the pod requires x86-64-v2" in shape["reasons"][0]
    assert shape["manifest"]["metadata"]["annotations"] == {"hetsched.io/isa": "x86-64-v2"}
    schedule(cluster.pk)
    after = viewer.get(ADDRESS)
    assert shape_of(after, "3")["counts"] == [0, 1]
    assert after["revision"] > before["revision"]


def test_unchanged_state_reuses_the_table(api: Callable[..., Api], cluster: Cluster) -> None:
    viewer = api("viewer")
    viewer("GET", ADDRESS, if_none_match=viewer.tag(ADDRESS), status=304)


def test_manifest_of_a_shape_is_a_valid_what_if(api: Callable[..., Api], cluster: Cluster) -> None:
    viewer = api("viewer")
    submit(cluster, [a_pod("web").cpu("3").tolerating("gpu").build()], actor=SYSTEM)
    shape = shape_of(viewer.get(ADDRESS), "3")
    assert not shape["plain"]
    answer = viewer("POST", "what-if/", {"cluster": "rooms", "manifest": shape["manifest"]})
    assert answer.json()["verdict"] == "placed"


def test_manifest_of_a_guaranteed_shape_has_limits(api: Callable[..., Api], cluster: Cluster) -> None:
    submit(cluster, [a_pod("db").cpu("3").memory("2Gi").guaranteed().build()], actor=SYSTEM)
    manifest = shape_of(api("viewer").get(ADDRESS), "3")["manifest"]
    (container,) = manifest["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "3", "memory": "2Gi"}
    assert "annotations" not in manifest["metadata"]


def test_limited_token_does_not_see_the_owners_of_shapes(api: Callable[..., Api], cluster: Cluster) -> None:
    submit(cluster, [a_pod("web").cpu("3").build()], actor=SYSTEM)
    seen = api("submitter", "team").get(ADDRESS)
    assert shape_of(seen, "3")["like"] is None


def test_copies_that_run_by_emulation_are_counted_apart(api: Callable[..., Api], policies: None) -> None:
    nodes = (
        a_node("native").cpu("4").isa("rv64gc").labelled({"hetsched.io/pool": "boards"}),
        a_node("host").cpu("8").isa("x86-64-v3", emulated=("rv64gc",)),
    )
    content = ClusterContent(nodes=tuple(node.build() for node in nodes))
    cluster = import_cluster(content, name="rooms", actor=SYSTEM)
    submit(cluster, [a_pod("job").cpu("3").isa("rv64gc", emulated="rv64gc").build()], actor=SYSTEM)
    seen = api("viewer").get(ADDRESS)
    shape = shape_of(seen, "3")
    found = {
        pool["family"]: (count, emulated)
        for pool, count, emulated in zip(seen["pools"], shape["counts"], shape["emulatedCounts"], strict=True)
    }
    assert found == {"riscv": (1, 0), "x86": (2, 2)}
    assert all(sum(item["emulatedCounts"]) == 0 for item in seen["shapes"] if item["cpu"] != "3")
