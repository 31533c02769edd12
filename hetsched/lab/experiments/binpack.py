"""Binpack: packing keeps one node free for a large job; spreading leaves too little free capacity on every node.

Example: two nodes with 4 GPUs each, and six 1-GPU jobs. If the jobs are spread evenly (3 + 3), one GPU is free on each
node and a 2-GPU job stays pending; if they are packed (4 + 2), the 2-GPU job runs. First, real policies place the six
jobs and then the 2-GPU job, one by one. Then the score of RequestedToCapacityRatio for one node is computed for each
worked example, in the arithmetic of the formula (`plain`, shown as 0-10) and in that of kube-scheduler (`upstream`,
shown as 0-100).
Source: the Scheduling Framework publication (fragment figure, formula); kube-scheduler
`noderesources/requested_to_capacity_ratio.go` (upstream arithmetic).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import GpuDemand, PodSpec, Shape
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab.bench.measure import Progress
from hetsched.lab.plots import bar_chart
from hetsched.lab.policies import POLICIES

from .outcome import ExpectedResult, Experiment, ResultRow

_CARDS, _CPU_MILLIS = 4, 32_000
_SMALL_JOBS = 6
_METRICS = ("cards used on the fuller node", "cards used on the other node", "2-card jobs placed")
_PUBLISHED = {"spread": (3, 3, 0), "default-kube": (3, 3, 0), "binpack": (4, 2, 1)}
_RISING, _FALLING = ((0, 0), (100, 10)), ((0, 10), (100, 0))
_KNEE = ((0, 0), (50, 8), (100, 10))


class _ScoreCase(NamedTuple):
    """Worked example: the utilisation of the node including the pod, and the expected score in both arithmetics."""

    title: str
    curve: tuple[tuple[int, int], ...]
    cpu_percent: int
    cards: int | None
    plain: float
    upstream: float


_CASES = (
    _ScoreCase("0:0 100:10, GPU 3 of 4, CPU 16 of 32", _RISING, 50, 3, 6.25, 63),
    _ScoreCase("0:0 50:8 100:10, CPU 25 %", _KNEE, 25, None, 4, 40),
    _ScoreCase("0:0 50:8 100:10, CPU 50 %", _KNEE, 50, None, 8, 80),
    _ScoreCase("0:0 50:8 100:10, CPU 75 %", _KNEE, 75, None, 9, 90),
    _ScoreCase("0:0 100:10, GPU 4 of 4, CPU 0 %", _RISING, 0, 4, 5, 100),
    _ScoreCase("0:10 100:0, CPU 30 %", _FALLING, 30, None, 7, 70),
)


def run(progress: Progress) -> Experiment:
    """Place the jobs under each policy and score the worked examples."""
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    total = len(_PUBLISHED) + len(_CASES)
    for done, (name, published) in enumerate(_PUBLISHED.items(), 1):
        found = _fragments(name)
        for metric, value, figure in zip(_METRICS, found, published, strict=True):
            rows.append(ResultRow(name, "2 nodes of 4 cards", metric, value, figure))
        text = (
            f"{name}: the six jobs are placed {found[0]} + {found[1]}, the 2-card job {'runs' if found[2] else 'waits'}"
        )
        expectations.append(ExpectedResult(text, found == published))
        progress(done, total)
    for done, case in enumerate(_CASES, len(_PUBLISHED) + 1):
        plain, upstream = _score(case, "plain") / 10, _score(case, "upstream")
        rows += [
            ResultRow("plain", case.title, "score 0-10", plain),
            ResultRow("upstream", case.title, "score 0-100", upstream),
        ]
        text = f"{case.title}: plain {plain:g} (expected {case.plain:g}), upstream {upstream:g} ({case.upstream:g})"
        expectations.append(ExpectedResult(text, abs(plain - case.plain) < 1e-9 and upstream == case.upstream))
        progress(done, total)
    bars = [(row.policy, row.value) for row in rows if row.metric == _METRICS[2]]
    return Experiment(
        name="binpack",
        title="Binpack versus spread: capacity for the next large job",
        source="Kubernetes Scheduling Framework with scheduler-plugins; kube-scheduler RequestedToCapacityRatio",
        reconstruction=False,
        rows=tuple(rows),
        expectations=tuple(expectations),
        charts=(bar_chart("2-card jobs that run after six 1-card jobs", bars, y_label="jobs"),),
    )


def _fragments(policy: str) -> tuple[int, int, int]:
    """Return the number of small jobs by node, the fuller node first, and the number of placed large jobs (0 or 1)."""
    nodes = [_node(f"node-{number}") for number in (1, 2)]
    scheduler = Scheduler(ClusterState(nodes), compile_policy(POLICIES[policy], load_registry()))
    small = [_pod(f"small-{number}", 1000, 1) for number in range(_SMALL_JOBS)]
    used = Counter({node.name: 0 for node in nodes})
    used.update(node for pod in small if (node := scheduler.schedule(pod).node))
    placed = scheduler.schedule(_pod("large", 2000, 2)).node is not None
    most, least = sorted(used.values(), reverse=True)
    return most, least, int(placed)


def _score(case: _ScoreCase, mode: str) -> float:
    """Return the binpack score of an empty node for a pod that brings the node to the utilisation of the example."""
    resources = {"cpu": 1} if case.cards is None else {"cpu": 1, "nvidia.com/gpu": 1}
    params = {"shape": case.curve, "resources": resources, "mode": mode}
    policy = compile_policy(PolicySpec("score", (PluginUse("binpack", params=params),)), load_registry())
    pod = _pod("pod", _CPU_MILLIS * case.cpu_percent // 100, case.cards or 0)
    return Scheduler(ClusterState([_node("node")]), policy).schedule(pod).score


def _node(name: str) -> NodeReport:
    cards = tuple(GpuCard(index=index, vendor="nvidia") for index in range(_CARDS))
    return NodeReport(name=name, allocatable={"cpu": _CPU_MILLIS, "memory": 2**37, "pods": 110}, gpus=cards)


def _pod(name: str, cpu_millis: int, cards: int) -> PodSpec:
    shape = Shape(
        requests=(("cpu", cpu_millis), ("pods", 1)),
        nonzero_cpu_millis=cpu_millis,
        gpu=GpuDemand(cards) if cards else None,
    )
    return PodSpec(namespace="lab", name=name, shape=shape)
