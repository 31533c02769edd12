"""The ihep plugin: the worked numbers of every equation, and missing facts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import NodeBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler, score

# X: compute capability 7.0 (by model), 900 GB/s, 1380 MHz;  Y: 7.5, 320, 1590.
X: dict[str, Any] = {
    "model": "V100-SXM2-32GB",
    "memory_mib": 32000,
    "cores": 5120,
    "bandwidth_gbs": 900,
    "clock_mhz": 1380,
}
Y: dict[str, Any] = {"model": "T4", "memory_mib": 16000, "cores": 2560, "bandwidth_gbs": 320, "clock_mhz": 1590}
S_CARD_X, S_CARD_Y = (7 / 7.5 + 1 + 1380 / 1590) / 3, (1 + 320 / 900 + 1) / 3


def gpu_node(name: str, cards: int = 4, **facts: Any) -> NodeBuilder:
    return a_node(name).cpu(40).memory("160Gi").gpus(cards, **facts)


WANTED = a_pod().cpu(8).memory("32Gi").gpu(2, memory_mib=16000, cores=2000)
PAIR = [gpu_node("x", **X), gpu_node("y", **Y)]


def scored(pod: Any = WANTED, nodes: Any = PAIR, running: Any = (), **params: Any) -> dict[str, float]:
    found = score("ihep", pod, nodes, running, params=params)
    assert found is not None
    return found


def test_equation_2_the_quality_of_a_card() -> None:
    # X: (.93333 + 1 + .86792) / 3 = .93375;  Y: (1 + .35556 + 1) / 3 = .78519
    assert pytest.approx((0.93375, 0.78519), abs=5e-6) == (S_CARD_X, S_CARD_Y)
    # One of four GPUs is requested and nothing else: similarity (1/4 + 0 + 0 + 0 + 0) / 5 = .05 on both.
    found = scored(a_pod().cpu(0).memory("0").gpu(1))
    assert found == pytest.approx({"x": 50 * (S_CARD_X + 0.05), "y": 50 * (S_CARD_Y + 0.05)})


def test_equation_3_similarity_prefers_the_tightest_fit() -> None:
    # R = (2, 16000, 2000, 8, 32)
    # N = (4, 32000, 5120, 40, 160): (.5 + .5 + .390625 + .2 + .2) / 5 = .358125
    # N = (4, 16000, 2560, 40, 160): (.5 + 1 + .78125 + .2 + .2) / 5 = .53625
    found = scored()
    assert found["x"] / 50 - S_CARD_X == pytest.approx(0.358125)
    assert found["y"] / 50 - S_CARD_Y == pytest.approx(0.53625)


def test_equation_3_as_a_cosine_does_not_distinguish_the_nodes() -> None:
    # MiB dominate: .99941 for the first N, .99938 for the second.
    found = scored(similarity="cosine")
    assert found["x"] / 50 - S_CARD_X == pytest.approx(0.99941, abs=5e-6)
    assert found["y"] / 50 - S_CARD_Y == pytest.approx(0.99938, abs=5e-6)


def test_equation_4_mean_and_product() -> None:
    # X: (.93375 + .358125) / 2 = .6459, .93375 * .358125 = .3344;  Y: (.78519 + .53625) / 2 = .6607, .4211
    assert {name: round(value, 2) for name, value in scored().items()} == {"x": 64.59, "y": 66.07}
    product = scored(combine="product")
    assert {name: round(value, 2) for name, value in product.items()} == {"x": 33.44, "y": 42.11}


def test_equations_1_and_5_keep_gpu_nodes_for_gpu_pods() -> None:
    # c = (48, 192), r = (16, 64) with the pod: S = (32/48 + 128/192) / 2 * 100 = 66.667
    # a = 1/2: CPU node 50 + 33.33 = 83.33, GPU node 33.33
    nodes = [a_node("cpu").cpu(48).memory("192Gi"), a_node("gpu").cpu(48).memory("192Gi").gpus(1)]
    running = [a_pod(f"on-{name}").cpu(8).memory("32Gi").running_on(name) for name in ("cpu", "gpu")]
    found = scored(a_pod().cpu(8).memory("32Gi"), nodes, running)
    assert found == pytest.approx({"cpu": 83.3333, "gpu": 33.3333}, abs=1e-4)


def test_full_cpu_node_outranks_an_empty_gpu_node() -> None:
    # Full: S = 0 -> 50.  Empty 64-core, 256-GiB GPU node with an 8.5-core, 34-GiB pod: S = 86.72 -> 43.36
    full, empty = a_node("cpu").cpu("8500m").memory("34Gi"), a_node("gpu").cpu(64).memory("256Gi").gpus(1)
    found = scored(a_pod().cpu("8500m").memory("34Gi"), [full, empty])
    assert found == pytest.approx({"cpu": 50, "gpu": 43.36}, abs=0.005)


def test_scores_are_not_rounded() -> None:
    # a = 1/3: CPU node with S = 0 -> 33.33; GPU node with S = 99.9 -> 33.3. As whole numbers both are 33.
    nodes = [
        a_node("a-gpu").cpu(1000).memory("1000Gi").gpus(1),
        a_node("b-cpu").cpu(1).memory("1Gi"),
        a_node("c-cpu").cpu(1).memory("1Gi").pods(0),
    ]
    pod = a_pod().cpu(1).memory("1Gi")
    found = scored(pod, nodes)
    assert found == pytest.approx({"a-gpu": 33.3, "b-cpu": 33.3333, "c-cpu": 33.3333}, abs=1e-4)
    assert scheduler(nodes, policy="ihep").schedule(pod.build()).node == "b-cpu"


def test_cluster_of_one_node_class_scores_the_free_share() -> None:
    # c = (4, 4), r = (1, 1): S = 75. No GPU node: a = 0 -> S. Only GPU nodes: a = 1 -> S.
    pod = a_pod().cpu(1).memory("1Gi")
    bare = a_node("n").cpu(4).memory("4Gi")
    assert scored(pod, [bare]) == {"n": 75}
    assert scored(pod, [a_node("g").cpu(4).memory("4Gi").gpus(1)]) == {"g": 75}


def test_class_ratio_counts_schedulable_nodes() -> None:
    # Control plane, cordoned and not-ready nodes do not count: a = 1/2, S = 0 on the full CPU node -> 50.
    nodes = [
        a_node("cpu").cpu(1).memory("1Gi"),
        a_node("gpu").gpus(1),
        a_node("control").tainted("node-role.kubernetes.io/control-plane"),
        a_node("cordoned").cordoned(),
        a_node("gone").not_ready(),
    ]
    assert scored(a_pod().cpu(1).memory("1Gi"), nodes)["cpu"] == 50


def test_resource_that_does_not_fit_or_is_absent_adds_nothing() -> None:
    # Requests below the defaults of scoring count as 100m and 200Mi: S < 100 on the emptiest GPU node.
    assert scored(a_pod().best_effort(), [a_node("n").cpu(0).memory("1Gi")]) == pytest.approx(
        {"n": 50 * (1 - 200 / 1024)}
    )
    assert scored(a_pod().cpu(9).memory("1Gi"), [a_node("n").cpu(8).memory("2Gi")]) == {"n": 25}


def test_accelerator_table_supplies_missing_gpu_facts() -> None:
    # Compute capability, bandwidth and clock of a T4 are in the table; the other GPU is unknown: 0.
    bare = [a_node(name).gpus(1, model, None) for name, model in (("t4", "Tesla-T4"), ("x", "unheard-of"))]
    found = scored(a_pod().cpu(0).memory("0").gpu(1), bare)
    assert found["t4"] - found["x"] == pytest.approx(50 * 1)


def test_mixed_gpus_are_scored_by_the_mean_of_suitable_ones() -> None:
    mixed = gpu_node("m", 1, **X).gpus(1, **Y)
    fleet = [mixed, *PAIR]
    small = a_pod().cpu(0).memory("0").gpu(1)
    quality = scored(small, fleet)["m"] / 50 - 1 / 2 / 5
    assert quality == pytest.approx((S_CARD_X + S_CARD_Y) / 2)
    large = a_pod().cpu(0).memory("0").gpu(1, memory_mib=20000)
    # Only the X card does: N = (1, 32000, 5120, 40, 160), R = (1, 20000, 0, 0, 0).
    assert scored(large, fleet)["m"] / 50 == pytest.approx(S_CARD_X + (1 + 20000 / 32000) / 5)


def test_cards_in_use_are_neither_counted_nor_compared() -> None:
    # Two of four cards free: 2/2 = 1 instead of 2/4.
    held = a_pod("held").cpu(0).memory("0").gpu(2).running_on("x")
    before, after = scored(), scored(running=[held])
    assert after["x"] - before["x"] == pytest.approx(50 * (1 - 0.5) / 5)


def test_compute_may_be_flops_or_cores() -> None:
    # V100 15.7 TFLOPS against T4 8.1; 5120 cores against 2560: the other two facts stay.
    small = a_pod().cpu(0).memory("0").gpu(1)
    by_capability, by_cores = scored(small), scored(small, compute="cores")
    assert by_cores["x"] - by_capability["x"] == pytest.approx(50 * (1 - 7 / 7.5) / 3)
    assert by_cores["y"] - by_capability["y"] == pytest.approx(50 * (0.5 - 1) / 3)
    flops = scored(small, compute="fp32")
    assert flops["x"] > by_capability["x"]


# GPUs of unknown models, whose nodes state every fact: 7.0 and 7.5 TFLOPS.
NAMED_X, NAMED_Y = {**X, "model": "X", "fp32_tflops": 7.0}, {**Y, "model": "Y", "fp32_tflops": 7.5}


def test_declared_flops_replace_a_missing_model_capability() -> None:
    """GPUs of unknown models are compared by the FP32 TFLOPS that their nodes state, as in the worked numbers."""
    # X: ((7.0 / 7.5 + 1 + 1380 / 1590) / 3 + .358125) / 2 = (.93375 + .358125) / 2 = .6459
    # Y: ((1 + 320 / 900 + 1) / 3 + .53625) / 2 = (.78519 + .53625) / 2 = .6607
    fleet = [gpu_node("x", **NAMED_X), gpu_node("y", **NAMED_Y)]
    assert {name: round(value, 2) for name, value in scored(nodes=fleet).items()} == {"x": 64.59, "y": 66.07}


def test_flops_of_the_table_replace_a_missing_capability() -> None:
    """AMD's cards have no CUDA capability: the FP32 TFLOPS of their models are compared."""
    # MI210 22.6 TFLOPS, 1638 GB/s, 1700 MHz; MI300X 163.4, 5300, 2100.
    # MI210: (22.6 / 163.4 + 1638 / 5300 + 1700 / 2100) / 3 = (.13831 + .30906 + .80952) / 3 = .41896
    bare = [a_node(name).gpus(1, model, None) for name, model in (("large", "MI300X"), ("small", "MI210"))]
    found = scored(a_pod().cpu(0).memory("0").gpu(1), bare)
    assert found["large"] - found["small"] == pytest.approx(50 * (1 - 0.41896), abs=1e-3)


