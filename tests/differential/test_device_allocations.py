"""hetsched allocates devices on the nodes on which kube-scheduler's own code does, and each allocation is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hetsched.engine.cluster.devices import search as device_search
from hetsched.engine.cluster.devices.search import DeviceSearch
from tests import parts
from tests.kube import control_plane

from . import verdicts
from .device_allocations import DeviceAllocations, Result, quantity
from .device_clusters import draw_devices
from .device_comparison import place
from .summary import DEVICES, compare, minimal
from .test_kube_scheduler import without
from .verdicts import KubeScheduler

CASES = 1500
needs_kube_scheduler = pytest.mark.needs(control_plane.SCHEDULER_VERDICTS)


@pytest.fixture(scope="module")
def kube_scheduler() -> Iterator[KubeScheduler]:
    with KubeScheduler(parts.require(control_plane.SCHEDULER_VERDICTS)) as running:
        yield running


@needs_kube_scheduler
@pytest.mark.parametrize("first", range(0, CASES, 500))
def test_random_devices_have_no_unexplained_difference(kube_scheduler: KubeScheduler, first: int) -> None:
    summary = compare(DEVICES, kube_scheduler, range(first, first + 500))
    assert summary.pods > 900
    assert not summary.unexplained, minimal(DEVICES, *summary.unexplained[0], kube_scheduler)


@needs_kube_scheduler
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(without("DeviceTaintRule"), id="taint rules are ignored"),
        pytest.param(without(field="tolerations"), id="tolerations are ignored"),
        pytest.param(without(field="consumesCounters"), id="counters are ignored"),
        pytest.param(without(field="consumedCapacity"), id="consumed capacity is ignored"),
        pytest.param(without(field="requestPolicy"), id="request policies are ignored"),
        pytest.param(without(field="constraints"), id="constraints are ignored"),
        pytest.param(without(field="perDeviceNodeSelection"), id="nodes of devices are ignored"),
        pytest.param(without(field="adminAccess"), id="admin access is ignored"),
        pytest.param(without(field="extendedResourceName"), id="extended resources are ignored"),
    ],
)
def test_planted_bug_is_found(
    kube_scheduler: KubeScheduler, bug: Callable[[Sequence[Any]], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "as_list", bug)
    batches = (range(first, first + 50) for first in range(0, CASES, 50))
    assert any(compare(DEVICES, kube_scheduler, batch).unexplained for batch in batches)


@needs_kube_scheduler
@pytest.mark.parametrize(
    ("owner", "condition"),
    [
        (DeviceSearch, "_is_free"),
        (device_search, "_has_capacity"),
        (DeviceSearch, "_has_counters"),
        (DeviceSearch, "_meets_constraints"),
    ],
)
def test_search_without_a_condition_is_found(
    kube_scheduler: KubeScheduler, owner: object, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, condition, lambda *_: True)
    batches = (range(first, first + 50) for first in range(0, CASES, 50))
    assert any(compare(DEVICES, kube_scheduler, batch).unexplained for batch in batches)


def test_most_random_pods_get_devices_or_a_reason() -> None:
    placements = [placement for seed in range(100) for placement in place(draw_devices(seed))]
    placed = [placement for placement in placements if placement.node is not None]
    assert 0.2 < len(placed) / len(placements) < 0.8
    assert sum(grant.consumed is not None for placement in placed for grant in placement.grants) > 10


def test_check_rejects_invalid_allocations() -> None:
    device = {"name": "d0", "attributes": {"root": {"int": 1}}, "capacity": {"memory": {"value": "4"}}}
    shared = {**device, "name": "d1", "allowMultipleAllocations": True}
    spec = {"driver": "gpu.example.com", "nodeName": "n0", "pool": {"name": "p", "generation": 1}}
    objects: list[Any] = [
        {"kind": "Node", "metadata": {"name": "n0", "labels": {}}},
        {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}},
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**spec, "devices": [device, shared]}},
    ]
    request = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}}}
    whole = Result("r", ("gpu.example.com", "p", "d0"))
    part = Result("r", ("gpu.example.com", "p", "d1"), consumed={"memory": quantity("3")})
    allocations = DeviceAllocations(objects)
    assert allocations.problem(claim, "n0", [whole]) == ""
    assert "2 devices" in allocations.problem(claim, "n0", [whole, part])
    assert "not exactly one" in allocations.problem(claim, "n0", [])
    assert "cannot access" in allocations.problem(claim, "n1", [whole])
    allocations.add([whole, part])
    assert allocations.problem(claim, "n0", [whole]) == "a device is in use"
    assert "is exceeded" in allocations.problem(claim, "n0", [part])


def test_counters_are_available_again_after_the_end_of_an_allocation() -> None:
    spec = {"driver": "gpu.example.com", "nodeName": "n0", "pool": {"name": "p", "generation": 1}}
    consumed = [{"counterSet": "slots", "counters": {"n": {"value": "2"}}}]
    memory = {"memory": {"value": "8"}}
    shared = {"allowMultipleAllocations": True, "capacity": memory, "consumesCounters": consumed}
    devices = [{"name": "d0", "capacity": memory, "consumesCounters": consumed}, {"name": "d1", **shared}]
    counters = [{"name": "slots", "counters": {"n": {"value": "3"}}}]
    objects: list[Any] = [
        {"kind": "Node", "metadata": {"name": "n0", "labels": {}}},
        {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}},
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**spec, "devices": devices}},
        {"kind": "ResourceSlice", "metadata": {"name": "c"}, "spec": {**spec, "sharedCounters": counters}},
    ]
    request = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}}}
    whole = Result("r", ("gpu.example.com", "p", "d0"))
    part = Result("r", ("gpu.example.com", "p", "d1"), consumed={"memory": quantity("3")})
    allocations = DeviceAllocations(objects)
    allocations.add([part])
    assert allocations.problem(claim, "n0", [part]) == ""  # the second share consumes no counters
    assert "counters are exceeded" in allocations.problem(claim, "n0", [whole])
    allocations.add([part])
    allocations.remove([part])
    assert "counters are exceeded" in allocations.problem(claim, "n0", [whole])
    allocations.remove([part])
    assert allocations.problem(claim, "n0", [whole]) == ""
