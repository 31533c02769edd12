"""The cached use of devices and the cached results of searches equal those of a new state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    Device,
    DeviceId,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
)
from hetsched.contracts.objects.node_constraints import Toleration
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.devices.search import DeviceSearch, NodeDevices
from hetsched.engine.cluster.devices.state import DeviceState
from hetsched.engine.cluster.devices.verdicts import DeviceVerdicts
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from tests.differential import verdicts
from tests.differential.device_clusters import draw_contended_devices

POLICY = compile_policy(next(iter(BUILTIN.values())), load_registry(), implied=True)


def new_devices(state: ClusterState) -> DeviceState:
    """Return a state of the devices that contains no cached results."""
    devices = DeviceState(state.devices.known)
    for placed in state.placed_pods.values():
        devices.charge(placed, 1)
    return devices


def check(state: ClusterState, pods: list[PodSpec]) -> None:
    devices, fresh = state.devices, new_devices(state)
    usage, expected = devices.usage(), fresh.usage()
    assert (usage.exclusive, usage.shares, usage.remaining) == (
        expected.exclusive, expected.shares, expected.remaining,
    )  # fmt: skip
    for pod in pods:
        found = [fresh.resolve_claim(pod, use) for use in pod.shape.devices]
        claims = [each for each in found if isinstance(each, ResourceClaim) and each.allocated is None]
        if claims:
            assert devices.searches(claims, state, devices.usage()) == uncached(fresh, claims, state)


def uncached(devices: DeviceState, claims: list[ResourceClaim], state: ClusterState) -> Mapping[int, str]:
    found = {row: devices.allocate(claims, places, devices.usage()) for row, places in devices.by_node(state).items()}
    return {row: each if isinstance(each, str) else "" for row, each in found.items()}


def record_claims(state: ClusterState, draw: random.Random) -> None:
    """Record the promised devices of some claims, and remove the allocations of others, as the informer does."""
    known = state.devices.known
    claims = dict(known.claims)
    for key in draw.sample(sorted(claims), len(claims) // 3):
        grants = state.devices.promised.get(key)
        allocated = grants and tuple(AllocatedDevice(each.device, each.admin, each.consumed) for each in grants)
        claims[key] = msgspec.structs.replace(claims[key], allocated=allocated or None)
    content: Any = msgspec.structs.replace(known, claims=claims)
    assert state.devices.replace_claims(content)
    assert state.devices.known == content


def test_call_ends_after_several_stopped_searches() -> None:
    nodes, searched = {row: NodeDevices((row,)) for row in range(20)}, list[int]()
    devices = [Device(DeviceId("d", "pool", str(row))) for row in range(20)]

    def search(node: NodeDevices) -> str:
        searched.extend(node.places)
        return "search" if node.places[0] < 10 else ""

    results, calls = DeviceVerdicts(), 0
    while calls < 2:
        found, calls = results.search((), nodes, devices, search), calls + 1
        # The second call searches the nodes that remain, and no node twice.
        assert searched == list(range(8 if calls == 1 else 20))
        assert [row for row, result in found.items() if not result] == ([] if calls == 1 else list(range(10, 20)))


@pytest.mark.parametrize("seed", range(2))
def test_cached_results_equal_new_results(seed: int) -> None:
    case, draw = draw_contended_devices(seed, 6), random.Random(seed)
    content = parse_cluster([("cluster.json", verdicts.as_list(case.objects))])
    pods = list(parse_workload([("pods.json", verdicts.as_list(case.pods))], known=content).pending)
    state = ClusterState.of(content)
    scheduler, placed = Scheduler(state, POLICY), list[str]()
    for step in range(20):
        pod = draw.choice(pods)
        if pod.key in placed:
            placed.remove(pod.key)
            state.forget(pod.key)
        elif scheduler.schedule(pod).node is not None:
            placed.append(pod.key)
        if step % 10 == 9:
            record_claims(state, draw)
        check(state, pods)
    check(state.fork(), pods)


@pytest.mark.parametrize(
    ("tolerated", "used", "count", "searches"),
    [
        pytest.param("broken", 0, 3, ["few"], id="tolerated taint"),
        pytest.param("old", 0, 1, ["few", "taints"], id="taint of a free device"),
        pytest.param("old", 2, 1, ["few"], id="taint of devices in use"),
    ],
)
def test_search_is_repeated_only_if_a_taint_excluded_a_free_device(
    tolerated: str, used: int, count: int, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, found = DeviceSearch.run, list[str]()

    def recorded(search: DeviceSearch, claims: list[ResourceClaim]) -> list[DeviceGrant] | str:
        result = run(search, claims)
        found.append(result if isinstance(result, str) else "taints")
        return result

    monkeypatch.setattr(DeviceSearch, "run", recorded)
    devices = tuple(Device(DeviceId("d", "pool", str(name)), taints=(Taint("broken"),)) for name in range(2))
    holders = {
        device.id.name: ResourceClaim("ns", device.id.name, allocated=(AllocatedDevice(device.id),))
        for device in devices[:used]
    }
    state = DeviceState(Devices(devices, {"gpu": ()}, holders))
    wish = DeviceWish("", "gpu", count=count, tolerations=(Toleration(tolerated, "Exists"),))
    claim = ResourceClaim("ns", "c", requests=(DeviceRequest("r", (wish,)),))
    state.allocate([claim], NodeDevices((0, 1)), state.usage())
    assert found == searches


def test_changed_devices_are_not_replaced_as_claims() -> None:
    case = draw_contended_devices(1, 4)
    content = parse_cluster([("cluster.json", verdicts.as_list(case.objects))])
    state = ClusterState.of(content)
    before = state.devices.known
    assert not state.devices.replace_claims(msgspec.structs.replace(before, devices=before.devices[1:]))
    assert state.devices.known is before
