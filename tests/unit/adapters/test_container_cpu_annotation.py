"""The allocation annotation lists the CPUs of each container."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.adapters.objects.allocation import by_container, parse_allocation, write_allocation
from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.workload import ContainerDemand, PodSpec
from tests.builders import a_pod
from tests.unit.adapters.reading import pod


def holding(zones: dict[str, str], policy: str = "exclusive", **cpus: int) -> PodSpec:
    """Return a pod whose containers request whole CPUs, with these CPUs of its zones."""
    grants = tuple(ZoneGrant(name, ids) for name, ids in zones.items())
    demands = tuple(ContainerDemand(count) for count in cpus.values())
    built = a_pod().containers(*demands).having(container_names=tuple(cpus))
    return built.having(allocation=Allocation(zones=grants, cpu_policy=policy)).build()


def test_single_container_gets_all_resources() -> None:
    assert by_container(holding({"node-0": "0-3"}, main=4)) == {"main": "0-3"}


def test_containers_get_disjoint_cpus() -> None:
    assert by_container(holding({"node-0": "0-5"}, main=2, cache=4)) == {"main": "4-5", "cache": "0-3"}


def test_container_is_in_one_zone_if_possible() -> None:
    # 4 CPUs fit only zone 1; 2 then fit zone 0 exactly.
    found = by_container(holding({"node-0": "0-1", "node-1": "8-11"}, small=2, large=4))
    assert found == {"small": "0-1", "large": "8-11"}


def test_container_larger_than_any_zone_crosses_zones() -> None:
    assert by_container(holding({"node-0": "0-1", "node-1": "8-9"}, main=3)) == {"main": "0-1,8"}


def test_shared_cpus_are_for_all_containers() -> None:
    assert by_container(holding({"node-0": "0-3"}, "numa", a=1, b=2)) == {"a": "0-3", "b": "0-3"}


def test_unnamed_container_gets_no_cpus() -> None:
    assert by_container(a_pod().build()) == {}
    assert by_container(holding({"node-0": ""}, main=4)) == {}
    unnamed = msgspec.structs.replace(holding({"node-0": "0-3"}, main=4), container_names=())
    assert by_container(unnamed) == {}


def test_init_containers_get_no_cpus() -> None:
    built = a_pod().containers(ContainerDemand(4, init=True), ContainerDemand(2)).having(container_names=("i", "main"))
    grant = Allocation(zones=(ZoneGrant("node-0", "0-1"),), cpu_policy="exclusive")
    assert by_container(built.having(allocation=grant).build()) == {"main": "0-1"}


def test_container_cpus_are_written_but_not_read() -> None:
    held = holding({"node-0": "0-3"}, main=4)
    assert held.allocation is not None
    text = write_allocation(held.allocation, by_container(held))
    assert text.endswith('"policy":"exclusive","containers":{"main":"0-3"}}')
    assert parse_allocation(text) == held.allocation


@pytest.mark.parametrize(("spec", "names"), [
    ("containers: [{name: web, resources: {limits: {cpu: 2}}}, {name: log}]", ("web",)),
    ("containers: [{resources: {limits: {cpu: 2}}}]", ("main",)),
    ("containers: [{name: web}]", ()),
])  # fmt: skip
def test_aligned_containers_keep_their_names(spec: str, names: tuple[str, ...]) -> None:
    assert pod(spec).container_names == names
