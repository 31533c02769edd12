"""The workload mix of fragmentation: its counts, its sources, and its effect."""

from __future__ import annotations

from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.gpu.workload_mix import mix_of
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, built, cluster

FGD = compile_policy(BUILTIN["fgd"], REGISTRY)
PODS = [built(a_pod(f"p{number}").cpu(1 + number % 3).gpu(1, milli=100)) for number in range(7)]


def test_workload_mix_is_independent_of_the_order() -> None:
    # 3 pods of 1 CPU, 2 of 2 CPUs, 2 of 3 CPUs; the last two are as frequent
    mix = mix_of(PODS)
    assert [(shape.request("cpu"), count) for shape, count in mix.counts[:1]] == [(1000, 3)]
    assert mix == mix_of(reversed(PODS))
    assert mix.pods == 7


def test_mix_depends_on_current_pods_only() -> None:
    state = cluster([a_node("n").cpu(99).gpus(8)])
    for pod in PODS:
        state.assume(state.compile(pod), 0)
    other = cluster([a_node("n").cpu(99).gpus(8)])
    for pod in [built(a_pod("gone")), *reversed(PODS)]:
        other.assume(other.compile(pod), 0)
    other.forget("default/gone")
    assert state.placed_mix() == other.placed_mix() == mix_of(PODS)


def test_scheduler_with_a_mix_term_uses_the_placed_pods() -> None:
    nodes, running = [a_node("n").gpus(2)], [a_pod("r").gpu(1, milli=500).running_on("n")]
    state = cluster(nodes, running)
    Scheduler(state, FGD)
    assert [count for _, count in state.mix.counts] == [1]
    plain = cluster(nodes, running)
    Scheduler(plain, compile_policy(BUILTIN["first-fit"], REGISTRY))
    assert not plain.mix.counts


def test_given_mix_is_kept() -> None:
    state = cluster([a_node("n").gpus(2)], [a_pod("r").gpu(1, milli=500).running_on("n")])
    for mix in (mix_of(PODS), mix_of([])):
        state.use_mix(mix)
        Scheduler(state.fork(), FGD)
        Scheduler(state, FGD)
        assert state.mix == state.fork().mix == mix


def test_given_mix_changes_scores_and_not_the_digest() -> None:
    # Cards of 1000 and 300 free. For pods of 500 a pod of 300 belongs on card 1 (57), for pods of 300 it matters not:
    # F = 0 before; after it on card 1: 0 -> int(100 * sigmoid(0)) = 50
    state = cluster([a_node("n").gpus(2)], [a_pod("r").gpu(1, milli=700).running_on("n")])
    digest = state.digest()
    pod = built(a_pod("x").gpu(1, milli=300))
    for milli, score in ((500, 57.0), (300, 50.0), (500, 57.0)):
        state.use_mix(mix_of([built(a_pod("m").gpu(1, milli=milli))]))
        assert state.digest() == digest
        _, total = Scheduler(state, FGD).evaluator.evaluate(state.compile(pod))
        assert total.tolist() == [score]


def test_what_if_counts_running_and_requested_pods() -> None:
    # Nothing runs; the two pods are the mix themselves. 500 and 500 leave nothing of one card: both go on card 0.
    state = cluster([a_node("n").gpus(2)])
    pods = [built(a_pod(f"p{number}").gpu(1, milli=500)) for number in range(2)]
    answer = what_if(state, FGD, pods, evaluated_at="2026-11-21T00:00:00Z")
    assert [placement.gpus[0].index for placement in answer.placements] == [0, 0]
    assert all(placement.score > 0 for placement in answer.placements)
    assert not state.mix.counts
