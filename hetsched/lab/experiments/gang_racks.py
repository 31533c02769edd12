"""Gangs in racks: empty racks after a stream of gangs, and the time of one decision on a large fleet.

The stream runs on 33 racks of 18 nodes with 4 GPUs, under the built-in policy `binpack` with the rack as the required
topology level, and under the rule to compare with: the rack with the fewest free GPUs that holds the gang, then the
fullest node. The sizes of the gangs and the order of their ends are pseudo-random. The large fleet has 5,000 nodes in
33 racks; one gang of 512 members with one GPU each is decided by the default policy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.objects.workload import GangMember, GangTopology, GpuDemand, PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, PODS
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry

from .outcome import ExpectedResult, ResultRow

RACKS, NODES_OF_RACK, GPUS_OF_NODE = 33, 18, 4
GANGS = 120
_LABEL = "example.com/rack"
_SEEDS = (0, 1)
_LARGE_NODES, _LARGE_MEMBERS = 5_000, 512
_RIVAL = "least free GPUs"


class StreamGang(NamedTuple):
    """One gang of a stream: its members, the GPUs of each, and the number of the gang at whose arrival it ends."""

    members: int
    gpus: int
    end: int


class RackFleet(Protocol):
    """Fleet of racks that places whole gangs."""

    def add(self, number: int, gang: StreamGang) -> bool:
        """Place a gang in one rack; return False if no rack holds it."""

    def remove(self, number: int) -> None:
        """Remove the pods of a gang, if it was placed."""

    def empty_racks(self) -> int:
        """Return the number of racks without a pod."""


def stream(seed: int) -> list[StreamGang]:
    """Return gangs of 8 to 64 GPUs with 1, 2 or 4 GPUs for each member, which use about two thirds of the fleet."""
    draw = random.Random(seed)
    gangs = []
    for number in range(GANGS):
        gpus = draw.choice((1, 2, 4))
        members = draw.choice((8, 16, 32, 64)) // gpus
        gangs.append(StreamGang(members, gpus, number + draw.randrange(20, 80)))
    return gangs


class LeastFreeRack:
    """The rule to compare with, on counts of free GPUs."""

    def __init__(self) -> None:
        self._free = [[GPUS_OF_NODE] * NODES_OF_RACK for _ in range(RACKS)]
        self._used: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, number: int, gang: StreamGang) -> bool:
        for rack in sorted(range(RACKS), key=lambda rack: (sum(self._free[rack]), rack)):
            free = self._free[rack]
            if sum(each // gang.gpus for each in free) < gang.members:
                continue
            used = self._used[number] = []
            for _ in range(gang.members):
                fitting = [node for node in range(NODES_OF_RACK) if free[node] >= gang.gpus]
                node = min(fitting, key=free.__getitem__)
                free[node] -= gang.gpus
                used.append((rack, node, gang.gpus))
            return True
        return False

    def remove(self, number: int) -> None:
        for rack, node, gpus in self._used.pop(number, ()):
            self._free[rack][node] += gpus

    def empty_racks(self) -> int:
        return sum(sum(free) == GPUS_OF_NODE * NODES_OF_RACK for free in self._free)


class PolicyFleet:
    """The fleet under a built-in policy."""

    def __init__(self, policy: str) -> None:
        nodes = [_node(rack, number) for rack in range(RACKS) for number in range(NODES_OF_RACK)]
        self._scheduler = _scheduler(nodes, policy)
        self._placed: dict[int, list[PodSpec]] = {}

    def add(self, number: int, gang: StreamGang) -> bool:
        pods = _members(f"g{number}", gang.members, gang.gpus)
        self._placed[number] = [pods[position] for position in _decide(self._scheduler, pods)]
        return bool(self._placed[number])

    def remove(self, number: int) -> None:
        for pod in self._placed.pop(number, ()):
            self._scheduler.state.forget(pod.key)

    def empty_racks(self) -> int:
        state = self._scheduler.state
        return RACKS - len({state.reports[placed.row].labels[_LABEL] for placed in state.placed_pods.values()})


def replay(fleet: RackFleet, gangs: Sequence[StreamGang]) -> tuple[float, int]:
    """Return the mean number of empty racks in the second half of the stream, and the number of rejected gangs."""
    empty, rejected = [], 0
    for number, gang in enumerate(gangs):
        for earlier in range(number):
            if gangs[earlier].end == number:
                fleet.remove(earlier)
        rejected += not fleet.add(number, gang)
        if number >= len(gangs) // 2:
            empty.append(fleet.empty_racks())
    return sum(empty) / len(empty), rejected


def large_decision() -> tuple[float, int, int]:
    """Decide the large gang; return the processor time in seconds, and the numbers of placed members and of racks."""
    nodes = [_node(number * RACKS // _LARGE_NODES, number) for number in range(_LARGE_NODES)]
    scheduler = _scheduler(nodes, "hetsched")
    # A first gang loads what later decisions share, as in a process that runs for some time.
    _decide(scheduler, _members("first", 2, 1))
    pods = _members("large", _LARGE_MEMBERS, 1)
    began = time.process_time()
    rows = _decide(scheduler, pods).values()
    seconds = time.process_time() - began
    return seconds, len(rows), len({scheduler.state.reports[row].labels[_LABEL] for row in rows})


def rows_and_expectations() -> tuple[list[ResultRow], list[ExpectedResult]]:
    """Run the streams and the large decision."""
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    for seed in _SEEDS:
        title = f"{RACKS} racks of {NODES_OF_RACK} nodes with {GPUS_OF_NODE} GPUs, {GANGS} gangs, seed {seed}"
        gangs = stream(seed)
        found = {"binpack": replay(PolicyFleet("binpack"), gangs), _RIVAL: replay(LeastFreeRack(), gangs)}
        for name, (empty, rejected) in found.items():
            rows.append(ResultRow(name, title, "empty racks, mean", round(empty, 2)))
            rows.append(ResultRow(name, title, "rejected gangs", rejected))
        (empty, rejected), (rival, rival_rejected) = found["binpack"], found[_RIVAL]
        text = f"{title}: {empty:.2f} empty racks, {rejected} rejected ({_RIVAL}: {rival:.2f}, {rival_rejected})"
        expectations.append(ExpectedResult(text, empty >= rival and rejected <= rival_rejected))
    seconds, members, racks = large_decision()
    title = f"{_LARGE_NODES:,} nodes in {RACKS} racks, one gang of {_LARGE_MEMBERS}"
    rows.append(ResultRow("hetsched", title, "decision, processor time, s", round(seconds, 3)))
    expectations.append(
        ExpectedResult(f"{title}: {members} members in {racks} rack", (members, racks) == (_LARGE_MEMBERS, 1))
    )
    return rows, expectations


def _scheduler(nodes: Sequence[NodeReport], policy: str) -> Scheduler:
    return Scheduler(ClusterState(nodes), compile_policy(BUILTIN[policy], load_registry()))


def _decide(scheduler: Scheduler, pods: Sequence[PodSpec]) -> dict[int, int]:
    """Schedule the members of a gang; return the row of each placed member, by its position in `pods`."""
    positions = {pod.key: position for position, pod in enumerate(pods)}
    outcomes = [scheduler.schedule(pod) for pod in scheduler.policy.queue(pods, scheduler.state)]
    scheduler.settle()
    return {positions[outcome.pod.key]: outcome.row for outcome in outcomes if outcome.node is not None}


def _node(rack: int, number: int) -> NodeReport:
    name = f"r{rack:02}-{number:04}"
    cards = tuple(GpuCard(index=index, model="A100-SXM4-80GB", memory_mib=81_920) for index in range(GPUS_OF_NODE))
    labels = {"kubernetes.io/hostname": name, _LABEL: f"r{rack:02}"}
    allocatable = {CPU: 64_000, MEMORY: 512 * 2**30, PODS: 110}
    return NodeReport(name=name, labels=labels, allocatable=allocatable, gpus=cards, source="file")


def _members(name: str, count: int, gpus: int) -> list[PodSpec]:
    requests = ((CPU, 4_000), (MEMORY, 16 * 2**30), (PODS, 1))
    shape = Shape(
        requests=requests,
        nonzero_cpu_millis=4_000,
        nonzero_memory_bytes=16 * 2**30,
        gpu=GpuDemand(gpus),
    )
    gang = GangMember(name, count, topology=GangTopology((), (_LABEL,)))
    return [PodSpec("default", f"{name}-{number}", shape, gang=gang) for number in range(count)]
