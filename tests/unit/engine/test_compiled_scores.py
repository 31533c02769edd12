"""The compiled loop's formula of each plugin gives the plugin's own score, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from tests.builders import a_node, a_pod

GATES = (
    PluginUse("node-ready"), PluginUse("isa-match"), PluginUse("taints", weight=0), PluginUse("node-affinity"),
    PluginUse("resource-fit"), PluginUse("gpu-fit"), PluginUse("pod-affinity"),
)  # fmt: skip
TERMS = [info.name for info in load_registry() if info.compiled_term is not None]
KNOWN = [
    ("least-allocated", {}),
    ("least-allocated", {"cpu": 3, "memory": 0}),
    ("least-allocated", {"pods": "cpu"}),
    ("balanced-allocation", {}),
    ("balanced-allocation", {"form": "change"}),
    ("tightest-fit", {"gpu": 2.5}),
    ("nash-gain", {}),
    ("nash-gain", {"full": 0.01}),
    ("nash-gain", {"pods": "cpu"}),
    ("gpu-headroom", {"need": "capacity"}),
    ("gpu-headroom", {"need": "capacity", "tightness": 0}),
    ("ihep", {}),
    ("ihep", {"combine": "product", "cpu_weight": 3}),
    ("ihep", {"pods": "gpu", "compute": "cores"}),
]
LEFT_TO_THE_CYCLE = [
    ("least-allocated", {"use": "measured"}),
    ("balanced-allocation", {"form": "difference"}),
    ("nash-gain", {"dispersion": "std"}),
]


def a_fleet(draw: random.Random, *, lacking: bool) -> Iterator[object]:
    for number in range(40):
        node = a_node(f"n{number:02}").cpu(draw.choice([4, 8, 16])).memory(draw.choice(["8Gi", "32Gi"]))
        if draw.random() < 0.5:
            model, memory = draw.choice([("T4", 15360), ("A100-SXM4-40GB", 40960), ("G2", None)])
            node = node.gpus(draw.choice([1, 2, 8]), model, memory)
        if not lacking or draw.random() < 0.7:
            node = node.offering("hetsched.io/network-mbps", 10_000).offering("hetsched.io/disk-mbps", 2_000)
        if draw.random() < 0.3:
            node = node.using(cpu="1500m", memory="2Gi")
        yield node.build()


def a_stream(draw: random.Random) -> Iterator[object]:
    for number in range(200):
        pod = a_pod(f"p{number}").cpu(f"{draw.choice([0, 100, 500, 1500, 3000])}m").memory(draw.choice(["0", "1Gi"]))
        kind = draw.random()
        if kind < 0.2:
            pod = pod.gpu(1, milli=draw.choice([100, 300, 500]), memory_mib=draw.choice([0, 4000]))
        elif kind < 0.4:
            pod = pod.gpu(draw.choice([1, 2]), model=draw.choice(["", "T4"]))
        elif kind < 0.5:
            pod = pod.requesting("hetsched.io/network-mbps", 200)
        elif kind < 0.6:
            pod = pod.expecting(cpu="50m")
        yield pod.build()


def compare_batch_with_cycle(uses: tuple[PluginUse, ...], seed: int, *, lacking: bool = True) -> int:
    """Place a stream pod by pod and in batches, compare, and return how many pods the batches passed to the cycle."""
    draw = random.Random(seed)
    nodes, pods = list(a_fleet(draw, lacking=lacking)), list(a_stream(draw))
    policy = compile_policy(PolicySpec("p", uses), load_registry())
    single, batched = ClusterState(nodes), ClusterState(nodes)
    scheduler = Scheduler(batched, policy)
    asked: list[str] = []
    batches = BatchScheduler(scheduler, expected=10**9, shortest=1)
    by_itself = scheduler.schedule
    scheduler.schedule = lambda pod: (asked.append(pod.key), by_itself(pod))[1]  # type: ignore[method-assign]
    one_by_one = Scheduler(single, policy)
    expected = [one_by_one.schedule(pod) for pod in pods]
    found = batches.schedule(pods[:90]) + batches.schedule(pods[90:])
    for want, got in zip(expected, found, strict=True):
        assert (got.node, got.score, got.allocation) == (want.node, want.score, want.allocation)
    assert single.columns.load.tobytes() == batched.columns.load.tobytes()
    assert single.digest() == batched.digest()
    assert sum(outcome.node is not None for outcome in found) > 50
    return len(asked)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "params"), KNOWN)
def test_alone(name: str, params: dict[str, object], seed: int) -> None:
    assert compare_batch_with_cycle((*GATES, PluginUse(name, weight=1.5, params=params)), seed) == 0


@pytest.mark.parametrize(("name", "params"), LEFT_TO_THE_CYCLE)
def test_parameters_that_no_formula_covers(name: str, params: dict[str, object]) -> None:
    assert compare_batch_with_cycle((*GATES, PluginUse(name, params=params)), 1) == 200


@pytest.mark.parametrize("lacking", [False, True])
def test_sum_of_all_terms_equals_the_cycle(lacking: bool) -> None:
    params = dict(KNOWN)
    scores = tuple(PluginUse(name, 1 + 0.25 * number, params[name]) for number, name in enumerate(TERMS))
    assert compare_batch_with_cycle((*GATES, *scores), 7, lacking=lacking) == 0


def test_all_formulas_are_covered() -> None:
    assert {name for name, _ in KNOWN} == set(TERMS)


def test_independent_pods_stay_in_the_compiled_loop() -> None:
    """Gangs, quotas and pods with possible victims go to the cycle, and the result is the same."""
    uses = (
        *GATES, PluginUse("quota"), PluginUse("gang"), PluginUse("preemption"), PluginUse("least-allocated"),
    )  # fmt: skip
    policy = compile_policy(PolicySpec("p", uses), load_registry())
    nodes = [a_node(f"n{number}").cpu(4).build() for number in range(6)]
    draw = random.Random(3)
    pods = []
    for number in range(80):
        pod = a_pod(f"p{number:02}").cpu(draw.choice(["500m", "1", "2"])).having(priority=draw.choice([0, 0, 5]))
        pods.append((pod.gang("g", 2) if number in (30, 31) else pod).build())
    single, batched = Scheduler(ClusterState(nodes), policy), Scheduler(ClusterState(nodes), policy)
    batches = BatchScheduler(batched, expected=10**9, shortest=1)
    asked: list[str] = []
    by_itself = batched.schedule
    batched.schedule = lambda pod: (asked.append(pod.name), by_itself(pod))[1]  # type: ignore[method-assign]
    expected = [single.schedule(pod) for pod in pods]
    found = batches.schedule(pods)
    expected_fields = [
        (outcome.node, outcome.score, outcome.eviction, outcome.is_waiting, outcome.refusal) for outcome in expected
    ]
    assert [(got.node, got.score, got.eviction, got.is_waiting, got.refusal) for got in found] == expected_fields
    assert single.state.digest() == batched.state.digest()
    unplaced = {pod.name for pod, outcome in zip(pods, found, strict=True) if outcome.node is None}
    assert any(outcome.eviction is not None for outcome in found)
    assert {"p30", "p31"} <= set(asked) <= {"p30", "p31"} | unplaced


def test_rules_of_placed_pods_apply_only_to_matching_pods() -> None:
    policy = compile_policy(PolicySpec("p", (*GATES, PluginUse("least-allocated"))), load_registry())
    nodes = [a_node(f"n{number}").cpu(8).build() for number in range(4)]
    pods = [a_pod("first").labelled(app="x").away_from("kubernetes.io/hostname", app="x").build()]
    pods += [a_pod(f"x{number}").labelled(app="x").build() for number in range(4)]
    pods += [a_pod(f"y{number}").labelled(app="y").build() for number in range(12)]
    single, batched = Scheduler(ClusterState(nodes), policy), Scheduler(ClusterState(nodes), policy)
    asked: list[str] = []
    by_itself = batched.schedule
    batched.schedule = lambda pod: (asked.append(pod.name), by_itself(pod))[1]  # type: ignore[method-assign]
    expected = [single.schedule(pod).node for pod in pods]
    assert [got.node for got in BatchScheduler(batched, expected=10**9, shortest=1).schedule(pods)] == expected
    assert asked == ["first", "x0", "x1", "x2", "x3"]


def test_few_pods_need_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "hetsched.engine.compiled.kernel", raising=False)
    policy = compile_policy(PolicySpec("p", (*GATES, PluginUse("least-allocated"))), load_registry())
    state = ClusterState([a_node("n").build()])
    BatchScheduler(Scheduler(state, policy), expected=50).schedule([a_pod("p").build()])
    assert "hetsched.engine.compiled.kernel" not in sys.modules
    assert msgspec.json.encode(list(state.placed_pods)) == b'["default/p"]'
