"""Simulation of training jobs on machines with zones, under one policy, step by step.

Synchronous jobs of equal Guaranteed workers with whole CPUs, some also with GPUs, arrive on machines of
`hetsched.lab.colocation`. Half of the machines are dedicated, and their kubelets pin CPUs; the other half are shared
with online workloads and leave pinning to hetsched. In every step, the capacities of zones change, and pending pods are
tried in order. A rejected pod is recreated and tried again immediately, at most `RECREATED` times before its controller
backs off; the scheduler gets no feedback about the rejection. The CPUs and GPUs that a kubelet chose are copied into
the scheduler's state. Pods with too much steal are evicted and become pending again. A job's speed is that of its
slowest worker, and the job pauses while a worker is pending.
Invariant: the same seed yields the same jobs and the same load for every policy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import ContainerDemand, GpuDemand, NumaDemand, PodSpec, Shape
from hetsched.engine.cluster.placed_pod import grant_card
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.numa.zones_at_risk import overcommitted
from hetsched.lab.policies import POLICIES

from .colocation import (
    AssignedResources,
    CostModel,
    Running,
    SimulatedKubelet,
    capacity_millis,
    colocated,
    evicted,
    speeds,
    with_capacity,
)

STEPS = 48
JOBS, _ARRIVE_UNTIL = 50, 30
RECREATED = 5
_GIB = 2**30


def guaranteed_pod(name: str, cpus: int, cards: int, cpu_policy: str) -> PodSpec:
    """Return a Guaranteed pod with the load profile `busy` and one container that requests whole CPUs."""
    memory = 2 * _GIB * cpus
    shape = Shape(
        requests=(("cpu", 1000 * cpus), ("memory", memory), ("pods", 1)),
        nonzero_cpu_millis=1000 * cpus,
        nonzero_memory_bytes=memory,
        gpu=GpuDemand(cards, vendor="nvidia") if cards else None,
        numa=NumaDemand(cpu_policy=cpu_policy),
        containers=(ContainerDemand(cpus, memory, cards),),
        guaranteed=True,
        load_profile="busy",
    )
    return PodSpec(namespace="training", name=name, shape=shape, qos="Guaranteed")


class Job(NamedTuple):
    """Equal workers that train synchronously; `work` is the number of steps at full speed."""

    name: str
    arrives: int
    workers: int
    cpus: int
    cards: int
    work: int

    def pods(self) -> list[PodSpec]:
        """Return the workers."""
        names = (f"{self.name}-{worker}" for worker in range(self.workers))
        return [guaranteed_pod(name, self.cpus, self.cards, "exclusive") for name in names]


def jobs(seed: int) -> list[Job]:
    """Return the jobs of a seed in order of arrival."""
    draw = random.Random(seed)
    drawn = []
    for number in range(JOBS):
        cards = draw.choice((0, 0, 0, 0, 1, 2))
        cpus = draw.choice((4, 6, 8, 10))
        arrives = 0 if number < JOBS // 3 else draw.randrange(1, _ARRIVE_UNTIL)
        job = Job(f"job-{number:02}", arrives, draw.choice((2, 3, 4)), cpus, cards, draw.randrange(4, 11))
        drawn.append(job)
    return sorted(drawn, key=lambda job: (job.arrives, job.name))


class RunCounts(msgspec.Struct):
    """Counts of one run.

    `speed` has the mean speed of each job over the steps in which all its workers ran, and `took` the number of steps
    from its arrival until it finished, or until the end of the run. `so_far` has the rejections and evictions up to
    each step.
    """

    pods: int = 0
    ran: int = 0
    finished: int = 0
    rejections: int = 0
    loops: int = 0
    evictions: int = 0
    again: int = 0
    short_zones: int = 0
    at_risk: int = 0
    freed: int = 0
    into_short_zones: int = 0
    doubled: int = 0
    speed: dict[str, float] = {}
    took: dict[str, int] = {}
    so_far: list[tuple[int, int]] = []


class TrainingRun:
    """Run of one policy on machines with a stream of jobs; `online` adds online workloads to the machines."""

    def __init__(
        self,
        policy: str,
        reports: Sequence[NodeReport],
        stream: Sequence[Job] = (),
        model: CostModel | None = None,
        *,
        seed: int = 1,
        online: bool = True,
    ) -> None:
        self.model, self.seed, self.online = model or CostModel(), seed, online
        self.reports = list(reports)
        self.state = ClusterState(self.reports)
        self.scheduler = Scheduler(self.state, compile_policy(POLICIES[policy], load_registry()))
        self.kubelets = {report.name: SimulatedKubelet(report) for report in self.reports}
        self.capacity: dict[str, list[int]] = {}
        self.jobs = {job.name: job for job in stream}
        self.work = {name: float(job.work) for name, job in self.jobs.items()}
        self.waiting: list[PodSpec] = []
        self.running: dict[str, dict[str, Running]] = {report.name: {} for report in self.reports}
        self.where: dict[str, str] = {}
        self.evicted: set[str] = set()
        self.rejected: set[str] = set()
        self.ran: set[str] = set()
        self.pace: dict[str, list[float]] = {name: [] for name in self.jobs}
        self.tally = RunCounts()

    def run(self) -> RunCounts:
        """Run all steps and return the counts."""
        for step in range(STEPS):
            self._online(step)
            short = {(zone.node, zone.zone) for zone in overcommitted(self.state)}
            self.waiting += [pod for job in self.jobs.values() if job.arrives == step for pod in job.pods()]
            self.waiting = [pod for pod in self.waiting if not self._place(pod, short)]
            self._check()
            self._evict()
            self._train(step)
            self.tally.so_far.append((self.tally.rejections, self.tally.evictions))
        tally = self.tally
        tally.pods = sum(job.workers for job in self.jobs.values())
        tally.ran, tally.loops = len(self.ran), len(self.rejected)
        tally.speed = {name: sum(pace) / len(pace) for name, pace in self.pace.items() if pace}
        return tally

    def admit(self, pods: Sequence[PodSpec]) -> RunCounts:
        """Place every pod once, without changes of the load, evictions or ends of pods, and return the counts."""
        for pod in pods:
            self._place(pod, set())
        tally = self.tally
        tally.pods, tally.ran, tally.loops = len(pods), len(self.ran), len(self.rejected)
        return tally

    def _online(self, step: int) -> None:
        """Change the online load. Existing allocations stay, even if they exceed the new capacity of their zone."""
        before = {key: placed.allocation for key, placed in self.state.placed_pods.items()}
        for report in self.reports:
            full = [zone.capacity["cpu"] for zone in report.numa.zones] if report.numa else []
            shared = self.online and colocated(report)
            self.capacity[report.name] = capacity_millis(report, step, self.seed, self.model) if shared else full
            if shared:
                self.state.apply_report(with_capacity(report, self.capacity[report.name]))
        after = {key: placed.allocation for key, placed in self.state.placed_pods.items()}
        at_risk = list(overcommitted(self.state))
        self.tally.freed += sum(after.get(key) != allocation for key, allocation in before.items())
        self.tally.short_zones += len(at_risk)
        self.tally.at_risk += len({pod for zone in at_risk for pod in zone.pods})

    def _place(self, pod: PodSpec, short: set[tuple[str, str]]) -> bool:
        """Schedule a pod; recreate it after each rejection by its kubelet, up to the limit. Return whether it runs."""
        for _ in range(1 + RECREATED):
            outcome = self.scheduler.schedule(pod)
            if outcome.node is None:
                return False
            held = self.kubelets[outcome.node].admit(pod)
            if isinstance(held, AssignedResources):
                self._start(outcome, held, short)
                return True
            self.tally.rejections += 1
            self.rejected.add(pod.key)
            self.scheduler.undo(outcome)
        return False

    def _start(self, outcome: Outcome, held: AssignedResources, short: set[tuple[str, str]]) -> None:
        """Copy the CPUs and GPUs that the kubelet chose into the scheduler's state, and start the pod."""
        pod, node, row = outcome.pod, outcome.node or "", outcome.row
        zones = self.state.zones.nodes[row]
        cards = {card.index: card for card in self.state.cards[row]}
        gpus = tuple(grant_card(cards[index], 1000, 0) for index in held.cards)
        taken = outcome.allocation.zones
        if any(held.cpus):
            taken = tuple(ZoneGrant(zones.names[z], None, 1000 * n) for z, n in enumerate(held.cpus) if n)
        self.tally.into_short_zones += sum((node, grant.name) in short for grant in outcome.allocation.zones)
        policy = "static" if any(held.cpus) else outcome.allocation.cpu_policy
        self.state.forget(pod.key)
        self.state.assume(self.state.compile(pod), row, Allocation(gpus=gpus, zones=taken, cpu_policy=policy))
        self.tally.again += pod.key in self.evicted
        self.evicted.discard(pod.key)
        self.ran.add(pod.key)
        bound = {zones.positions[grant.name]: grant.cpu_millis // 1000 for grant in taken}
        lying = tuple(int(self.state.columns.field("card_zone")[index, row]) for index in held.cards)
        self.running[node][pod.key] = Running(pod.shape.containers[0].cpus, bound, lying)
        self.where[pod.key] = node

    def _check(self) -> None:
        """Count the CPUs that the scheduler's state allocates to more than one pod."""
        self.tally.doubled += sum(
            len(holders) > 1 for held in self.state.zones.held.values() for holders in held.values()
        )

    def _evict(self) -> None:
        for node, pods in self.running.items():
            for key in evicted(pods, self.capacity[node], self.model):
                placed = self.state.placed_pods[key]
                self._leave(key)
                self.tally.evictions += 1
                self.evicted.add(key)
                self.waiting.append(placed.pod)

    def _leave(self, key: str) -> None:
        node = self.where.pop(key)
        self.running[node].pop(key, None)
        self.kubelets[node].remove(key)
        self.state.forget(key)

    def _train(self, step: int) -> None:
        found = {
            key: speed
            for node, pods in self.running.items()
            for key, speed in speeds(pods, self.capacity[node], self.model).items()
        }
        for name, job in self.jobs.items():
            keys = [pod.key for pod in job.pods()] if self.work[name] > 0 else []
            if keys:
                self.tally.took[name] = step + 1 - job.arrives
            if keys and all(key in found for key in keys):
                pace = min(found[key][0] for key in keys)
                self.pace[name].append(pace)
                self.work[name] -= pace
                if self.work[name] <= 0:
                    self.tally.finished += 1
                    for key in keys:
                        self._leave(key)
