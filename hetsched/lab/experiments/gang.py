"""Gangs: either all members are placed or none, because placing pods one by one can deadlock two jobs.

If pods are placed one by one, two jobs that need 4 slots each can get 3 of 6 slots each and wait forever, and a job
that is too big for the cluster keeps slots that others could use. The published cases run with the interleaved pods of
two jobs, under kube-scheduler's default policy and under the same policy with `gang-sort` and `gang`. Then two large
queues run: one contains gangs that can never be complete, and one requests nearly twice the existing slots. A gang is
*partial* if some of its members are assumed, but fewer than it needs. `gang_racks` adds gangs in topology domains.
Source: Kubernetes Scheduling Framework publication (two jobs); scheduler-plugins coscheduling, README (room for 3). The
large queues are our own and have the size of kube-scheduler's gang benchmark. Speeds depend on the machine.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import GangMember, PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, PODS
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab.bench.measure import Progress
from hetsched.lab.plots import PlotLine, line_chart
from hetsched.lab.policies import POLICIES

from . import gang_racks
from .outcome import ExpectedResult, Experiment, ResultRow

MEMBERS = 4
_FEW_NODES = MEMBERS - 1
_RIVAL = POLICIES["default-kube"]
GANG = PolicySpec(
    "default-kube-gang",
    (PluginUse("gang-sort"), *(use for use in _RIVAL.plugins if use.name != "priority-sort"), PluginUse("gang")),
    description="kube-scheduler's default with gang scheduling.",
)
_SAMPLES = 50


class _PublishedCase(NamedTuple):
    """One published case: slots, jobs as (members, minimum), and the final number of slots of each job."""

    title: str
    slots: int
    jobs: dict[str, tuple[int, int]]
    held: dict[str, dict[str, int | None]]


_CASES = (
    _PublishedCase(
        "room for 3, 6 replicas, 3 needed", 3, {"job": (6, 3)}, {GANG.name: {"job": 3}, _RIVAL.name: {"job": None}}
    ),
    _PublishedCase(
        "room for 3, 6 replicas, 4 needed", 3, {"job": (6, 4)}, {GANG.name: {"job": 0}, _RIVAL.name: {"job": None}}
    ),
    _PublishedCase(
        "6 slots, JobA and JobB need 4 each",
        6,
        {"JobA": (4, 4), "JobB": (4, 4)},
        {GANG.name: {"JobA": 4, "JobB": 0}, _RIVAL.name: {"JobA": 3, "JobB": 3}},
    ),
)


class LargeFleet(NamedTuple):
    """Queue of interleaved gangs of 4 on a large fleet whose nodes have one slot each.

    One gang in `big_every` (or none for 0) requests larger nodes, of which only 3 exist; `whole` is the number of gangs
    that can be placed.
    """

    title: str
    nodes: int
    gangs: int
    big_every: int
    whole: int

    def drawn(self) -> tuple[list[NodeReport], list[PodSpec]]:
        """Return the nodes and the pods in the order of submission."""
        large = _FEW_NODES if self.big_every else 0
        reports = [_node(f"n{number:05}", 64_000 if number < large else 8_000) for number in range(self.nodes)]
        small, big = _shape(8_000), _shape(64_000)
        shapes = [big if self.big_every and not number % self.big_every else small for number in range(self.gangs)]
        pods = [
            _pod(f"g{number}", member, MEMBERS, shape)
            for member in range(MEMBERS)
            for number, shape in enumerate(shapes)
        ]
        return reports, pods


# First queue: 38 of the 750 gangs (numbers 0, 20, ... 740) are too big, so 712 can be placed. Second queue: 5,000 slots
# / 4 = 1,250 of the 2,250 gangs can be placed.
_LARGE = (
    LargeFleet("5,000 nodes, 750 gangs of 4, one in 20 too big", 5_000, 750, 20, 712),
    LargeFleet("5,000 nodes, 2,250 gangs of 4", 5_000, 2_250, 0, 1_250),
)


def run(progress: Progress) -> Experiment:
    """Run the published cases and the large queues under both policies."""
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    lines: list[PlotLine] = []
    total = len(_CASES) + len(_LARGE) + 1
    for done, case in enumerate(_CASES, 1):
        for spec in (_RIVAL, GANG):
            found, partial = slots_held(spec, case.slots, case.jobs)
            for job, published in case.held[spec.name].items():
                rows.append(ResultRow(spec.name, case.title, f"{job}: slots held", found[job], published))
                if published is not None:
                    text = f"{spec.name}, {case.title}: {job} holds {found[job]} (published {published})"
                    expectations.append(ExpectedResult(text, found[job] == published))
            rows.append(ResultRow(spec.name, case.title, "partial gangs", partial))
        progress(done, total)
    for done, large in enumerate(_LARGE, len(_CASES) + 1):
        for spec in (_RIVAL, GANG):
            fleet = FleetTrial(spec, *large.drawn())
            rows += [ResultRow(spec.name, large.title, metric, value) for metric, value in fleet.figures().items()]
            if large is _LARGE[-1]:
                lines.append(PlotLine(spec.name, tuple(fleet.stuck)))
            expected = f"{fleet.whole} complete gangs, {fleet.partial} partial gangs"
            held = fleet.partial > 0 if spec is _RIVAL else (fleet.whole, fleet.partial) == (large.whole, 0)
            best = "some partial gangs" if spec is _RIVAL else f"{large.whole} complete, none partial"
            expectations.append(ExpectedResult(f"{spec.name}, {large.title}: {expected} (expected: {best})", held))
        progress(done, total)
    rack_rows, rack_expectations = gang_racks.rows_and_expectations()
    rows += rack_rows
    expectations += rack_expectations
    progress(total, total)
    chart = line_chart(
        f"Slots held by incomplete gangs: {_LARGE[-1].title}",
        lines,
        x_label="pods tried",
        y_label="slots held",
    )
    return Experiment(
        name="gang",
        title="Gangs: all members or none",
        source="Kubernetes Scheduling Framework with scheduler-plugins coscheduling",
        reconstruction=False,
        rows=tuple(rows),
        expectations=tuple(expectations),
        notes=(
            "The large queues and the racks are not from the publication; the speeds and times were measured on this "
            "machine in one process.",
            "default-kube-gang is default-kube with gang-sort instead of priority-sort, and with the plugin gang.",
        ),
        charts=(chart,),
    )


def slots_held(spec: PolicySpec, slots: int, jobs: dict[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Return the slots of each job after trying the jobs' pods alternately, and the number of partial gangs."""
    shape = _shape(1000)
    pods = [
        _pod(job, number, least, shape)
        for number in range(max(members for members, _ in jobs.values()))
        for job, (members, least) in jobs.items()
        if number < members
    ]
    fleet = FleetTrial(spec, [_node(f"n{number}", 1000) for number in range(slots)], pods)
    return {job: fleet.placed[f"default/{job}"] for job in jobs}, fleet.partial


