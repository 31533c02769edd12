"""The balance game: utilities of nodes, and the pod that increases their product most."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.units import DISK_MBPS, NETWORK_MBPS
from hetsched.engine.framework.nash import log_product, utility
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler, score

HUNDRED = np.array([[100], [100], [100], [100]])


def a_measured_node(name: str, *percent: int) -> NodeBuilder:
    """Return a node of 100 CPUs, 100 GiB, 100 Mbit/s and 100 MB/s with these percentages in use."""
    cpu, memory, network, disk = percent
    node = a_node(name).cpu(100).memory("100Gi").offering(NETWORK_MBPS, 100).offering(DISK_MBPS, 100).pods(500)
    return node.using(cpu=str(cpu), memory=f"{memory}Gi", **{NETWORK_MBPS: str(network), DISK_MBPS: str(disk)})


def a_demanding_pod(*percent: int, name: str = "pod") -> PodBuilder:
    cpu, memory, network, disk = percent
    pod = a_pod(name).cpu(0).memory(0)
    return pod.expecting(cpu=str(cpu), memory=f"{memory}Gi", **{NETWORK_MBPS: str(network), DISK_MBPS: str(disk)})


def utility_of(*percent: int, dispersion: str = "variance") -> tuple[float, float]:
    utilities, means = utility(np.array(percent)[:, None], HUNDRED, dispersion)  # type: ignore[arg-type]
    return float(utilities[0]), float(means[0])


@pytest.mark.parametrize(
    ("percent", "mean", "degree"),
    [
        # mu (.50 + .25 + .10 + .15) / 4 = .25; B (.25^2 + 0 + .15^2 + .10^2) / 4 = .095 / 4 = .02375
        ((50, 25, 10, 15), 0.25, 0.97625),
        # mu 1.6 / 4 = .40; B (.2^2 + .05^2 + .1^2 + .05^2) / 4 = .055 / 4 = .01375
        ((60, 35, 30, 35), 0.40, 0.98625),
        # mu .5; B 4 * .5^2 / 4 = .25, the most there is
        ((100, 100, 0, 0), 0.5, 0.75),
        ((0, 0, 0, 0), 0.0, 1.0),
        # clamped to 100 %: as (100, 100, 0, 0)
        ((250, 100, 0, 0), 0.5, 0.75),
    ],
)
def test_utility_of_a_node_is_one_minus_the_variance(percent: tuple[int, ...], mean: float, degree: float) -> None:
    assert utility_of(*percent) == pytest.approx((degree, mean))


def test_standard_deviation_variant() -> None:
    # B = sqrt(.25) = .5 -> S .5;  B = sqrt(.02375) = .154110 -> S .845890
    assert utility_of(100, 100, 0, 0, dispersion="std") == pytest.approx((0.5, 0.5))
    assert utility_of(50, 25, 10, 15, dispersion="std")[0] == pytest.approx(0.845890, abs=5e-7)


def test_resource_without_capacity_is_left_out() -> None:
    # CPU .5 and memory .25 alone: mu .375, B .125^2 = .015625;  CPU alone: B 0
    room = np.array([[100, 100], [100, 0], [0, 0], [0, 0]])
    utilities, means = utility(np.array([[50, 50], [25, 25], [9, 9], [9, 9]]), room)
    assert utilities.tolist() == [0.984375, 1.0]
    assert means.tolist() == [0.375, 0.5]


def test_utilities_are_between_three_quarters_and_one() -> None:
    uses = np.array(list(product((0, 30, 70, 100), repeat=4))).T
    utilities, _ = utility(uses, np.full_like(uses, 100))
    assert utilities.min() == 0.75
    assert utilities.max() == 1.0


# A (.3, .1, .1, .3) mu .2, B .01 -> S .99; with (.2, 0, 0, 0): (.5, .1, .1, .3) mu .25,
#   B (.0625 + .0225 + .0225 + .0025) / 4 = .0275 -> S .9725
# B (.1, .7, .7, .7) mu .55, B (.2025 + 3 * .0225) / 4 = .0675 -> S .9325; with it: (.3, .7, .7, .7) mu .6,
#   B (.09 + 3 * .01) / 4 = .03 -> S .97
# products: pod on A .9725 * .9325 = .90686, pod on B .99 * .97 = .9603
A, B = (30, 10, 10, 30), (10, 70, 70, 70)
DEMAND = (20, 0, 0, 0)


def test_greatest_gain_wins_not_the_greatest_utility() -> None:
    assert utility_of(*A)[0], utility_of(50, 10, 10, 30)[0] == pytest.approx((0.99, 0.9725))
    assert utility_of(*B)[0], utility_of(30, 70, 70, 70)[0] == pytest.approx((0.9325, 0.97))
    on_a = math.exp(log_product(np.array([0.9725, 0.9325])))
    on_b = math.exp(log_product(np.array([0.99, 0.97])))
    assert (on_a, on_b) == pytest.approx((0.90686, 0.9603), abs=5e-6)
    nodes = [a_measured_node("a", *A), a_measured_node("b", *B)]
    assert score("mbcgt", a_demanding_pod(*DEMAND), nodes) == pytest.approx({"a": 0, "b": 100})


def test_fixed_scale_is_independent_of_other_nodes() -> None:
    # gain .97 / .9325 - 1 = .040214: 50 + 50 * .040214 * 3 = 56.032;  .9725 / .99 - 1 = -.017677 -> 47.348
    nodes = [a_measured_node("a", *A), a_measured_node("b", *B)]
    both = score("nash-gain", a_demanding_pod(*DEMAND), nodes) or {}
    assert both == pytest.approx({"a": 47.348, "b": 56.032}, abs=1e-3)
    assert score("nash-gain", a_demanding_pod(*DEMAND), nodes[1:]) == {"b": both["b"]}
    # full .05: 50 + 50 * .040214 / .05 = 90.214;  full .01 is passed: 100
    for full, expected in ((0.05, 90.214), (0.01, 100.0)):
        found = score("nash-gain", a_demanding_pod(*DEMAND), nodes, params={"full": full}) or {}
        assert found["b"] == pytest.approx(expected, abs=1e-3)


def test_single_or_equal_candidates_score_100() -> None:
    nodes = [a_measured_node("a", *A), a_measured_node("b", *B), a_measured_node("c", *A)]
    assert score("mbcgt", a_demanding_pod(*DEMAND), nodes, feasible=["a"]) == {"a": 100}
    assert score("mbcgt", a_demanding_pod(*DEMAND), nodes, feasible=["a", "c"]) == {"a": 100, "c": 100}


def test_gains_are_interpolated() -> None:
    # ln(.9725/.99) = -.017835, ln(.97/.9325) = .039427; c (0, 0, 0, 0) -> (.2, 0, 0, 0) B .0075: ln .9925 = -.007528:
    # (.017835 - .007528) / (.017835 + .039427) = .18000
    nodes = [a_measured_node("a", *A), a_measured_node("b", *B), a_measured_node("c", 0, 0, 0, 0)]
    found = score("mbcgt", a_demanding_pod(*DEMAND), nodes)
    assert found == pytest.approx({"a": 0, "b": 100, "c": 18.0}, abs=5e-3)


@pytest.mark.parametrize("plugin", ["mbcgt", "nash-gain"])
def test_equal_gains_are_ordered_by_mean_and_name(plugin: str) -> None:
    # A demand that takes the same share of everything leaves every spread unchanged: all gains 0, means .6, .4, .4
    nodes = [a_measured_node("a", 50, 50, 50, 50), a_measured_node("b", 30, 30, 30, 30)]
    nodes.append(a_measured_node("c", 30, 30, 30, 30))
    engine = scheduler(nodes, policy=policy_of(plugin))
    assert engine.schedule(a_demanding_pod(10, 10, 10, 10).build()).node == "b"


@pytest.mark.parametrize("plugin", ["mbcgt", "nash-gain"])
def test_uneven_nodes_are_filled_before_an_empty_one(plugin: str) -> None:
    # The warning that comes with the formula: memory goes where CPU is used, and the empty node stays idle.
    nodes = [a_measured_node("busy", 60, 0, 0, 0), a_measured_node("idle", 0, 0, 0, 0)]
    pod = a_demanding_pod(0, 40, 0, 0).build()
    assert scheduler(nodes, policy=policy_of(plugin)).schedule(pod).node == "busy"
    spread = policy_of(PluginUse(plugin), PluginUse("least-allocated", 4, params={"use": "measured"}))
    assert scheduler(nodes, policy=spread).schedule(pod).node == "idle"


def test_requests_replace_missing_measurements() -> None:
    # b as requested: (10 + 20) of 100 CPUs, 70 of 100 GiB and so on; the pod's own request is 20 CPUs, expected 90.
    running = a_pod("r").cpu(10).memory("70Gi").requesting(NETWORK_MBPS, 70).requesting(DISK_MBPS, 70).running_on("b")
    nodes = [a_measured_node("a", *A), a_measured_node("b", 0, 0, 0, 0).having(usage=None)]
    pod = a_pod().cpu(20).memory(0).expecting(cpu="90")
    found = score("nash-gain", pod, nodes, [running]) or {}
    assert found["b"] == pytest.approx(56.032, abs=1e-3)
