"""IHEP: GPU nodes for pods that need GPUs, CPU nodes for other pods.

If CPU pods spread over all nodes, they fill the CPUs of GPU nodes, and GPU pods wait although GPUs are idle. If the
cluster is split, the GPUs stay available, but CPU pods wait although CPUs of GPU nodes are idle. Experiment 1 submits
16 CPU pods and then 4 GPU pods to 2 CPU and 2 GPU nodes with capacity for five pods each, under the default policy, the
default policy on split clusters, and IHEP. It then evaluates every possible order of submission in one search over the
states of the nodes. Experiment 2 submits four GPU pods with GPU requirements to two nodes with different GPUs. The
default policy only counts GPUs, and a pod whose GPU has less memory than requested is a mismatch. Nodes have 48 cores
and 192 GiB. Pods of experiment 1 request 8 cores and 16 GiB: five fit in addition to the system's pods, but a sixth
does not. In experiment 2, the system's pods request 1 core and 1 GiB, which yields the scores of the worked example.
Source: Liu et al., Computer Engineering 2023(2). Its Tables 1-5 were not available, so sizes and GPUs are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import GpuDemand, PodSpec, Shape
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab.bench.measure import Progress
from hetsched.lab.plots import bar_chart
from hetsched.lab.policies import POLICIES

from .outcome import ExpectedResult, Experiment, ResultRow

CPU_PODS, GPU_PODS = 16, 4
_GIB = 2**30
_ORDERS = {
    "CPU pods first": "C" * CPU_PODS + "G" * GPU_PODS,
    "GPU pods first": "G" * GPU_PODS + "C" * CPU_PODS,
    "four CPU pods, one GPU pod": "CCCCG" * GPU_PODS,
}
_PENDING = {"default-kube": 2, "split-clusters": 6, "ihep": 0}


class PodsByNode(NamedTuple):
    """Numbers of CPU and GPU pods by node (in name order), and of pending pods by class."""

    nodes: tuple[tuple[int, int], ...]
    cpu_pending: int
    gpu_pending: int

    def __str__(self) -> str:
        return " ".join("+".join(f"{n}{c}" for n, c in zip(node, "CG", strict=True) if n) for node in self.nodes)


_TABLE = {
    "default-kube": PodsByNode(((4, 0), (4, 0), (4, 1), (4, 1)), 0, 2),
    "split-clusters": PodsByNode(((5, 0), (5, 0), (0, 2), (0, 2)), 6, 0),
    "ihep": PodsByNode(((5, 0), (5, 0), (3, 2), (3, 2)), 0, 0),
}

# GPUs, cores per GPU and MiB per GPU of the four pods of experiment 2, in order.
TESTS = ((1, 2500, 15000), (1, 2000, 30000), (2, 2500, 15000), (2, 2000, 30000))
_SCORES = ((60.03, 62.17), (63.74, None), (64.29, 66.43), (68.00, None))
_IHEP_PLACES, _DEFAULT_PLACES = (1, 0, 1, 0), (0, 1, 0, 1)


def run(progress: Progress) -> Experiment:
    """Run both experiments."""
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    names = (*_PENDING, "hetsched")
    for done, name in enumerate(names, 1):
        more, expected = _experiment_1(name)
        rows, expectations = rows + more, expectations + expected
        progress(done, len(names) + 1)
    more, expected = _experiment_2()
    progress(len(names) + 1, len(names) + 1)
    first = [row for row in rows if row.case == "CPU pods first" and row.metric == "pending"]
    return Experiment(
        name="ihep",
        title="IHEP: cards for GPU pods, CPU nodes for CPU pods",
        source="IHEP (Liu et al., Computer Engineering 2023(2)), DOI 10.19678/j.issn.1000-3428.0063709",
        reconstruction=True,
        rows=tuple(rows + more),
        expectations=tuple(expectations + expected),
        notes=(
            "Node, pod and card sizes are not from the publication; the placements follow from its five pods per node.",
            "The published run submits all CPU pods first; in other orders the default may leave nothing pending.",
        ),
        charts=(bar_chart("Pods left pending, CPU pods first", [(r.policy, r.value) for r in first], y_label="pods"),),
    )


# -- experiment 1: 20 pods on 4 nodes ----------------------------------------------------------------------------------


def _experiment_1(name: str) -> tuple[list[ResultRow], list[ExpectedResult]]:
    policy = compile_policy(POLICIES[name], load_registry())
    rows: list[ResultRow] = []
    for title, order in _ORDERS.items():
        found = place(policy, order)
        published = _PENDING.get(name) if title == "CPU pods first" else None
        rows.append(ResultRow(name, title, "pending", found.cpu_pending + found.gpu_pending, published))
    most, least = every_order(policy)
    rows.append(ResultRow(name, "every order", "pending at most", most))
    rows.append(ResultRow(name, "every order", "pending at least", least))
    if name not in _TABLE:
        return rows, []
    found = place(policy, _ORDERS["CPU pods first"])
    text = f"{name}: {found}, {found.cpu_pending} CPU and {found.gpu_pending} GPU pods pending"
    expectations = [ExpectedResult(text, found == _TABLE[name])]
    if name == "ihep":
        expectations.append(ExpectedResult(f"ihep: no order leaves pods pending (maximum: {most})", most == 0))
    return rows, expectations


def place(policy: Policy, order: str) -> PodsByNode:
    """Place pods in an order such as `CCG` (CPU, CPU, GPU), and return how many are on each node and pending."""
    scheduler = Scheduler(ClusterState(*fleet()), policy)
    names = scheduler.state.columns.names
    lying = Counter((scheduler.schedule(pod(kind, i)).node, kind) for i, kind in enumerate(order))
    nodes = tuple((lying[name, "C"], lying[name, "G"]) for name in names)
    return PodsByNode(nodes, lying[None, "C"], lying[None, "G"])


def every_order(policy: Policy) -> tuple[int, int]:
    """Return the maximum and the minimum number of pending pods over all orders of submission.

    Pods of a class are equal, so the result depends only on the pods of each node and on the remaining pods.
    """
    scheduler = Scheduler(ClusterState(*fleet()), policy)
    names = scheduler.state.columns.names
    known: dict[tuple[tuple[int, ...], int, int], tuple[int, int]] = {}

    def explore(held: tuple[int, ...], cpu_left: int, gpu_left: int) -> tuple[int, int]:
        key = (held, cpu_left, gpu_left)
        if key not in known:
            ends = [(0, 0)] if not cpu_left + gpu_left else []
            for kind, remaining in (("C", cpu_left), ("G", gpu_left)):
                if not remaining:
                    continue
                outcome = scheduler.schedule(pod(kind, remaining))
                after = list(held)
                if outcome.node is not None:
                    after[2 * names.index(outcome.node) + (kind == "G")] += 1
                most, least = explore(tuple(after), cpu_left - (kind == "C"), gpu_left - (kind == "G"))
                waits = int(outcome.node is None)
                ends.append((most + waits, least + waits))
                scheduler.undo(outcome)
            known[key] = max(most for most, _ in ends), min(least for _, least in ends)
        return known[key]

    return explore((0,) * (2 * len(names)), CPU_PODS, GPU_PODS)


# -- experiment 2: four pods with GPU facts on two kinds of GPU --------------------------------------------------------


def _experiment_2() -> tuple[list[ResultRow], list[ExpectedResult]]:
    product = tuple(
        PluginUse(use.name, use.weight, {"combine": "product"}) if use.name == "ihep" else use
        for use in POLICIES["ihep"].plugins
    )
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    for name, spec, places, mismatches in (
        ("default-kube", POLICIES["default-kube"], _DEFAULT_PLACES, 2),
        ("ihep", POLICIES["ihep"], _IHEP_PLACES, 0),
        ("ihep, product", PolicySpec("ihep", product), _IHEP_PLACES, 0),
    ):
        policy = compile_policy(spec, load_registry())
        found = mixed_cards(policy)
        short = mismatched(found)
        published = 0.0 if name == "ihep" else None
        rows.append(ResultRow(name, "cards of two models", "memory mismatches", short, published))
        text = f"{name}: tests on gpu-node {' '.join(map(str, found))}, {short} memory mismatches"
        expectations.append(ExpectedResult(text, (found, short) == (places, mismatches)))
    scores = card_scores(compile_policy(POLICIES["ihep"], load_registry()))
    for number, (ours, worked) in enumerate(zip(scores, _SCORES, strict=True), 1):
        for node, (score, expected) in enumerate(zip(ours, worked, strict=True)):
            if score is not None:
                rows.append(ResultRow("ihep", f"test{number} on gpu-node{node}", "score", round(score, 2)))
            same = score is expected if score is None or expected is None else abs(score - expected) < 0.005
            text = f"test{number} on gpu-node{node}: score {score and round(score, 2)}, expected {expected}"
            expectations.append(ExpectedResult(text, same))
    return rows, expectations


def mixed_cards(policy: Policy) -> tuple[int | None, ...]:
    """Return the index of the GPU node of each test pod, or None for a pod that is not placed."""
    scheduler = Scheduler(ClusterState(*card_fleet()), policy)
    rows = [scheduler.schedule(card_pod(number)).row for number in range(len(TESTS))]
    return tuple(row if row >= 0 else None for row in rows)


def mismatched(places: Sequence[int | None]) -> int:
    """Return the number of pods on GPUs with less memory than requested."""
    memory = [(node.gpus or ())[0].memory_mib or 0 for node in card_fleet()[0]]
    return sum(place is not None and memory[place] < asked for place, (_, _, asked) in zip(places, TESTS, strict=True))


def card_scores(policy: Policy) -> list[tuple[float | None, ...]]:
    """Return each test pod's scores on both GPU nodes before its placement, or None where it does not fit."""
    scheduler = Scheduler(ClusterState(*card_fleet()), policy)
    found = []
    for number in range(len(TESTS)):
        outcomes = sorted(matrix(scheduler, card_pod(number)), key=lambda outcome: outcome.name)
        found.append(tuple(next((s.raw for s in outcome.scores if s.plugin == "ihep"), None) for outcome in outcomes))
        scheduler.schedule(card_pod(number))
    return found


