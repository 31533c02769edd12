"""GPU packing on the openb trace at increasing load: FGD and its published baselines, `hetsched` and `hetsched-gpu`.

`fill` fills a GPU cluster beyond its capacity. The pods of a stream arrive one by one; each is tried once, and pods do
not end. At every requested load (arrived GPU demand / GPU capacity), two values are recorded as shares of all GPUs: the
allocated thousandths, and F, the thousandths that pods of the mix cannot use. A measurement at a load includes the last
pod that arrived below that load. Ties between equal nodes are broken by the lowest original name, by the lowest name
after the names are shuffled for every seed, or at random.

For every pod list, seed and tie rule, one stream of pods is drawn (`hetsched.lab.arrival`), and `fill` replays it under
every policy. Rows are means over the seeds. Published figures are listed next to the runs that follow the publication's
protocol, in which ties are broken by the lowest name after shuffling the names for every run. With the names of the
node list, FGD is up to two points lower on the lists with many CPU pods, because that order groups nodes of one kind.
Expected results, for every list and tie rule:
    FGD           is within 2 points of its published figures;
    hetsched      allocates, at each reported load, at most 0.3 points less than the best of first-fit, best-fit,
                  gpu-packing and FGD, and at most 0.5 points less from 100 % GPU demand on;
    hetsched-gpu  allocates at most 0.3 points less than the best of them at each reported load; its results under
                  different tie rules differ by at most 0.3 points; over all published lists, its mean of unallocated
                  GPUs is at most 0.9 times that of FGD.
Source: Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), figures 7 to 13, the runs published with it, and its
protocol; its simulator shuffles the node names for each run (`syncClusterResourceList`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.gpu.fragmentation import published_mix, row_fragments
from hetsched.engine.gpu.workload_mix import Mix, mix_of
from hetsched.lab.arrival import arrival_stream, gpu_capacity_milli, gpu_demand_milli
from hetsched.lab.plots import PlotLine, bar_chart, line_chart

from .outcome import ExpectedResult, Experiment, ResultRow

TieRule = Literal["name", "shuffled", "random"]


class OverloadSample(msgspec.Struct, frozen=True):
    """Measurement at the load `arrived` (arrived GPU demand / capacity); other fields are in percent of all GPUs."""

    arrived: float
    allocated: float
    fragmented: float


def shuffled(nodes: Sequence[NodeReport], seed: int) -> list[NodeReport]:
    """Return the nodes with a name order that depends on the seed."""
    places = list(range(len(nodes)))
    random.Random(f"names/{seed}").shuffle(places)
    return [
        msgspec.structs.replace(node, name=f"{place:06d}-{node.name}")
        for place, node in zip(places, nodes, strict=True)
    ]


def with_ties(spec: PolicySpec, rule: TieRule, seed: int) -> PolicySpec:
    """Return the policy with this tie-breaking rule and seed; one that breaks ties at random only gets the seed."""
    by: Literal["name", "random"] = "random" if rule == "random" or spec.ties.by == "random" else "name"
    return msgspec.structs.replace(spec, ties=Ties(by=by, seed=seed))


def fill(
    state: ClusterState, stream: Sequence[PodSpec], policy: Policy, mix: Mix, points: Sequence[float]
) -> list[OverloadSample]:
    """Run a stream on a copy of `state`, and return the measurements at each load in `points` (ascending)."""
    scheduler = Scheduler(state.fork(), policy)
    scheduler.state.use_mix(mix)
    capacity = int(state.all_rows.static("card_milli").sum())
    loads: list[OverloadSample] = []
    waiting = list(points)
    arrived = 0
    for pod in stream:
        arrived += gpu_demand_milli(pod.shape)
        while waiting and arrived > waiting[0] * capacity:
            loads.append(_measured(scheduler.state, waiting.pop(0), capacity))
        scheduler.schedule(pod)
    return loads + [_measured(scheduler.state, point, capacity) for point in waiting]


def _measured(state: ClusterState, arrived: float, capacity: int) -> OverloadSample:
    nodes = state.all_rows
    free = int(nodes.load("card_milli_free").clip(min=0).sum())
    lost = float(row_fragments(published_mix(state), nodes).sum())
    return OverloadSample(arrived, 100.0 * (capacity - free) / capacity, 100.0 * lost / capacity)


OURS, DEFAULT, PEER = "hetsched-gpu", "hetsched", "fgd"
RIVALS = ("first-fit", "best-fit", "gpu-packing", PEER)
POLICIES = ("first-fit", "random", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", PEER, DEFAULT, OURS)
TIES: tuple[TieRule, ...] = ("shuffled", "name", "random")
TIES_TEXT = {"name": "ties by name", "shuffled": "ties by shuffled names", "random": "random ties"}
_CLOSE, _WORSE, _RATIO = 2.0, 0.3, 0.9
_MOST_BELOW = {DEFAULT: (0.3, 0.5), OURS: (0.3, 0.3)}
"""Points that a policy may allocate less than its best rival: below 100 % GPU demand, and from there on."""

Key = tuple[str, str, TieRule]


class Published(msgspec.Struct, frozen=True):
    """Published figures: allocated and fragmented GPUs in percent of all GPUs, by load in percent."""

    allocated: dict[int, float]
    fragmented: dict[int, float]


class Study(msgspec.Struct, frozen=True):
    """Inputs of the study: lists by name, policies, tie rules, loads at which to measure, and published figures.

    `shown` contains the loads that are reported as rows; the plots show all `points`.
    """

    nodes: tuple[NodeReport, ...]
    lists: Mapping[str, tuple[PodSpec, ...]]
    policies: tuple[PolicySpec, ...]
    ties: tuple[TieRule, ...] = TIES
    seeds: int = 5
    points: tuple[float, ...] = (1.3,)
    shown: tuple[float, ...] = (1.3,)
    published: Mapping[tuple[str, str], Published] = {}


def run(study: Study, progress: Callable[[int, int], None]) -> Experiment:
    """Run the whole study.

    Raises: InputError if a list has no usable pods or a policy is invalid.
    """
    runs = _run_all(study, progress)
    means = {key: _mean(loads) for key, loads in runs.items()}
    return Experiment(
        name="openb",
        title="GPU packing on the openb trace at rising load",
        source="Weng et al., Beware of Fragmentation (USENIX ATC 2023); data of the Alibaba GPU cluster trace 2023",
        reconstruction=False,
        rows=(*_rows(study, means), *_mean_rows(study, means), *(cell.row for cell in _cells(study, means))),
        expectations=tuple(_expectations(study, means)),
        notes=(
            f"{study.seeds} seeds; percent of all GPUs. Published results break ties by names shuffled for every run.",
            f"{OURS} was tuned on default, cpu250, gpushare100 and multigpu20, and its price of card models on "
            "gpuspec10, gpuspec20 and gpuspec33.",
            f"{DEFAULT} was tuned on default, cpu250, gpushare100 and the gpuspec and multigpu lists, with the first "
            "stream of each and ties by name; cpu050, cpu100, cpu200, gpushare40, gpushare60, gpushare80, the other "
            "streams and tie rules are held out.",
        ),
        charts=tuple(_charts(study, means)),
    )


def _run_all(study: Study, progress: Callable[[int, int], None]) -> dict[Key, list[list[OverloadSample]]]:
    registry = load_registry()
    capacity = gpu_capacity_milli(study.nodes)
    states = {"name": ClusterState(study.nodes)}
    jobs = [
        (name, seed, rule, spec)
        for name in study.lists
        for seed in range(study.seeds)
        for rule in study.ties
        for spec in study.policies
        if spec.ties.by != "random" or rule == study.ties[0]  # policies with random ties are run once, with random ties
    ]
    runs: dict[Key, list[list[OverloadSample]]] = {}
    drawn: tuple[str, int] = ("", -1)
    stream: list[PodSpec] = []
    mixes = {name: mix_of(pods) for name, pods in study.lists.items()}
    for done, (name, seed, rule, spec) in enumerate(jobs):
        progress(done, len(jobs))
        if drawn != (name, seed):
            drawn = (name, seed)
            stream = arrival_stream(study.lists[name], capacity_milli=capacity, ratio=study.points[-1], seed=seed)
        order = f"shuffled-{seed}" if rule == "shuffled" else "name"
        if order not in states:
            states[order] = ClusterState(shuffled(study.nodes, seed))
        policy = compile_policy(with_ties(spec, rule, seed), registry)
        loads = fill(states[order], stream, policy, mixes[name], study.points)
        runs.setdefault((name, spec.name, rule), []).append(loads)
    progress(len(jobs), len(jobs))
    return runs


def _mean(runs: Sequence[Sequence[OverloadSample]]) -> dict[float, OverloadSample]:
    """Return the mean over the seeds at every load."""
    return {
        at[0].arrived: OverloadSample(
            at[0].arrived,
            sum(load.allocated for load in at) / len(at),
            sum(load.fragmented for load in at) / len(at),
        )
        for at in zip(*runs, strict=True)
    }


def _gpus(study: Study, percent: float) -> float:
    return percent / 100.0 * gpu_capacity_milli(study.nodes) / 1000.0


def _rows(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[ResultRow]:
    rows: list[ResultRow] = []
    for (name, policy, rule), loads in means.items():
        known = study.published.get((name, policy)) if rule == "shuffled" or policy == "random" else None
        case = f"{name}, {TIES_TEXT[rule]}"
        for point in study.shown:
            load, percent = loads[point], round(100 * point)
            allocated = known.allocated.get(percent) if known else None
            fragmented = known.fragmented.get(percent) if known else None
            rows.append(_row(policy, case, f"GPUs allocated at {percent} % (%)", load.allocated, allocated))
            rows.append(_row(policy, case, f"GPUs fragmented at {percent} % (%)", load.fragmented, fragmented))
        free = None if known is None or percent not in known.allocated else 100.0 - known.allocated[percent]
        last = _gpus(study, 100.0 - loads[study.points[-1]].allocated)
        metric = f"unallocated GPUs at {round(100 * study.points[-1])} %"
        rows.append(_row(policy, case, metric, last, None if free is None else round(_gpus(study, free), 1)))
    return rows


def _row(policy: str, case: str, metric: str, value: float, published: float | None) -> ResultRow:
    return ResultRow(policy, case, metric, round(value, 2), published)


def _mean_rows(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[ResultRow]:
    if len(study.lists) < 2:
        return []
    last = study.points[-1]
    case = f"mean of {len(study.lists)} lists, "
    metric = f"unallocated GPUs at {round(100 * last)} %"
    return [
        ResultRow(spec.name, case + TIES_TEXT[rule], metric, round(_unallocated(study, means, spec.name, rule), 1))
        for rule in study.ties
        for spec in study.policies
        if all((name, spec.name, rule) in means for name in study.lists)
    ]


def _unallocated(
    study: Study, means: Mapping[Key, Mapping[float, OverloadSample]], policy: str, rule: TieRule
) -> float:
    last = study.points[-1]
    free = [100.0 - means[name, policy, rule][last].allocated for name in study.lists]
    return _gpus(study, sum(free) / len(free))


def _expectations(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[ExpectedResult]:
    last = study.points[-1]
    percent = round(100 * last)
    found: list[ExpectedResult] = []
    for name in study.lists:
        at = {(policy, rule): loads[last].allocated for (list_, policy, rule), loads in means.items() if list_ == name}
        known = study.published.get((name, PEER))
        if known is not None and percent in known.allocated and (PEER, "shuffled") in at:
            value, published = at[PEER, "shuffled"], known.allocated[percent]
            text = f"{name}: FGD allocates {value:.2f} %, published {published:.2f} %, within {_CLOSE:g} points"
            found.append(ExpectedResult(text, abs(value - published) <= _CLOSE))
        rules: list[TieRule] = [rule for rule in study.ties if (OURS, rule) in at]
        if len(rules) > 1:
            values = [at[OURS, rule] for rule in rules]
            spread = max(values) - min(values)
            text = f"{name}: {OURS} allocates {min(values):.2f} to {max(values):.2f} % under {len(rules)} tie rules"
            found.append(ExpectedResult(f"{text}, a spread of at most {_WORSE} points", spread <= _WORSE))
    return found + [cell.expectation for cell in _cells(study, means)] + _over_all_lists(study, means)


class _Cell(msgspec.Struct, frozen=True):
    """Result of a policy of hetsched and of its best rival, for one list at one load, in percent of all GPUs."""

    policy: str
    case: str
    load: float
    allocated: float
    rival: str
    best: float

    @property
    def below(self) -> float:
        """Percentage points below the rival; negative if the policy allocated more than the rival."""
        return round(self.best - self.allocated, 2)

    @property
    def row(self) -> ResultRow:
        return ResultRow(
            self.policy, self.case, f"GPUs below the best rival at {round(100 * self.load)} % (points)", self.below
        )

    @property
    def expectation(self) -> ExpectedResult:
        most = _MOST_BELOW[self.policy][self.load >= 1.0]
        text = (
            f"{self.case}, at {round(100 * self.load)} %: {self.policy} allocates {self.allocated:.2f} %, "
            f"the best rival {self.rival} {self.best:.2f} %: {self.below:.2f} points below, at most {most:g}"
        )
        return ExpectedResult(text, self.below <= most)


def _cells(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[_Cell]:
    """Compare each policy of hetsched with the best rival of the run, under the same tie rule."""
    cells = []
    for (name, policy, rule), loads in means.items():
        rivals = [rival for rival in RIVALS if (name, rival, rule) in means]
        if policy not in _MOST_BELOW or not rivals:
            continue
        for load in study.shown:
            figures = {rival: means[name, rival, rule][load].allocated for rival in rivals}
            best = max(figures, key=lambda rival: figures[rival])
            case = f"{name}, {TIES_TEXT[rule]}"
            cells.append(_Cell(policy, case, load, loads[load].allocated, best, figures[best]))
    return cells


def _over_all_lists(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[ExpectedResult]:
    """Compare the means over all published lists, if every list was run."""
    everything = {name for name, _ in study.published}
    names = {spec.name for spec in study.policies}
    if not everything or not everything <= study.lists.keys() or not {OURS, PEER} <= names:
        return []
    found = []
    for rule in study.ties:
        ours, peer = (_unallocated(study, means, policy, rule) for policy in (OURS, PEER))
        text = (
            f"mean of {len(study.lists)} lists, {TIES_TEXT[rule]}: {OURS} leaves {ours:.1f} GPUs unallocated, "
            f"FGD {peer:.1f}: ratio {ours / peer:.3f}, at most {_RATIO}"
        )
        found.append(ExpectedResult(text, ours <= _RATIO * peer))
    return found


def _charts(study: Study, means: Mapping[Key, Mapping[float, OverloadSample]]) -> list[str]:
    charts = []
    for name in study.lists:
        rule = study.ties[0]
        shown = {policy: loads for (list_, policy, tie), loads in means.items() if (list_, tie) == (name, rule)}
        title = f"{name}, {TIES_TEXT[rule]}"
        for label, figure in (("GPUs fragmented (%)", "fragmented"), ("GPUs allocated (%)", "allocated")):
            series = [
                PlotLine(policy, tuple((100 * point, getattr(load, figure)) for point, load in loads.items()))
                for policy, loads in shown.items()
            ]
            charts.append(line_chart(f"{title}: {label}", series, x_label="GPU demand arrived (%)", y_label=label))
        bars = [(policy, _gpus(study, 100.0 - loads[study.points[-1]].allocated)) for policy, loads in shown.items()]
        charts.append(bar_chart(f"{title}: unallocated GPUs", bars, y_label="unallocated GPUs"))
    return charts