def test_capability_of_one_model_excludes_tflops_of_others() -> None:
    """If the capability of any GPU is known, TFLOPS of another GPU are not used: the two are different scales."""
    # Compute of the unknown GPU stays 0, although 99 TFLOPS are stated: (0 + 1 + 1380 / 1590) / 3, and Y's .78519.
    fleet = [gpu_node("x", **{**NAMED_X, "fp32_tflops": 99.0}), gpu_node("y", **Y)]
    small = a_pod().cpu(0).memory("0").gpu(1)
    assert scored(small, fleet) == pytest.approx(
        {"x": 50 * ((1 + 1380 / 1590) / 3 + 0.05), "y": 50 * (S_CARD_Y + 0.05)}
    )


def test_scoring_can_be_limited_to_one_class() -> None:
    assert score("ihep", a_pod(), PAIR, params={"pods": "gpu"}) is None
    assert score("ihep", WANTED, PAIR, params={"pods": "cpu"}) is None
    assert score("ihep", a_pod(), PAIR, params={"pods": "cpu"}) is not None


def test_unknown_cores_leave_that_dimension_out() -> None:
    node = a_node("n").cpu(40).memory("160Gi").having(gpus=tuple(a_card(i, "unheard-of", 16000) for i in range(4)))
    # R = (2, 16000, -, 8, 32), N = (4, 16000, -, 40, 160): (.5 + 1 + .2 + .2) / 4
    asked = a_pod().cpu(8).memory("32Gi").gpu(2, memory_mib=16000)
    assert scored(asked, [node]) == pytest.approx({"n": 50 * (0.5 + 1 + 0.2 + 0.2) / 4})


def test_policy_selects_the_tightest_matching_gpu() -> None:
    assert scheduler(PAIR, policy="ihep").schedule(WANTED.build()).node == "y"
    assert scheduler(PAIR, policy=policy_of("gpu-fit", "least-allocated")).schedule(WANTED.build()).node == "x"