# -- nodes and pods ----------------------------------------------------------------------------------------------------

_LARGE = GpuCard(0, None, "V100-SXM2-32GB", "nvidia", memory_mib=32000, cores=5120, bandwidth_gbs=900, clock_mhz=1380)
_SMALL = GpuCard(0, None, "T4", "nvidia", memory_mib=16000, cores=2560, bandwidth_gbs=320, clock_mhz=1590)


def fleet() -> tuple[list[NodeReport], list[PodSpec]]:
    """Return the four nodes of experiment 1 and the system's pods on them."""
    nodes = [_node(f"cpu-node{number}", None) for number in (0, 1)]
    nodes += [_node(f"gpu-node{number}", _LARGE) for number in (0, 1)]
    return nodes, [_pod(f"system-{node.name}", 500, 1, node=node.name) for node in nodes]


def card_fleet() -> tuple[list[NodeReport], list[PodSpec]]:
    """Return the two nodes of experiment 2 and the system's pods on them."""
    nodes = [_node("gpu-node0", _LARGE), _node("gpu-node1", _SMALL)]
    return nodes, [_pod(f"system-{node.name}", 1000, 1, node=node.name) for node in nodes]


def pod(kind: str, number: int) -> PodSpec:
    """Return a pod of experiment 1 of the kind `C` (CPU) or `G` (GPU)."""
    return _pod(f"{kind.lower()}-{number}", 8000, 16, GpuDemand(1) if kind == "G" else None)


def card_pod(number: int) -> PodSpec:
    """Return a pod of experiment 2."""
    cards, cores, memory_mib = TESTS[number]
    return _pod(f"test{number + 1}", 4000, 8, GpuDemand(cards, memory_mib=memory_mib, cores=cores))


def _node(name: str, card: GpuCard | None) -> NodeReport:
    cards = None if card is None else tuple(msgspec.structs.replace(card, index=index) for index in range(4))
    return NodeReport(name=name, allocatable={"cpu": 48_000, "memory": 192 * _GIB, "pods": 110}, gpus=cards)


def _pod(name: str, cpu: int, memory_gib: int, gpu: GpuDemand | None = None, *, node: str = "") -> PodSpec:
    shape = Shape(
        requests=(("cpu", cpu), ("memory", memory_gib * _GIB), ("pods", 1)),
        nonzero_cpu_millis=cpu,
        nonzero_memory_bytes=memory_gib * _GIB,
        gpu=gpu,
    )
    return PodSpec(namespace="lab", name=name, shape=shape, node_name=node)
