"""Time to find preemption victims for a high-priority pod on a full cluster.

Nodes of equal size are filled with pods of low priority. Then high-priority pods arrive one after the other. Each pod
fits only after a preemption, whose evictions are executed before the next pod arrives. The first cluster is that of
kube-scheduler's PreemptionBasic benchmark (four equal pods per node); the second has 32 pods of different sizes,
priorities and ages on each node. The baseline, a plain loop like that of kube-scheduler, alternates with the engine in
the same run: on every node, it removes all pods of lower priority, adds them back one by one, and compares the pods
that no longer fit (the victims) with those of the best node so far.
Check: for every pod that both schedule, the engine's victims are not worse than the loop's in kube-scheduler's order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, MIB, PODS
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.preemption.victims import SUM_OFFSET, importance, start_of

from .measure import BenchmarkRow, Checks, Progress, Scenario, machine, row

_CPU_MILLIS, _MEMORY = 4_000, 32 * 1024 * MIB


class Case(msgspec.Struct, frozen=True):
    """Cluster of a case; with `alike`, all its pods are equal. The baseline schedules `swept` preemptors per round."""

    nodes: int
    pods: int
    alike: bool
    preemptors: int
    swept: int


CASES = (Case(1_000, 4, True, 1_000, 20), Case(5_000, 32, False, 200, 2))
QUICK = (Case(20, 4, True, 10, 3), Case(10, 8, False, 5, 2))
_ROUNDS = 3


def run(*, quick: bool = False, progress: Progress) -> Scenario:
    """Run the measurements; wrong results are preemptors without a node and evictions costlier than the loop's."""
    policy = _policy()
    rows: list[BenchmarkRow] = []
    compared = worse = 0
    cases = QUICK if quick else CASES
    for done, case in enumerate(cases):
        state = _full(case)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(1 if quick else _ROUNDS):
            scheduler = Scheduler(state.fork(), policy, evicts=True)
            began = time.process_time()
            for number in range(case.preemptors):
                if scheduler.schedule(_important(number, case)).node is None:
                    worse += 1
            ours.append((time.process_time() - began) * 1e6 / case.preemptors)
            spent, seen, costly = _sweep(state, policy, case)
            theirs.append(spent)
            compared += seen
            worse += costly
        name = f"{case.nodes} nodes x {case.pods} {'equal' if case.alike else 'different'} pods"
        rows.append(row(f"{name}, CPU time", "us/preemptor", ours))
        rows.append(row(f"{name}, plain loop", "us/preemptor", theirs))
        rows.append(row(f"{name}, loop / ours", "ratio", [b / a for a, b in zip(ours, theirs, strict=True)]))
        progress(done + 1, len(cases))
    return Scenario("preempt", tuple(rows), machine(), Checks(compared, worse))


def _policy() -> Policy:
    default = BUILTIN[DEFAULT]
    plugins = tuple(use for use in default.plugins if use.name != "preemption")
    return compile_policy(
        msgspec.structs.replace(default, plugins=(*plugins, PluginUse("preemption"))), load_registry()
    )


def _full(case: Case) -> ClusterState:
    """Return a cluster on which every CPU is requested."""
    generator = random.Random(5)
    sizes = [_CPU_MILLIS // case.pods + step for step in ((0,) if case.alike else range(-40, 45, 5))]
    shapes = [_shape(size) for size in sizes]
    nodes: list[NodeReport] = []
    running: list[PodSpec] = []
    for number in range(case.nodes):
        pods = [
            PodSpec(
                "bench",
                f"low-{number:05d}-{slot:02d}",
                generator.choice(shapes),
                priority=0 if case.alike else generator.randrange(8),
                created_at="" if case.alike else f"2026-11-20T{generator.randrange(10, 20)}:00:00Z",
                node_name=f"node-{number:05d}",
            )
            for slot in range(case.pods)
        ]
        cpu = sum(pod.shape.request(CPU) for pod in pods)
        nodes.append(NodeReport(f"node-{number:05d}", allocatable={CPU: cpu, MEMORY: _MEMORY, PODS: 110}))
        running += pods
    return ClusterState(nodes, running)


def _shape(cpu_millis: int) -> Shape:
    memory = 64 * MIB
    requests = ((CPU, cpu_millis), (MEMORY, memory), (PODS, 1))
    return Shape(requests, nonzero_cpu_millis=cpu_millis, nonzero_memory_bytes=memory)


def _important(number: int, case: Case) -> PodSpec:
    # The size of three average pods.
    return PodSpec("bench", f"high-{number:05d}", _shape(3 * _CPU_MILLIS // case.pods), priority=100)


# -- the baseline ------------------------------------------------------------------------------------------------------


class _LoopNode(NamedTuple):
    """State of a node in the baseline loop."""

    allocatable: dict[str, int]
    pods: list[PlacedPod]


Cost = tuple[int, int, int, int, int]


def _sweep(state: ClusterState, policy: Policy, case: Case) -> tuple[float, int, int]:
    """Return the loop's CPU time in microseconds per preemptor, and the numbers of comparisons and worse results.

    A result is worse if the engine's victims have a higher cost than those of the loop.
    """
    scheduler = Scheduler(state.fork(), policy, evicts=True)
    spent = 0.0
    worse = 0
    for number in range(case.swept):
        pod = _important(number, case)
        nodes = [
            _LoopNode(dict(report.allocatable), list(pods.values()))
            for report, pods in zip(scheduler.state.reports, scheduler.state.on_row, strict=True)
        ]
        began = time.process_time()
        theirs = _loop(nodes, pod)
        spent += time.process_time() - began
        outcome = scheduler.schedule(pod)
        ours = _cost(outcome.evicted, outcome.row) if outcome.evicted else None
        worse += ours is None or (theirs is not None and theirs < ours)
    return spent * 1e6 / case.swept, case.swept, worse


def _loop(nodes: Sequence[_LoopNode], pod: PodSpec) -> Cost | None:
    best: Cost | None = None
    for at, node in enumerate(nodes):
        lower = [placed for placed in node.pods if placed.pod.priority < pod.priority]
        free = dict(node.allocatable)
        for placed in node.pods:
            if placed.pod.priority >= pod.priority:
                _take(free, placed.pod)
        _take(free, pod)
        if not lower or min(free.values()) < 0:
            continue
        victims = []
        for placed in sorted(lower, key=importance):
            if all(amount <= free[name] for name, amount in placed.pod.shape.requests):
                _take(free, placed.pod)
            else:
                victims.append(placed)
        if victims:
            cost = _cost(victims, at)
            if best is None or cost < best:
                best = cost
    return best


def _take(free: dict[str, int], pod: PodSpec) -> None:
    for name, amount in pod.shape.requests:
        free[name] -= amount


def _cost(victims: Sequence[PlacedPod], at: int) -> Cost:
    """Return the key by which kube-scheduler compares nodes for preemption (smaller is better), without budgets."""
    highest = max(victim.pod.priority for victim in victims)
    total = sum(victim.pod.priority + SUM_OFFSET for victim in victims)
    start = min(start_of(victim) for victim in victims if victim.pod.priority == highest)
    return (highest, total, len(victims), -start, at)
