"""cassini: a scheduler that knows the real capacity of zones, compared with one that counts CPUs by node.

If the scheduler ignores zones, kubelets reject pods, which are recreated and rejected again, and pods lose CPU time to
online workloads. In the first comparison, many Guaranteed pods arrive at the same time on machines of all kinds whose
kubelets pin CPUs and allow only a single zone; rejected and running pods are counted. In the second comparison,
`default-kube` and `cassini` schedule the same jobs of `hetsched.lab.training` on the same machines, with and without
online workloads; the run without them gives "the level of physical machines". Jobs are compared one by one by training
speed while they run and by time in the system. Both comparisons run again without the cost of remote access, so that
only stolen CPU makes a difference. The default policy `hetsched` is shown for comparison.
Source: cassini (Tencent 2022), which does not describe its machines or its load. "up to 3 times" and "the level of
physical machines" are quotations.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from hetsched.lab.bench.measure import Progress
from hetsched.lab.colocation import CostModel, machines, machines_of_every_kind
from hetsched.lab.plots import PlotLine, line_chart
from hetsched.lab.training import JOBS, STEPS, RunCounts, TrainingRun, guaranteed_pod, jobs

from .outcome import ExpectedResult, Experiment, ResultRow

_SEEDS = (1, 2, 3)
_BLIND, _CASSINI, _DEFAULT = "default-kube", "cassini", "hetsched"
_ONLINE, _NO_ONLINE, _STEAL_ONLY = "online workloads", "no online workloads", "online workloads, no cost of remoteness"
_BASIC = ("ran", "finished", "rejections", "evictions")
_PUBLISHED_SPEEDUP = 3.0
_MACHINES, _BURST_MACHINES, _BURST_PODS = 12, 200, 2000
_BURST = f"{_BURST_PODS:,} pods at once on {_BURST_MACHINES} machines"
_COUNTED = {
    "pods": "pods submitted",
    "ran": "pods that ran",
    "finished": "jobs finished",
    "rejections": "rejections by kubelets (schedule, reject, recreate)",
    "loops": "pods that were rejected at least once",
    "evictions": "evictions by stolen CPU time",
    "again": "evicted pods placed again",
    "short_zones": "zones below their grants",
    "at_risk": "pods at risk listed",
    "freed": "grants freed by a fall of capacity",
    "into_short_zones": "grants into zones below their grants",
    "doubled": "CPUs granted twice",
}
_ADMITTED = ("pods", "ran", "rejections", "loops")


def run(progress: Progress) -> Experiment:
    """Run the policies for every seed, with and without online workloads."""
    model = CostModel()
    local = CostModel(memory_penalty=0.0, card_penalty=0.0)
    burst = _burst(progress)
    plan = [(policy, case) for policy in (_BLIND, _CASSINI) for case in (_ONLINE, _NO_ONLINE, _STEAL_ONLY)]
    plan.append((_DEFAULT, _ONLINE))
    found: dict[tuple[str, str], list[RunCounts]] = {}
    for done, (policy, case) in enumerate(plan, 1):
        costs = local if case == _STEAL_ONLY else model
        worlds = [
            TrainingRun(policy, machines(_MACHINES), jobs(seed), costs, seed=seed, online=case != _NO_ONLINE)
            for seed in _SEEDS
        ]
        found[policy, case] = [world.run() for world in worlds]
        progress(done, len(plan))
    three = (_BLIND, _CASSINI, _DEFAULT)
    rows = [row for policy in three for row in _rows(policy, _ONLINE, found[policy, _ONLINE], _COUNTED)]
    rows += [
        row for policy in (_BLIND, _CASSINI) for row in _rows(policy, _NO_ONLINE, found[policy, _NO_ONLINE], _BASIC)
    ]
    ratios = {case: _ratios(found, case) for case in (_ONLINE, _STEAL_ONLY)}
    for policy, tally in burst.items():
        rows += [ResultRow(policy, _BURST, _COUNTED[field], float(getattr(tally, field))) for field in _ADMITTED]
    for case, (speed, turnaround) in ratios.items():
        rows += [
            ResultRow(_CASSINI, case, "training speed over default-kube, mean of jobs", _mean(speed)),
            ResultRow(_CASSINI, case, "training speed over default-kube, best job", max(speed), _PUBLISHED_SPEEDUP),
            ResultRow(_CASSINI, case, "time in system of default-kube over cassini, mean of jobs", _mean(turnaround)),
        ]
    return Experiment(
        name="cassini",
        title="cassini: zones with measured capacity versus CPU counts per node",
        source="cassini (Tencent Xingchen compute platform, 2022); kubelet admission as in Kubernetes 1.36",
        reconstruction=True,
        rows=tuple(rows),
        expectations=(*_expectations(found, ratios[_ONLINE][0]), *_burst_expectations(burst)),
        notes=_notes(model),
        charts=(_chart(found),),
    )


def _burst(progress: Progress) -> dict[str, RunCounts]:
    """Place many pods that arrive at the same time on many machines of all kinds; return the counts by policy."""
    draw = random.Random(_SEEDS[0])
    pods = []
    for number in range(_BURST_PODS):
        cards = draw.choice((0,) * 9 + (1,))
        pods.append(guaranteed_pod(f"pod-{number:04}", draw.choice((1, 2, 2, 4, 4, 6, 8, 12)), cards, "none"))
    found: dict[str, RunCounts] = {}
    for policy in (_BLIND, _CASSINI, _DEFAULT):
        found[policy] = TrainingRun(policy, machines_of_every_kind(_BURST_MACHINES, _SEEDS[0])).admit(pods)
        progress(len(found), 3)
    return found


def _burst_expectations(found: dict[str, RunCounts]) -> list[ExpectedResult]:
    ours, blind, default = found[_CASSINI], found[_BLIND], found[_DEFAULT]
    return [
        ExpectedResult(
            f"{_BURST}: kubelets reject {ours.rejections} pods under cassini, {blind.rejections} under default-kube",
            ours.rejections == 0 < blind.rejections,
        ),
        ExpectedResult(
            f"{_BURST}: {ours.ran} of {ours.pods} pods run under cassini, {blind.ran} under default-kube",
            ours.ran >= blind.ran,
        ),
        ExpectedResult(
            f"{_BURST}: under the default policy, {default.rejections} pods are rejected and {default.ran} run",
            default.rejections == 0 and default.ran >= blind.ran,
        ),
    ]


def _rows(policy: str, case: str, tallies: list[RunCounts], fields: Iterable[str]) -> list[ResultRow]:
    counts = [(_COUNTED[field], float(sum(getattr(tally, field) for tally in tallies))) for field in fields]
    speed = [value for tally in tallies for value in tally.speed.values()]
    published = {_COUNTED["rejections"]: 0.0} if policy == _CASSINI else {}
    rows = [ResultRow(policy, case, name, value, published.get(name)) for name, value in counts]
    return [*rows, ResultRow(policy, case, "mean speed of jobs, 1 = alone and local", _mean(speed))]


def _ratios(found: dict[tuple[str, str], list[RunCounts]], case: str) -> tuple[list[float], list[float]]:
    """Return, for each job, the ratios of speeds (cassini / default-kube) and durations (default-kube / cassini)."""
    pairs = list(zip(found[_CASSINI, case], found[_BLIND, case], strict=True))
    speed = [ours.speed[job] / blind.speed[job] for ours, blind in pairs for job in ours.speed if job in blind.speed]
    took = [blind.took[job] / ours.took[job] for ours, blind in pairs for job in ours.took]
    return speed, took


def _expectations(found: dict[tuple[str, str], list[RunCounts]], speed: list[float]) -> list[ExpectedResult]:
    def total(policy: str, field: str, case: str = _ONLINE) -> int:
        return sum(getattr(tally, field) for tally in found[policy, case])

    ours = {field: total(_CASSINI, field) for field in _COUNTED}
    blind = {field: total(_BLIND, field) for field in _COUNTED}
    alone = total(_CASSINI, "evictions", _NO_ONLINE)
    return [
        ExpectedResult(
            f"kubelets reject {ours['rejections']} pods under cassini, {blind['rejections']} under default-kube",
            ours["rejections"] == 0 < blind["rejections"],
        ),
        ExpectedResult(
            f"{ours['ran']} of {ours['pods']} pods run under cassini, {blind['ran']} under default-kube",
            ours["ran"] >= blind["ran"],
        ),
        ExpectedResult(
            f"CPU steal evicts {ours['evictions']} pods under cassini ({alone} without online workloads): "
            f"less than a fifth of the {blind['evictions']} under default-kube",
            ours["evictions"] * 5 < blind["evictions"],
        ),
        ExpectedResult(
            f"of these evicted pods, {ours['again']} (cassini) and {blind['again']} (default-kube) are placed again",
            ours["again"] < blind["again"],
        ),
        ExpectedResult(
            f"jobs train {_mean(speed):.2f} times as fast on average, the best job {max(speed):.2f} times",
            _mean(speed) > 1.0,
        ),
        ExpectedResult(
            f"zones fall below their grants {ours['short_zones']} times, with {ours['at_risk']} pods at risk; "
            f"this frees {ours['freed']} grants, and {ours['into_short_zones']} pods are placed in such a zone",
            ours["short_zones"] > 0 < ours["at_risk"] and ours["freed"] == ours["into_short_zones"] == 0,
        ),
        ExpectedResult(f"{ours['doubled']} CPUs are granted twice", ours["doubled"] == 0),
        ExpectedResult(
            f"under the default policy, {total(_DEFAULT, 'rejections')} pods are rejected and "
            f"{total(_DEFAULT, 'evictions')} evicted",
            total(_DEFAULT, "rejections") == 0 and total(_DEFAULT, "evictions") * 5 < blind["evictions"],
        ),
    ]


def _notes(model: CostModel) -> tuple[str, ...]:
    parameters = ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(model).items())
    return (
        f"Machines, load and jobs are not from the publication: {_MACHINES} machines, {JOBS} jobs, {STEPS} steps, "
        f"seeds {_SEEDS}.",
        f"Cost model: {parameters}. Without granted zones, a pod runs at best where CPU time is free.",
        "The publication says that training became up to 3 times faster on busy hosts; it gives no cost model.",
    )


def _chart(found: dict[tuple[str, str], list[RunCounts]]) -> str:
    lines = []
    for policy in (_BLIND, _CASSINI):
        for position, what in enumerate(("rejections", "evictions")):
            steps = zip(*(tally.so_far for tally in found[policy, _ONLINE]), strict=True)
            points = tuple((float(at), float(sum(item[position] for item in step))) for at, step in enumerate(steps, 1))
            lines.append(PlotLine(f"{policy}: {what}", points))
    title = "Cumulative rejections by kubelets and evictions by CPU steal"
    return line_chart(title, lines, x_label="step", y_label="pods")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
