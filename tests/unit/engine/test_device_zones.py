"""Devices of resource claims in the NUMA zones of a pod's CPUs, compared with a brute force on small nodes.

HETSCHED_TEST_DEVICE_ZONES sets the number of random cases.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    AttributeConstraint,
    Device,
    DeviceId,
    DeviceRequest,
    Devices,
    DeviceWish,
    ResourceClaim,
    SelectorVerdict,
    Value,
)
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import DeviceUse
from hetsched.engine.cluster.devices.numa import numa_nodes
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.device_zones import alignments
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of

STANDARD = "resource.kubernetes.io/numaNode"
CASES = int(os.environ.get("HETSCHED_TEST_DEVICE_ZONES", "400"))


def device(name: str, numa: int | None = None, node: str = "n", driver: str = "gpu", **attributes: Value) -> Device:
    facts = {f"{driver}/{key}": value for key, value in attributes.items()}
    return Device(DeviceId(driver, node, name), node, facts | ({} if numa is None else {STANDARD: numa}))


def claim(name: str, *wishes: DeviceWish, match: str = "", used: Device | None = None) -> ResourceClaim:
    requests = tuple(DeviceRequest(wish.device_class, (wish,)) for wish in wishes)
    constraints = (AttributeConstraint(match),) if match else ()
    allocated = None if used is None else (AllocatedDevice(used.id),)
    return ResourceClaim("default", name, f"u-{name}", requests, constraints, allocated)


def known(devices: Sequence[Device], *claims: ResourceClaim) -> Devices:
    """Return these devices with a device class for each driver."""
    drivers = {device.id.driver for device in devices} | {"gpu", "nic"}
    verdicts = {
        driver: SelectorVerdict(tuple(i for i, device in enumerate(devices) if device.id.driver == driver))
        for driver in drivers
    }
    classes = {driver: (driver,) for driver in drivers}
    return Devices(tuple(devices), classes, {each.key: each for each in claims}, verdicts)


def gpus(count: int = 1) -> DeviceWish:
    return DeviceWish("", "gpu", count=count)


def machine(name: str = "n") -> NodeBuilder:
    """Return a node with 4 CPUs in zone node0 and 6 in node1."""
    return a_node(name).cpu(10).zone("node0", "0-3", cpu="4").zone("node1", "4-9", cpu="6")


def wanting(cpus: int, *claims: str, aware: bool | None = True) -> PodBuilder:
    uses = tuple(DeviceUse(name, name) for name in claims)
    return a_pod("new").cpu(cpus).guaranteed().numa(aware, "exclusive").shaped(devices=uses)


def deciding(
    nodes: Sequence[NodeBuilder], devices: Devices, *running: PodBuilder, zones: str = "prefer", late: bool = False
) -> Scheduler:
    state = ClusterState([node.build() for node in nodes], [pod.build() for pod in running], devices=devices)
    uses: list[PluginUse | str] = [PluginUse("devices", params={"zones": zones}), "resource-fit", "numa-fit", "gpu-fit"]
    if late:
        uses.append(uses.pop(0))
    return Scheduler(state, policy_of(*uses))


def placed(chosen: Scheduler, pod: PodBuilder) -> tuple[list[str], list[str], list[str | None]] | None:
    """Return the zones of the CPUs, the devices and the zones of the devices, or None if the pod does not fit."""
    outcome = chosen.schedule(pod.build())
    if outcome.node is None:
        return None
    found = outcome.allocation
    cpus = [zone.name for zone in found.zones or found.predicted]
    return cpus, [grant.device.name for grant in found.devices], [grant.zone for grant in found.devices]


# -- NUMA nodes of devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "attributes", "number"),
    [
        ("gpu.nvidia.com", {"gpu.nvidia.com/numa": 1}, 1),
        ("gpu.amd.com", {"gpu.amd.com/numaNode": 0}, 0),
        ("dra.cpu", {"dra.cpu/numaNodeID": 3}, 3),
        ("dra.net", {"dra.net/numaNode": 2}, 2),
        ("dra.net", {"dra.net/numaNode": 2, STANDARD: 1}, 1),
        ("dra.memory", {"dra.cpu/numaNode": 1, "dra.memory/numaNode": 0}, 0),
        ("gpu", {STANDARD: -1}, None),
        ("gpu", {STANDARD: True}, None),
        ("gpu", {"gpu/numaDistance": 10}, None),
    ],
)
def test_numa_node_is_read_from_attributes(driver: str, attributes: dict[str, Value], number: int | None) -> None:
    assert numa_nodes([Device(DeviceId(driver, "n", "d"), "n", attributes)]) == [number]


def test_device_is_near_the_numa_node_of_its_pcie_root() -> None:
    root = "resource.kubernetes.io/pcieRoot"

    def at(node: str, place: str, **more: Value) -> Device:
        return Device(DeviceId("gpu", node, place), node, {root: place[:1], **more})

    devices = [at("a", "0"), at("a", "0n", numaNode=1), at("a", "1"), at("b", "0"), at("b", "0n", numaNode=0)]
    assert numa_nodes(devices) == [1, 1, None, 0, 0]
    # Devices of one root complex that state different nodes give no zone to the other devices.
    assert numa_nodes([*devices, at("a", "0m", numaNode=0)])[0] is None


def test_device_of_several_nodes_is_near_no_numa_node() -> None:
    assert numa_nodes([Device(DeviceId("gpu", "fabric", "d"), "", {STANDARD: 1})]) == [None]


# -- one decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_cpus_follow_the_zone_of_the_device(late: bool) -> None:
    devices = known([device("d0", 0)], claim("c", gpus()))
    assert placed(deciding([machine()], devices, late=late), wanting(2, "c")) == (["node0"], ["d0"], ["node0"])
    # Without the claim, the pod gets the zone with the most free CPUs.
    assert placed(deciding([machine()], devices), wanting(2)) == (["node1"], [], [])


def test_device_follows_the_only_zone_with_enough_cpus() -> None:
    devices = known([device("d0", 0), device("d1", 1)], claim("c", gpus()))
    assert placed(deciding([machine()], devices), wanting(5, "c")) == (["node1"], ["d1"], ["node1"])


def test_remote_device_is_refused_only_if_zones_are_required() -> None:
    devices = known([device("d0", 0)], claim("c", gpus()))
    assert placed(deciding([machine()], devices), wanting(5, "c")) == (["node1"], ["d0"], ["node0"])
    required = deciding([machine()], devices, zones="require")
    assert placed(required, wanting(5, "c")) is None
    (reason,) = diagnose(required, wanting(5, "c").build()).reasons
    assert (reason.code, reason.message) == (
        "DevicesNotAligned",
        "the free devices for claim c are not in the NUMA zones of the pod's CPUs",
    )


def test_required_zones_select_the_node_with_near_devices() -> None:
    there = [device("d", 0, "a"), device("d", 1, "b")]
    devices = known(there, claim("c", gpus()))
    required = deciding([machine("a"), machine("b")], devices, zones="require")
    assert required.schedule(wanting(5, "c").build()).node == "b"


def test_device_of_unknown_zone_is_near_all_zones() -> None:
    devices = known([device("d0"), device("d1", 0)], claim("c", gpus()))
    required = deciding([machine()], devices, zones="require")
    assert placed(required, wanting(5, "c")) == (["node1"], ["d0"], [None])


def test_devices_of_two_drivers_are_in_the_zone_of_the_cpus() -> None:
    nic = DeviceWish("", "nic")
    there = [device("g0", 0), device("g1", 1), device("n0", 1, driver="nic")]
    devices = known(there, claim("g", gpus()), claim("n", nic))
    found = placed(deciding([machine()], devices, zones="require"), wanting(2, "g", "n"))
    assert found == (["node1"], ["g1", "n0"], ["node1", "node1"])


def test_cpus_follow_the_devices_of_an_allocated_claim() -> None:
    used = device("d0", 0)
    devices = known([used, device("d1", 1)], claim("c", gpus(), used=used))
    assert placed(deciding([machine()], devices), wanting(2, "c")) == (["node0"], [], [])
    assert placed(deciding([machine()], devices, zones="require"), wanting(5, "c")) is None


def test_request_for_all_devices_ignores_zones() -> None:
    devices = known([device("d0", 0), device("d1", 1)], claim("c", DeviceWish("", "gpu", all=True)))
    assert placed(deciding([machine()], devices), wanting(2, "c")) == (["node1"], ["d0", "d1"], ["node0", "node1"])
    assert placed(deciding([machine()], devices, zones="require"), wanting(2, "c")) is None


def test_pod_that_may_cross_zones_prefers_the_zone_of_its_device() -> None:
    devices = known([device("d0", 0)], claim("c", gpus()))
    assert placed(deciding([machine()], devices), wanting(2, "c", aware=False)) == (["node0"], ["d0"], ["node0"])
    assert placed(deciding([machine()], devices), wanting(8, "c", aware=False)) == (
        ["node0", "node1"],
        ["d0"],
        ["node0"],
    )


def test_devices_follow_the_cpus_that_the_kubelet_pins() -> None:
    node = machine().kubelet("static", "single-numa-node")
    devices = known([device("d0", 0), device("d1", 1)], claim("c", gpus()), claim("d", gpus()))
    chosen = deciding([node], devices, zones="require")
    pod = a_pod("new").cpu(4).guaranteed().shaped(devices=(DeviceUse("c", "c"),))
    assert placed(chosen, pod) == (["node0"], ["d0"], ["node0"])
    again = a_pod("more").cpu(4).guaranteed().shaped(devices=(DeviceUse("d", "d"),))
    assert placed(chosen, again) == (["node1"], ["d1"], ["node1"])


def test_alignment_is_described() -> None:
    devices = known([device("d0", 0), device("d1", 1)], claim("c", gpus()))
    near = deciding([machine()], devices).schedule(wanting(5, "c").build()).allocation
    assert list(alignments(near)) == ["the devices of claim c and the CPUs are in NUMA zone node1"]
    far = deciding([machine()], known([device("d0", 0)], claim("c", gpus()))).schedule(wanting(5, "c").build())
    assert list(alignments(far.allocation)) == ["the devices of claim c are in NUMA zone node0, the CPUs in node1"]
    assert list(alignments(Allocation(devices=near.devices))) == []


# -- brute force -----------------------------------------------------------------------------------------------------


class Case:
    """A random cluster of at most 2 nodes, and a pod that requests CPUs and devices."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.static = draw.random() < 0.3
        self.aware = draw.random() < 0.7
        self.nodes: list[NodeBuilder] = []
        self.running: list[PodBuilder] = []
        self.free: dict[str, list[int]] = {}
        self.devices: list[Device] = []
        for name in "ab"[: draw.choice((1, 1, 2))]:
            self._add_node(name, draw)
        self.cpus = draw.randint(1, 4)
        match = draw.choice(("", "", "gpu/root"))
        wishes = [DeviceWish("", driver, count=draw.randint(1, 2)) for driver in ("gpu", "nic") if draw.random() < 0.6]
        wishes = wishes or [gpus()]
        whole = match == "" or {wish.device_class for wish in wishes} == {"gpu"}
        self.claims = [claim("c0", *wishes, match=match if whole else "")]
        if draw.random() < 0.4:
            self.claims.append(claim("c1", gpus()))

    def _add_node(self, name: str, draw: random.Random) -> None:
        sizes = [draw.randint(1, 4) for _ in range(draw.randint(2, 3))]
        node, first = a_node(name).cpu(sum(sizes)), 0
        free = []
        for position, size in enumerate(sizes):
            node.zone(f"node{position}", f"{first}-{first + size - 1}", cpu=str(size))
            taken = 0 if self.static else draw.randint(0, size)
            free.append(size - taken)
            if taken:
                ids = f"{first}-{first + taken - 1}"
                grant = ZoneGrant(f"node{position}", ids, 1000 * taken)
                busy = a_pod(f"busy-{name}{position}").cpu(taken).guaranteed().numa(True, "exclusive")
                self.running.append(busy.holding(name, grant, policy="exclusive"))
            first += size
        self.free[name] = free
        self.nodes.append(node.kubelet("static", "single-numa-node") if self.static else node)
        for number in range(draw.randint(0, 5)):
            driver = draw.choice(("gpu", "gpu", "nic"))
            near = draw.choice((*range(len(sizes)), *range(len(sizes)), None))
            self.devices.append(device(f"{driver}{number}", near, name, driver, root=draw.randint(0, 1)))

    @property
    def pod(self) -> PodBuilder:
        uses = tuple(DeviceUse(each.name, each.name) for each in self.claims)
        pod = a_pod("new").cpu(self.cpus).memory("1Mi").guaranteed().shaped(devices=uses)
        return pod if self.static else pod.numa(self.aware, "exclusive")

    def scheduler(self, zones: str) -> Scheduler:
        return deciding(self.nodes, known(self.devices, *self.claims), *self.running, zones=zones)

    def zone_sets(self, node: str) -> Iterator[set[int]]:
        """Yield the sets of zones from which the pod may get its CPUs."""
        free = self.free[node]
        single = [{zone} for zone, count in enumerate(free) if count >= self.cpus]
        if self.static:  # the kubelet takes the lowest zone
            yield from single[:1]
            return
        yield from single
        if not self.aware and not single and sum(free) >= self.cpus:
            yield self._crossing(free)

    def _crossing(self, free: list[int]) -> set[int]:
        taken, remaining = set(), self.cpus
        for zone in sorted(range(len(free)), key=lambda zone: (-free[zone], zone)):
            if remaining > 0 and free[zone]:
                taken.add(zone)
                remaining -= free[zone]
        return taken

    def is_alignable(self, node: str) -> bool:
        """Return whether some set of zones and some set of devices near them serve the pod on a node."""
        return any(self._serves(node, zones) for zones in self.zone_sets(node))

    def _serves(self, node: str, zones: set[int]) -> bool:
        near = [
            each for each in self.devices
            if each.node == node and each.attributes.get(STANDARD, next(iter(zones))) in zones
        ]  # fmt: skip
        return _serves(near, self.claims)


