"""Decisions per second of the engine, if every placed pod is assumed before the next decision.

Cases: 5,000 mixed nodes under the default policy with pods of one shape, of 64 shapes (Zipf 0.8), and with
all-different pods; then 64 shapes on 500 to 15,000 nodes. Three variants alternate in the same run: the engine, the
baseline (the same policy with a full sweep over all nodes for every pod), and the compiled loop, which processes all
pods of a round as one batch. Each round starts with an empty copy of the fleet. The times include compiling the policy
and the first evaluations of shapes, but not generating the loop's machine code. Speeds are measured by wall clock and
by CPU time. The cost by cluster size is measured only by CPU time, because other load on the machine affects CPU time
less.
Check: at sampled times, a new evaluation of all nodes must select the same node with the same score. All rounds of a
case, including those of the compiled loop, must result in the same placements. Each of 40,000 pods must get the same
node and score from the compiled loop and from the scheduling cycle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry

from . import fleet
from .measure import BenchmarkRow, Checks, Progress, Scenario, machine, row


class Size(msgspec.Struct, frozen=True):
    """Sizes of a measurement.

    The baseline decides `swept` pods per round, the oracle checks `checked` decisions per case, and `compared` pods are
    scheduled by both the compiled loop and the scheduling cycle.
    """

    nodes: int = 5_000
    scale: tuple[int, ...] = (500, 1_000, 5_000, 15_000)
    pods: int = 20_000
    distinct_pods: int = 5_000
    swept: int = 300
    rounds: int = 5
    checked: int = 100
    compared: int = 40_000


_MANY = 10**9
"""The compiled loop is measured however few pods there are."""
QUICK = Size(nodes=60, scale=(20, 60), pods=200, distinct_pods=50, swept=10, rounds=2, checked=10, compared=300)


def run(*, quick: bool = False, progress: Progress) -> Scenario:
    """Run the measurements; the checks count comparisons and differences."""
    size = QUICK if quick else Size()
    policy = compile_policy(BUILTIN[DEFAULT], load_registry())
    kinds = fleet.shapes(64)
    cases = {
        "1 shape": fleet.pods(size.pods, kinds[:1]),
        "64 shapes": fleet.pods(size.pods, kinds),
        "all different": fleet.distinct_pods(size.distinct_pods),
    }
    rows: list[BenchmarkRow] = []
    oracle = _Oracle()
    state = ClusterState(fleet.fleet(size.nodes))
    for case, pods in cases.items():
        kept, compiled, swept = _in_turns(state, policy, pods, size, oracle)
        for name, speeds in ((case, kept), (f"{case}, compiled", compiled), (f"{case}, full sweep", swept)):
            rows.append(row(f"{name}, {size.nodes} nodes", "decisions/s", [speed.wall for speed in speeds]))
            rows.append(row(f"{name}, {size.nodes} nodes, CPU time", "decisions/s", [speed.cpu for speed in speeds]))
        oracle.compare(state, policy, pods, size.checked)
        progress(len(rows) // 6, len(cases) + 1)
    oracle.compare_ways(state, policy, fleet.pods(size.compared, kinds, seed=5))
    states = {nodes: ClusterState(fleet.fleet(nodes)) for nodes in size.scale}
    for way, measure in (("", _speed), (", compiled", _batched)):
        costs: dict[int, list[float]] = {nodes: [] for nodes in size.scale}
        for _ in range(size.rounds):
            for nodes, costs_micros in costs.items():
                speed = measure(states[nodes], policy, _fitting(cases["64 shapes"], nodes), oracle)
                costs_micros.append(1e6 / speed.cpu)
        rows += [row(f"64 shapes{way}, {n} nodes, CPU time", "us/decision", micros) for n, micros in costs.items()]
        large, middle = size.scale[-1], size.scale[-2]
        ratios = [a / b for a, b in zip(costs[large], costs[middle], strict=True)]
        rows.append(row(f"cost{way} at {large} / {middle} nodes", "ratio", ratios))
    progress(len(cases) + 1, len(cases) + 1)
    return Scenario("engine", tuple(rows), machine(), oracle.total())


def _fitting(pods: list[PodSpec], nodes: int) -> list[PodSpec]:
    """Truncate the pods to the capacity of `nodes` nodes, so that clusters of every size are equally full."""
    return pods[: max(1, min(len(pods), nodes * 4))]


class _Speed(NamedTuple):
    """Decisions per second of wall clock time and of CPU time."""

    wall: float
    cpu: float


def _in_turns(
    state: ClusterState, policy: Policy, pods: list[PodSpec], size: Size, oracle: _Oracle
) -> tuple[list[_Speed], list[_Speed], list[_Speed]]:
    """Return the speeds of the engine, of its compiled loop and of the baseline, each with one value per round."""
    kept: list[_Speed] = []
    compiled: list[_Speed] = []
    swept: list[_Speed] = []
    # compile the machine code or read it from its cache before measuring
    _batched(state, policy, pods[:1], oracle)
    for _ in range(size.rounds):
        kept.append(_speed(state, policy, pods, oracle))
        compiled.append(_batched(state, policy, pods, oracle))
        fork = state.fork()
        swept.append(_timed(lambda pod, fork=fork: sweep(fork, policy, pod), pods[: size.swept]))  # type: ignore[misc]
    return kept, compiled, swept


def _batched(state: ClusterState, policy: Policy, pods: Sequence[PodSpec], oracle: _Oracle) -> _Speed:
    fork = state.fork()
    batches = BatchScheduler(Scheduler(fork, policy), expected=_MANY)
    speed = _measured_speed(lambda: batches.schedule(pods), len(pods))
    oracle.placements(_case(state, pods), fork)
    return speed


def _speed(state: ClusterState, policy: Policy, pods: Sequence[PodSpec], oracle: _Oracle) -> _Speed:
    scheduler = Scheduler(state.fork(), policy)
    speed = _timed(scheduler.schedule, pods)
    oracle.placements(_case(state, pods), scheduler.state)
    return speed


def _case(state: ClusterState, pods: Sequence[PodSpec]) -> str:
    return f"{len(state.reports)}/{pods[0].shape!r}/{len(pods)}"


def _timed(decide: Callable[[PodSpec], Outcome], pods: Sequence[PodSpec]) -> _Speed:
    def decide_all() -> None:
        for pod in pods:
            decide(pod)

    return _measured_speed(decide_all, len(pods))


def _measured_speed(work: Callable[[], object], decisions: int) -> _Speed:
    began, began_cpu = time.perf_counter(), time.process_time()
    work()
    spent_cpu, spent = time.process_time() - began_cpu, time.perf_counter() - began
    return _Speed(decisions / spent, decisions / max(spent_cpu, 1e-9))


def sweep(state: ClusterState, policy: Policy, pod: PodSpec) -> Outcome:
    """Schedule a pod without cached results of earlier decisions, and assume it."""
    return Scheduler(state, policy).schedule(pod)


class _Oracle:
    """Checker of decisions: counts compared and differing decisions, and keeps a digest of each case's placements."""

    def __init__(self) -> None:
        self.compared = 0
        self.different = 0
        self.digests: dict[str, str] = {}

    def compare(self, state: ClusterState, policy: Policy, pods: Sequence[PodSpec], moments: int) -> None:
        """Place all pods again, and compare about `moments` decisions with those of a scheduler without caches."""
        scheduler = Scheduler(state.fork(), policy)
        every = max(1, len(pods) // moments)
        for number, pod in enumerate(pods):
            if number % every:
                scheduler.schedule(pod)
                continue
            oracle = Scheduler(scheduler.state, policy)
            expected = oracle.schedule(pod)
            picked = (expected.node, expected.score)
            oracle.undo(expected)
            actual = scheduler.schedule(pod)
            self.compared += 1
            self.different += picked != (actual.node, actual.score)

    def compare_ways(self, state: ClusterState, policy: Policy, pods: Sequence[PodSpec]) -> None:
        """Compare node, score and allocation of every pod between the compiled loop and the scheduling cycle."""
        one_by_one = Scheduler(state.fork(), policy)
        expected = [one_by_one.schedule(pod) for pod in pods]
        batches = BatchScheduler(Scheduler(state.fork(), policy), expected=_MANY)
        for want, got in zip(expected, batches.schedule(pods), strict=True):
            self.compared += 1
            picked, wanted = (got.node, got.score, got.allocation), (want.node, want.score, want.allocation)
            self.different += picked != wanted

    def placements(self, case: str, state: ClusterState) -> None:
        """Count a difference if the placements of this round differ from those of the first round of the same case."""
        digest = _digest((key, placed.row) for key, placed in state.placed_pods.items())
        self.different += self.digests.setdefault(case, digest) != digest

    def total(self) -> Checks:
        return Checks(self.compared, self.different, _digest(sorted(self.digests.items())))


def _digest(pairs: Iterable[tuple[str, object]]) -> str:
    hasher = blake2b(digest_size=8)
    for key, value in pairs:
        hasher.update(f"{key}={value};".encode())
    return hasher.hexdigest()
