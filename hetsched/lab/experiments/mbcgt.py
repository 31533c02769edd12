"""MBCGT: balance four resources, compared with schedulers that see two resources, by requests or by measured load.

CPU and memory may look balanced while network and disk are overloaded on some nodes and idle on others. `default` is
kube-scheduler 1.18's LeastAllocated + BalancedAllocation, `dynamic` uses the same plugins with measured CPU and memory,
and `mbcgt` is the Nash product over all four resources. The result of a group is the mean over its five orders of

    load balance degree      mean over the nodes of S = 1 - B       (higher is more even; compared in the publication)
    resource unevenness      mean over the nodes of B               (lower is more even)

and the gain of one policy over another is the ratio of their load balance degrees minus 1. The publication states the
gains of mbcgt over dynamic and default; the gain of dynamic over default follows from them as (1 + a) / (1 + b) - 1:
8.15 and 7.41 % -> 0.69 %. The comparison is then repeated on 200 nodes, and with joint placement of the batch
(`lab.joint`).
Half of the nodes are small, and half are twice as large. Each of the four kinds of applications is heavy on one
resource; its usage is known exactly and differs from its requests. An order is a Fisher-Yates shuffle from the last
index by the generator of `lab.lcg`.
Source: MBCGT (Li et al., Journal of Xidian University 2021 48(6)), which publishes the counts (4 nodes, 12 pods, 3
groups of 5 orders); sizes, demands and seeds are a reconstruction with gains of the published magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hetsched.contracts.objects.node_report import NodeReport, Usage
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS, PODS
from hetsched.engine.cluster.balance import cluster_balance
from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab import joint
from hetsched.lab.bench.measure import Progress
from hetsched.lab.lcg import Lcg
from hetsched.lab.plots import PlotLine, bar_chart, line_chart
from hetsched.lab.policies import POLICIES, earlier_kube

from .outcome import ExpectedResult, Experiment, ResultRow

RESOURCES = (CPU, MEMORY, NETWORK_MBPS, DISK_MBPS)
_GIB = 2**30
_SMALL = (4000, 8 * _GIB, 100, 100)
_LARGE = (8000, 16 * _GIB, 200, 200)
# For one pod of each kind: its requests of CPU and memory, and its usage of CPU, memory, network and disk.
_KINDS = {
    "cpu": ((2000, _GIB), (3500, _GIB // 2, 5, 5)),
    "mem": ((500, 4 * _GIB), (300, 3 * _GIB, 5, 5)),
    "net": ((500, _GIB), (300, _GIB // 2, 75, 5)),
    "io": ((500, _GIB), (300, _GIB // 2, 5, 75)),
}


def nodes(count: int) -> list[NodeReport]:
    """Return empty nodes with measured usage: two small, two large, two small, and so on."""
    return [_node(f"node{number:03d}", _LARGE if (number - 1) % 4 >= 2 else _SMALL) for number in range(1, count + 1)]


def _node(name: str, size: tuple[int, ...]) -> NodeReport:
    room = dict(zip(RESOURCES, size, strict=True)) | {PODS: 110}
    return NodeReport(name=name, allocatable=room, usage=Usage(dict.fromkeys(RESOURCES, 0)))


def pods(copies: int, seed: int) -> list[PodSpec]:
    """Return `copies` applications of each kind, in an order that depends on the seed."""
    made = [PodSpec("lab", f"{kind}{number}", shape) for kind, shape in _SHAPES.items() for number in range(copies)]
    Lcg(seed).shuffle(made)
    return made


def _shape(requested: tuple[int, ...], used: tuple[int, ...]) -> Shape:
    cpu, memory = requested
    return Shape(
        requests=((CPU, cpu), (MEMORY, memory), (PODS, 1)),
        nonzero_cpu_millis=cpu,
        nonzero_memory_bytes=memory,
        expected_usage=tuple(sorted(zip(RESOURCES, used, strict=True))),
    )


_SHAPES = {kind: _shape(*amounts) for kind, amounts in _KINDS.items()}


_ORDERS = 5
_PUBLISHED = {"default": (8.15, 8.40, 6.31), "dynamic": (7.41, 8.22, 5.88)}
_LEAST_GAIN, _MOST_GAIN = 5.0, 9.0
_LARGE_NODES, _LARGE_COPIES, _LARGE_GAIN = 200, 150, 8.4
_DEGREE, _UNEVEN = "load balance degree (mean S)", "resource unevenness (mean B)"
_IDLE, _OVER, _PENDING = "idle nodes", "overloaded nodes", "pending pods"
_PRODUCT = "Nash product"
_AS_STD = "gain over default were S = 1 - std, %"
_SAME = 1e-12


class _End(NamedTuple):
    """Final metrics of a cluster, when all pods have been tried, or their mean over several clusters."""

    degree: float
    degree_as_std: float
    idle: float
    overloaded: float
    pending: float


def run(progress: Progress) -> Experiment:
    """Place the applications under each policy in every order, on small and large clusters, and then jointly."""
    policies = _policies()
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    total = 8
    for group in range(3):
        ends = {name: _mean_end(policy, 4, 3, group, _ORDERS) for name, policy in policies.items()}
        rows += _group_rows(ends, f"group {group + 1}", group)
        expectations += _group_expectations(ends, group)
        progress(group + 1, total)
    large = [{name: _mean_end(p, _LARGE_NODES, _LARGE_COPIES, g, 1) for name, p in policies.items()} for g in range(3)]
    for group, ends in enumerate(large):
        rows += _group_rows(ends, f"{_LARGE_NODES} nodes, group {group + 1}", None)
    expectations.append(_large_expectation(large))
    progress(4, total)
    for group in range(3):
        together, expectation = _together(policies["mbcgt"], group)
        rows += together
        expectations.append(expectation)
        progress(5 + group, total)
    together, expectation = _many_together(policies["mbcgt"])
    rows += together
    expectations.append(expectation)
    progress(total, total)
    return Experiment(
        name="mbcgt",
        title="MBCGT: balancing four measured resources as a cooperative game",
        source="Li et al., Journal of Xidian University 2021 48(6) 16-22",
        reconstruction=True,
        rows=tuple(rows),
        expectations=tuple(expectations),
        notes=(
            "The publication reports only gains; nodes, demands and orders were chosen by a search to reproduce their "
            "magnitude.",
            "An empty node is perfectly even, so mbcgt leaves nodes idle; mbcgt-spread blends it with an even load.",
        ),
        charts=(
            *(_gain_chart(rows, rival) for rival in _PUBLISHED),
            line_chart(
                "Group 1, first order: unevenness as pods are placed",
                [PlotLine(name, _course(policy)) for name, policy in policies.items()],
                x_label="pods placed",
                y_label="mean B",
            ),
        ),
    )


def _policies() -> dict[str, Policy]:
    specs = {
        "default": earlier_kube("difference", "default-kube-1.18"),
        "dynamic": POLICIES["dynamic"],
        "mbcgt": POLICIES["mbcgt"],
        "mbcgt-spread": POLICIES["mbcgt-spread"],
    }
    return {name: compile_policy(spec, load_registry()) for name, spec in specs.items()}


def _gain(rival: str) -> str:
    return f"gain over {rival}, %"


def _seed(group: int, order: int) -> int:
    return 100 * group + order


def _gain_chart(rows: Sequence[ResultRow], rival: str) -> str:
    gains = {row.case: row.value for row in rows if (row.policy, row.metric) == ("mbcgt", _gain(rival))}
    bars: list[tuple[str, float | None]] = []
    for group, figure in enumerate(_PUBLISHED[rival], 1):
        gain = gains[f"group {group}"]
        bars += [(f"group {group}", None if gain is None else round(gain, 2)), (f"published {group}", figure)]
    return bar_chart(f"Gain in load balance degree over {rival}, %", bars, y_label=f"% over {rival}")


def _mean_end(policy: Policy, node_count: int, copies: int, group: int, orders: int) -> _End:
    ends = []
    for order in range(1, orders + 1):
        scheduler = Scheduler(ClusterState(nodes(node_count)), policy)
        pending = sum(scheduler.schedule(pod).node is None for pod in pods(copies, _seed(group, order)))
        ends.append(_end(scheduler.state, pending))
    return _End(*(sum(values) / orders for values in zip(*ends, strict=True)))


def _end(state: ClusterState, pending: int) -> _End:
    room = state.columns.field("allocatable")[[state.resources.index[name] for name in USAGE_RESOURCES]]
    over = (state.columns.field("used") > room).any(axis=0)
    resources, every = nash.resources_of(state), state.all_rows
    as_std, _ = nash.utility(nash.used(every, resources), nash.capacity(every, resources), "std")
    idle = sum(not held for held in state.on_row)
    return _End(cluster_balance(state), float(as_std.mean()), idle, int(over.sum()), pending)


def _group_rows(ends: dict[str, _End], case: str, published: int | None) -> list[ResultRow]:
    rows = []
    for name, end in ends.items():
        rows += [
            ResultRow(name, case, _DEGREE, round(end.degree, 6)),
            ResultRow(name, case, _UNEVEN, round(1 - end.degree, 6)),
        ]
        rows += [
            ResultRow(name, case, _IDLE, round(end.idle, 2)),
            ResultRow(name, case, _OVER, round(end.overloaded, 2)),
        ]
        rows.append(ResultRow(name, case, _PENDING, end.pending))
    for rival, figures in _PUBLISHED.items():
        gain = round(_percent(ends["mbcgt"], ends[rival]), 4)
        rows.append(ResultRow("mbcgt", case, _gain(rival), gain, None if published is None else figures[published]))
    over_default, over_dynamic = (1 + figures[published or 0] / 100 for figures in _PUBLISHED.values())
    follows = None if published is None else round(100 * (over_default / over_dynamic - 1), 4)
    rows.append(
        ResultRow("dynamic", case, _gain("default"), round(_percent(ends["dynamic"], ends["default"]), 4), follows)
    )
    rows.append(ResultRow("mbcgt", case, _AS_STD, round(_percent_as_std(ends), 4)))
    return rows


def _percent(end: _End, rival: _End) -> float:
    return 100 * (end.degree / rival.degree - 1)


def _percent_as_std(ends: dict[str, _End]) -> float:
    return 100 * (ends["mbcgt"].degree_as_std / ends["default"].degree_as_std - 1)


def _group_expectations(ends: dict[str, _End], group: int) -> list[ExpectedResult]:
    degrees = {name: ends[name].degree for name in ("mbcgt", "dynamic", "default")}
    order = " > ".join(f"{name} {degree:.4f}" for name, degree in degrees.items())
    gains = {rival: _percent(ends["mbcgt"], ends[rival]) for rival in _PUBLISHED}
    measured = " and ".join(f"{gains[rival]:.2f} % over {rival}" for rival in gains)
    figures = " and ".join(f"{figures[group]:.2f} %" for figures in _PUBLISHED.values())
    within = all(_LEAST_GAIN <= gain <= _MOST_GAIN for gain in gains.values())
    return [
        ExpectedResult(f"group {group + 1}: {order}", degrees["mbcgt"] > degrees["dynamic"] > degrees["default"]),
        ExpectedResult(f"group {group + 1}: mbcgt gains {measured}, within 5-9 % (published {figures})", within),
        ExpectedResult(
            f"group {group + 1}: with S = 1 - std the gain is {_percent_as_std(ends):.2f} %, so S is 1 - variance",
            _percent_as_std(ends) > 2 * _MOST_GAIN,
        ),
    ]


def _large_expectation(groups: list[dict[str, _End]]) -> ExpectedResult:
    gains = [_percent(ends["mbcgt"], ends["default"]) for ends in groups]
    as_many = all(ends["mbcgt"].pending <= ends["default"].pending for ends in groups)
    measured = ", ".join(f"{gain:.2f} %" for gain in gains)
    placed = "no fewer" if as_many else "fewer"
    text = f"{_LARGE_NODES} nodes: mbcgt gains {measured} over default (minimum {_LARGE_GAIN} %), {placed} pods placed"
    return ExpectedResult(text, min(gains) >= _LARGE_GAIN and as_many)


# -- the batch together ------------------------------------------------------------------------------------------------


def _together(policy: Policy, group: int) -> tuple[list[ResultRow], ExpectedResult]:
    """Compare greedy, improved and exact joint placement of twelve pods; the exact plan is the same for all orders."""
    case = f"group {group + 1}, 12 pods together"
    plans: dict[str, list[joint.JointPlan]] = {"greedy, as published": [], "improved": [], "exact": []}
    for order in range(1, _ORDERS + 1):
        scheduler = Scheduler(ClusterState(nodes(4)), policy)
        problem = joint.problem_of(scheduler, pods(3, _seed(group, order)))
        for made, solve in zip(plans.values(), (joint.greedy, joint.improved, joint.exact), strict=True):
            made.append(solve(problem))
    rows = []
    for name, made in plans.items():
        rows.append(ResultRow(name, case, _PRODUCT, round(_mean([math.exp(plan.log_product) for plan in made]), 6)))
        rows.append(ResultRow(name, case, _DEGREE, round(_mean([plan.after for plan in made]), 6)))
    worths = [[plan.log_product for plan in made] for made in plans.values()]
    ranked = all(g <= i <= e + _SAME for g, i, e in zip(*worths, strict=True))
    hits = [sum(e - found < _SAME for found, e in zip(made, worths[2], strict=True)) for made in worths]
    text = f"{case}: exact >= improved >= greedy in all {_ORDERS} orders; greedy finds the optimum in {hits[0]}, "
    text += f"improved in {hits[1]}"
    return rows, ExpectedResult(text, ranked)


def _many_together(policy: Policy) -> tuple[list[ResultRow], ExpectedResult]:
    """Compare greedy and improved joint placement on the large cluster, where an exhaustive search is not possible."""
    case = f"{_LARGE_NODES} nodes, group 1, {4 * _LARGE_COPIES} pods together"
    scheduler = Scheduler(ClusterState(nodes(_LARGE_NODES)), policy)
    problem = joint.problem_of(scheduler, pods(_LARGE_COPIES, _seed(0, 1)))
    greedy, improved = joint.greedy(problem), joint.improved(problem)
    rows = []
    for name, plan in (("greedy, as published", greedy), ("improved", improved)):
        rows.append(ResultRow(name, case, _PRODUCT, round(math.exp(plan.log_product), 6)))
        rows.append(ResultRow(name, case, _DEGREE, round(plan.after, 6)))
    growth = math.exp(improved.log_product - greedy.log_product)
    text = f"{case}: the product of the improved plan is {growth:.3f} times that of the greedy plan"
    return rows, ExpectedResult(text, improved.worth >= greedy.worth)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _course(policy: Policy) -> tuple[tuple[float, float | None], ...]:
    """Return the unevenness of the cluster after each pod of the first order, as (number of pods tried, unevenness)."""
    scheduler = Scheduler(ClusterState(nodes(4)), policy)
    points: list[tuple[float, float | None]] = [(0.0, 1 - cluster_balance(scheduler.state))]
    for done, pod in enumerate(pods(3, _seed(0, 1)), 1):
        scheduler.schedule(pod)
        points.append((float(done), 1 - cluster_balance(scheduler.state)))
    return tuple(points)