def _serves(devices: Sequence[Device], claims: Sequence[ResourceClaim]) -> bool:
    """Return whether disjoint sets of devices serve all claims, by trying all sets."""
    if not claims:
        return True
    first, *others = claims
    return any(
        _serves([each for each in devices if each not in chosen], others)
        for chosen in _sets(devices, [request.wishes[0] for request in first.requests])
        if not first.constraints or len({each.attributes["gpu/root"] for each in chosen}) == 1
    )


def _sets(devices: Sequence[Device], wishes: Sequence[DeviceWish]) -> Iterator[tuple[Device, ...]]:
    if not wishes:
        yield ()
        return
    first, *others = wishes
    those = [each for each in devices if each.id.driver == first.device_class]
    for chosen in combinations(those, first.count):
        for more in _sets([each for each in devices if each not in chosen], others):
            yield (*chosen, *more)


def _is_aligned(allocation: Allocation) -> bool:
    cpus = {zone.name for zone in allocation.zones or allocation.predicted}
    return all(grant.zone is None or grant.zone in cpus for grant in allocation.devices)


def test_aligned_placement_is_found_if_a_brute_force_finds_one() -> None:
    found = aligned = refused = 0
    for seed in range(CASES):
        case = Case(seed)
        alignable = [name for name in case.free if case.is_alignable(name)]
        outcome = case.scheduler("require").schedule(case.pod.build())
        assert (outcome.node in alignable) if alignable else outcome.node is None, seed
        assert _is_aligned(outcome.allocation), seed
        preferred = case.scheduler("prefer").schedule(case.pod.build())
        if preferred.node is not None:
            found += 1
            aligned += _is_aligned(preferred.allocation)
            assert _is_aligned(preferred.allocation) == (preferred.node in alignable), seed
        refused += preferred.node is not None and outcome.node is None
    assert aligned > CASES // 8
    assert refused > CASES // 100
    assert found - aligned >= refused
