"""The IHEP experiment: three placements, every order of submission, and the scores of four GPU pods."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.lab.experiments import ihep
from hetsched.lab.experiments.ihep import card_scores, every_order, mismatched, mixed_cards, place
from hetsched.lab.policies import POLICIES
from tests.unit.engine.fleet import REGISTRY, policy_of

CPU_FIRST = "C" * 16 + "G" * 4


def policy(name: str) -> Policy:
    return compile_policy(POLICIES[name], REGISTRY)


@pytest.mark.parametrize(
    ("name", "lying", "pending"),
    [
        ("default-kube", "4C 4C 4C+1G 4C+1G", (0, 2)),
        ("split-clusters", "5C 5C 2G 2G", (6, 0)),
        ("ihep", "5C 5C 3C+2G 3C+2G", (0, 0)),
    ],
)
def test_experiment_1_with_the_cpu_pods_first(name: str, lying: str, pending: tuple[int, int]) -> None:
    # Five pods of 8 CPUs per node: 47.5 / 8 = 5.9. 20 places for 20 pods.
    found = place(policy(name), CPU_FIRST)
    assert (str(found), (found.cpu_pending, found.gpu_pending)) == (lying, pending)


def test_default_policy_fails_only_for_one_submission_order() -> None:
    assert place(policy("default-kube"), "G" * 4 + "C" * 16).gpu_pending == 0
    assert place(policy("default-kube"), "CCCCG" * 4).gpu_pending == 0
    assert every_order(policy("default-kube")) == (2, 0)


def test_ihep_places_all_pods_in_any_order() -> None:
    assert every_order(policy("ihep")) == (0, 0)
    assert every_order(policy("split-clusters")) == (6, 6)


def test_experiment_2_fits_every_pod_on_a_card_with_its_memory() -> None:
    assert mixed_cards(policy("default-kube")) == (0, 1, 0, 1)
    assert mismatched((0, 1, 0, 1)) == 2
    assert mixed_cards(policy("ihep")) == (1, 0, 1, 0)
    assert mismatched((1, 0, 1, 0)) == 0
    product = PluginUse("ihep", params={"combine": "product"})
    assert mixed_cards(policy_of("resource-fit", "gpu-fit", product)) == (1, 0, 1, 0)


def test_experiment_2_has_the_calculated_scores() -> None:
    # 47 cores and 191 GiB free. test1 on node0: S_card .93375, S_sim (1/4 + 15/32 + 2500/5120 + 4/47 + 8/191) / 5 =
    # .26680 -> 60.03; on node1 .78519 and .45821 -> 62.17. test3 after test1 and test2 took cards: 3 left on each node.
    scores = [tuple(score and round(score, 2) for score in pair) for pair in card_scores(policy("ihep"))]
    assert scores == [(60.03, 62.17), (63.74, None), (64.29, 66.43), (68.0, None)]


def test_declared_flops_give_the_same_scores_for_unknown_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiment 2 with GPUs of models X and Y, which state 7.0 and 7.5 TFLOPS, has the worked scores too."""
    # Without the TFLOPS: X (0 + 1 + .86792) / 3 = .62264, Y (0 + .35556 + 1) / 3 = .45185.
    # test1: (.62264 + .26680) / 2 = .4447 and (.45185 + .45821) / 2 = .4550 instead of .6003 and .6217.
    named = {"_LARGE": ("X", 7.0), "_SMALL": ("Y", 7.5)}
    for card, (model, flops) in named.items():
        declared = msgspec.structs.replace(getattr(ihep, card), model=model, fp32_tflops=flops)
        monkeypatch.setattr(ihep, card, declared)
    scores = [tuple(score and round(score, 2) for score in pair) for pair in card_scores(policy("ihep"))]
    assert scores == [(60.03, 62.17), (63.74, None), (64.29, 66.43), (68.0, None)]


def test_expectations_hold_and_a_failing_policy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ihep.run(lambda done, total: None).held
    monkeypatch.setitem(POLICIES, "split-clusters", POLICIES["default-kube"])
    failed = [e.text for e in ihep.run(lambda done, total: None).expectations if not e.held]
    assert failed == ["split-clusters: 4C 4C 4C+1G 4C+1G, 0 CPU and 2 GPU pods pending"]
