"""The terms of `hetsched-gpu`, each with its arithmetic, and their combination."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.gpu.workload_mix import mix_of
from hetsched.engine.plugins.gpu.gpu_headroom import Need, needs_by_capacity, needs_by_mix, stranded
from hetsched.engine.plugins.gpu.gpu_scarcity import prices_of
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, active, built, cluster


def scores(plugin: str, state, pod: PodBuilder, params=None) -> dict[str, float]:
    instance, request = active(plugin, params).instance, state.compile(built(pod))
    instance.pre_score(request, state)
    return dict(zip(state.columns.names, instance.score(request, state.all_rows).tolist(), strict=True))


def test_gradient_uses_exact_gpu_shares() -> None:
    # Mix: 500. Cards 1000 and 300 free; F 300 -> 0 by 300 on card 1. W: sizes {500}: W(300) = 300, W(0) = 0.
    # gain = 300 + (300 - 0) = 600 milli: 50 + 5 * 0.6 = 53; without W 50 + 5 * 0.3 = 51.5
    running = [a_pod("r").gpu(1, milli=700).running_on("n", CardGrant(1, 700, 0))]
    state = cluster([a_node("n").gpus(2)], running)
    state.use_mix(mix_of([built(a_pod("m").gpu(1, milli=500))]))
    assert scores("gpu-gradient", state, a_pod().gpu(1, milli=300)) == {"n": pytest.approx(53)}
    assert scores("gpu-gradient", state, a_pod().gpu(1, milli=300), {"fill": 0}) == {"n": pytest.approx(51.5)}


def test_gradient_chooses_the_gpu_with_a_usable_remainder() -> None:
    # Sizes 600 and 400. Cards: 1000 and 400 free. 400 on the rest of 400 leaves nothing, on the empty one 600.
    running = [a_pod("r").gpu(1, milli=600).running_on("n", CardGrant(0, 600, 0))]
    state = cluster([a_node("n").gpus(2)], running)
    state.use_mix(mix_of([built(a_pod(f"m{milli}").gpu(1, milli=milli)) for milli in (600, 400)]))
    outcome = Scheduler(state, compile_policy(BUILTIN["hetsched-gpu"], REGISTRY)).schedule(
        built(a_pod().gpu(1, milli=400))
    )
    assert [card.index for card in outcome.allocation.gpus] == [0]


def test_resources_per_gpu_are_derived_from_the_mix() -> None:
    # (10 cores, 1 GPU), (6 cores, 0.5 GPU), CPU pods do not count: mean 16 / 1.5 = 10.6667 cores per GPU;
    # variance ((10 - 10.6667)^2 + (6 - 5.3333)^2) / 1.5 = (0.4444 + 0.4444) / 1.5 = 0.5926, deviation 0.7698 cores
    state = cluster([a_node("n").gpus(1)])
    pods = [a_pod("a").cpu(10).gpu(1), a_pod("b").cpu(6).gpu(1, milli=500), a_pod("c").cpu(99)]
    state.use_mix(mix_of([built(pod) for pod in pods]))
    cpu, memory = needs_by_mix(state)
    assert (cpu.row, cpu.mean, cpu.deviation) == (0, pytest.approx(10666.67), pytest.approx(769.80, abs=0.01))
    assert memory.row == 1


def test_median_gpu_determines_the_needs_without_a_mix() -> None:
    # 2 cards beside 24 cores: 12 each; 3 beside 24: 8 each; 8, 8, 8, 12, 12 -> 8. A node without cards says nothing.
    fleet = [a_node("a").cpu(24).gpus(2), a_node("b").cpu(24).gpus(3), a_node("c").cpu(99)]
    cpu, _ = needs_by_capacity(cluster(fleet))
    assert cpu == Need(0, 8000.0, 0.0)
    cpu, _ = needs_by_capacity(cluster([a_node("a").cpu(24).gpus(2), a_node("b").cpu(16).gpus(2)]))
    assert cpu == Need(0, 10000.0, 0.0)  # 8, 8, 12, 12
    # 1 GPU and 8 cores leave `a` 1 GPU and 16 cores, `b` 2 GPUs and 16 cores: nothing is short. 12 cores: `a` 12, `b`
    # 12 cores for 2 GPUs: S = 2 - 12 / 8 = 0.5 GPUs -> 50 - 2.5
    exact = {"need": "capacity", "tightness": 0}
    pods = [a_pod().cpu(cpu).memory("1Mi").gpu(1) for cpu in (8, 12)]
    light, heavy = (scores("gpu-headroom", cluster(fleet), pod, exact) for pod in pods)
    assert light == pytest.approx({"a": 50, "b": 50, "c": 50})
    assert heavy == {"a": pytest.approx(50), "b": pytest.approx(47.5), "c": 50}


def test_expected_stranded_gpus_are_the_newsvendors_loss() -> None:
    # No deviation: (20 - 15) / 10 = 0.5, ample CPU 0. Deviation pi / sqrt(3) for one GPU makes s = 1 core:
    # need 10, left 10: s / rho * ln(2) = 0.0693
    flat, wide = Need(0, 10.0, 0.0), Need(0, 10.0, math.pi / math.sqrt(3))
    remaining, gpus = np.array([15.0, 30.0, 3.0]), np.array([2.0, 2.0, 0.0])
    assert stranded(flat, remaining, gpus).tolist() == pytest.approx([0.5, 0.0, 0.0])
    assert stranded(wide, np.array([10.0]), np.array([1.0])).tolist() == pytest.approx([math.log(2) / 10])


def test_cpu_headroom_matches_pods_to_node_ratios() -> None:
    # Mix: 10 cores per GPU exactly. `short`: 2 GPUs, 15 cores, S = 0.5; `ample`: 2 GPUs, 60 cores, S = 0.
    # 1 GPU + 4 cores: short 1 GPU, 11 cores: S 0, cost -0.5 -> 52.5; ample: cost 0 -> 50
    # 1 GPU + 12 cores: short 1 GPU, 3 cores: S 0.7, cost 0.2 -> 49;  ample: 50
    fleet = [a_node("short").cpu(15).memory("1Ti").gpus(2), a_node("ample").cpu(60).memory("1Ti").gpus(2)]
    state = cluster(fleet)
    state.use_mix(mix_of([built(a_pod("m").cpu(10).memory("1Mi").gpu(1))]))
    exact = {"tightness": 0}
    light = scores("gpu-headroom", state, a_pod().cpu(4).memory("1Mi").gpu(1), exact)
    heavy = scores("gpu-headroom", state, a_pod().cpu(12).memory("1Mi").gpu(1), exact)
    assert light == {"short": pytest.approx(52.5), "ample": pytest.approx(50)}
    assert heavy == {"short": pytest.approx(49), "ample": pytest.approx(50)}


def test_cpu_pods_prefer_the_fuller_node() -> None:
    fleet = [a_node("full").cpu(20), a_node("roomy").cpu(60), a_node("cards").cpu(99).gpus(1)]
    state = cluster(fleet)
    state.use_mix(mix_of([built(a_pod("m").cpu(10).gpu(1))]))
    found = scores("gpu-headroom", state, a_pod().cpu(4))
    assert found["full"] > found["roomy"] > found["cards"]


def test_model_is_priced_by_the_pods_limited_to_it() -> None:
    # 1 card of T4 and 3 of A10; a ninth of the demand accepts T4 alone: load 1/9 / 0.25 = 0.4444,
    # price 1 - exp(-0.4444) = 0.3588; 2 GPUs on T4s: 100 - 5 * 2 * 0.3588 = 96.41
    fleet = [a_node("t").gpus(1, "T4"), a_node("a").gpus(3, "A10")]
    state = cluster(fleet)
    pods = [a_pod(f"p{i}").gpu(1) for i in range(8)] + [a_pod("q").gpu(1, model="T4")]
    state.use_mix(mix_of([built(pod) for pod in pods]))
    prices = prices_of(state)
    assert prices is not None
    assert prices[0, state.row_of["t"]] == pytest.approx(1 - math.exp(-4 / 9))
    assert prices[:, state.row_of["a"]].tolist() == [0, 0, 0]
    found = scores("gpu-scarcity", state, a_pod().gpu(2))
    assert found == {"t": pytest.approx(96.41, abs=0.01), "a": 100}


def test_nodes_large_enough_for_few_pods_are_priced_like_a_scarce_model() -> None:
    # 8 GPUs beside 128 cores, 8 beside 64; half of the demand needs 100 cores and so the first: load 0.5 / 0.5 = 1
    state = cluster([a_node("large").cpu(128).gpus(8), a_node("small").cpu(64).gpus(8)])
    state.use_mix(mix_of([built(a_pod("p").cpu(100).gpu(8)), built(a_pod("q").cpu(60).gpu(8))]))
    prices = prices_of(state)
    assert prices is not None
    assert prices[:, state.row_of["large"]].tolist() == pytest.approx([1 - math.exp(-1)] * 8)
    assert not prices[:, state.row_of["small"]].any()


def test_rare_model_is_priced_without_demand() -> None:
    # 1 card of 4 is a T4, 3 are A10: rarity * (1 - 1/3) on the T4, nothing on the most frequent model
    state = cluster([a_node("t").gpus(1, "T4"), a_node("a").gpus(3, "A10")])
    assert prices_of(state) is None
    prices = prices_of(state, rarity=0.3)
    assert prices is not None
    assert prices[0, state.row_of["t"]] == pytest.approx(0.2)
    assert not prices[:, state.row_of["a"]].any()


def test_last_quarter_of_a_models_nodes_has_a_higher_price() -> None:
    # 8 nodes: ranks 0 to 7/8; 4 * 7/8 - 3 = 0.5 of the reserve on the last, 0 up to 6/8
    state = cluster([a_node(f"n{number}").gpus(1, "T4") for number in range(8)])
    prices = prices_of(state, reserve=2.0)
    assert prices is not None
    assert prices[0].tolist() == pytest.approx([0] * 7 + [1.0])


def test_cpu_pod_uses_the_smallest_share_of_free_gpus() -> None:
    # 12 of 104 cores beside 2 GPUs: 0.2308 GPUs, 50 - 1.15; 12 of 96 beside 8: 1 GPU, 45; without GPUs 50.
    fleet = [a_node("t").cpu(104).gpus(2), a_node("g").cpu(96).gpus(8), a_node("c").cpu(16)]
    found = scores("gpu-headroom", cluster(fleet), a_pod().cpu(12), {"need": "capacity", "tightness": 0})
    assert found == {"t": pytest.approx(50 - 5 * 24 / 104), "g": pytest.approx(45), "c": 50}


def test_model_price_needs_demand_for_a_model() -> None:
    state = cluster([a_node("t").gpus(1, "T4"), a_node("a").gpus(3, "A10")])
    state.use_mix(mix_of([built(a_pod("p").gpu(1))]))
    assert prices_of(state) is None


def test_gpu_memory_request_limits_the_models() -> None:
    # 40 GiB only on the A100, half of all cards; half of the demand asks for it: load 1, price 1 - exp(-1)
    state = cluster([a_node("t").gpus(1, "T4", 15360), a_node("a").gpus(1, "A100-SXM4-40GB", 40960)])
    state.use_mix(mix_of([built(a_pod("p").gpu(1)), built(a_pod("q").gpu(1, memory_mib=40000))]))
    prices = prices_of(state)
    assert prices is not None
    assert prices[0, state.row_of["a"]] == pytest.approx(1 - math.exp(-1))
