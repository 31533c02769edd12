"""FGD as published: the score, the GPU, and the pods that it does not score."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.gpu.workload_mix import mix_of
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import active, built, cluster, policy_of

HALVES = [built(a_pod("m").gpu(1, milli=500))]


def a_split_node():
    """Return one node with GPUs of 1000 and 300 free milli, and a mix of pods that request 500."""
    state = cluster([a_node("n").gpus(2)], [a_pod("r").gpu(1, milli=700).running_on("n", CardGrant(1, 700, 0))])
    state.use_mix(mix_of(HALVES))
    return state


def scores(state, pod: PodBuilder) -> list[float]:
    plugin, request = active("fgd").instance, state.compile(built(pod))
    plugin.pre_score(request, state)
    return plugin.score(request, state.all_rows).tolist()


@pytest.mark.parametrize(
    ("pod", "score"),
    [
        # F before: 500 fits card 0, card 1's 300 are lost: 300.
        # 300 on card 1: F = 0 after, int(100 * sigmoid(0.3)) = int(57.44); on card 0: 700 and 300, F stays 300 -> 50
        (a_pod().gpu(1, milli=300), 57),
        # 600 only on card 0: 400 and 300 are both lost, int(100 * sigmoid(-0.4)) = int(40.13)
        (a_pod().gpu(1, milli=600), 40),
        # a whole card: 300 lost before and after, int(50.0)
        (a_pod().gpu(1), 50),
        # all CPU: nothing fits any more, F = 1300, int(100 * sigmoid(-1)) = int(26.89)
        (a_pod().cpu(7), 26),
    ],
)
def test_score_equals_the_published_one(pod: PodBuilder, score: int) -> None:
    assert scores(a_split_node(), pod) == [score]


def test_gpu_with_the_best_score_is_granted() -> None:
    # 8 cores, so CPU does not decide. Cards: 1000, 800, 500 free; the mix wants 500.
    # 300 on card 0: 700; card 1: 500 -> all still usable, F 0; card 2: 200 lost. Best fit would take card 2.
    running = [
        a_pod("a").gpu(1, milli=200).running_on("n", CardGrant(1, 200, 0)),
        a_pod("b").gpu(1, milli=500).running_on("n", CardGrant(2, 500, 0)),
    ]
    state = cluster([a_node("n").gpus(3)], running)
    state.use_mix(mix_of(HALVES))
    outcome = Scheduler(state, policy_of("fgd", "resource-fit", "gpu-fit")).schedule(built(a_pod().gpu(1, milli=300)))
    assert [card.index for card in outcome.allocation.gpus] == [0]  # 0 and 1 score alike: the first
    best_fit = Scheduler(cluster([a_node("n").gpus(3)], running), policy_of("resource-fit", "gpu-fit"))
    assert [card.index for card in best_fit.schedule(built(a_pod().gpu(1, milli=300))).allocation.gpus] == [2]


def test_lowest_free_gpus_are_selected() -> None:
    state = cluster([a_node("n").gpus(4)], [a_pod("r").gpu(1, milli=100).running_on("n", CardGrant(0, 100, 0))])
    state.use_mix(mix_of(HALVES))
    outcome = Scheduler(state, policy_of("fgd", "gpu-fit")).schedule(built(a_pod().gpu(2)))
    assert [card.index for card in outcome.allocation.gpus] == [1, 2]


def test_gpus_of_an_earlier_step_are_preferred() -> None:
    state = cluster([a_node("n").gpus(3)])
    state.use_mix(mix_of(HALVES))
    plugin, request = active("fgd").instance, state.compile(built(a_pod().gpu(1, milli=300)))
    plugin.pre_score(request, state)
    request.near_cards = frozenset({1, 2})
    plugin.reserve(request, 0, state)
    assert request.near_cards == {1}
    plugin.unreserve(request, 0, state)
    assert request.near_cards is None


def test_fgd_does_not_score_without_mix_or_gpus() -> None:
    for state in (cluster([a_node("n").gpus(2)]), cluster([a_node("n")], [a_pod("r").running_on("n")])):
        outcome = Scheduler(state, policy_of(PluginUse("fgd"), "resource-fit", "gpu-fit")).schedule(built(a_pod()))
        assert (outcome.node, outcome.score) == ("n", 0)