class FleetTrial:
    """Run of a queue of gangs on one fleet under one policy, with its results."""

    def __init__(self, spec: PolicySpec, nodes: Sequence[NodeReport], pods: Sequence[PodSpec]) -> None:
        self.scheduler = Scheduler(ClusterState(nodes), compile_policy(spec, load_registry()))
        state = self.scheduler.state
        needs = {pod.gang.name: pod.gang.min_available for pod in pods if pod.gang is not None}
        self.needs = {f"default/{name}": least for name, least in needs.items()}
        self.stuck: list[tuple[float, float]] = []
        self.refusals: defaultdict[str | None, float] = defaultdict(float)  # gang -> time of its decisions, in s
        every = max(1, len(pods) // _SAMPLES)
        spent = 0.0
        for done, pod in enumerate(self.scheduler.policy.queue(pods, state), 1):
            began = time.perf_counter()
            outcome = self.scheduler.schedule(pod)
            took = time.perf_counter() - began
            spent += took
            if _too_big(outcome):
                self.refusals[gang_key(pod)] += took
            if done % every == 0 and done < len(pods):
                self.stuck.append((float(done), self._held_for_nothing()))
        self.scheduler.settle()
        self.stuck.append((float(len(pods)), self._held_for_nothing()))
        self.pods_per_second = len(pods) / spent
        self.placed = Counter({key: len(members) for key, members in state.gangs.placed.items()})
        self.whole = sum(self.placed[key] >= least for key, least in self.needs.items())
        self.partial = sum(0 < self.placed[key] < least for key, least in self.needs.items())

    def _held_for_nothing(self) -> float:
        """Count the slots of incomplete gangs, except those of pods that still wait at Permit."""
        placed, held = self.scheduler.state.gangs.placed, self.scheduler.waiting_pods.pods.keys()
        return float(sum(len(members - held) for key, members in placed.items() if len(members) < self.needs[key]))

    def figures(self) -> dict[str, float]:
        """Return the reported results of a large queue."""
        found = {
            "whole gangs": float(self.whole),
            "partial gangs": float(self.partial),
            "slots held by partial gangs": self.stuck[-1][1],
            "pods per second": round(self.pods_per_second),
        }
        if self.refusals:
            found["refusal of a whole gang, median, ms"] = round(1000 * median(self.refusals.values()), 3)
        return found


def _too_big(outcome: Outcome) -> bool:
    return outcome.refusal is not None and outcome.refusal[1].code == "GangTooBig"


def _node(name: str, cpu_millis: int) -> NodeReport:
    allocatable = {CPU: cpu_millis, MEMORY: 64 * 2**30, PODS: 110}
    return NodeReport(name=name, labels={"kubernetes.io/hostname": name}, allocatable=allocatable, source="file")


def _shape(cpu_millis: int) -> Shape:
    memory = 2**30
    requests = ((CPU, cpu_millis), (MEMORY, memory), (PODS, 1))
    return Shape(requests=requests, nonzero_cpu_millis=cpu_millis, nonzero_memory_bytes=memory)


def _pod(gang: str, number: int, least: int, shape: Shape) -> PodSpec:
    return PodSpec("default", f"{gang}-{number}", shape, gang=GangMember(gang, least))
