"""The tightest-fit plugin: the least free capacity wins."""

from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import score


def test_remainder_is_relative_to_the_largest_node() -> None:
    # Largest: 8 CPUs, 32 GiB. Pod 2 CPUs, 8 GiB.
    #   big:   left 6/8 and 24/32 -> 100 * (1 - (0.75 + 0.75) / 2) = 25
    #   small: left 2/8 and  8/32 -> 100 * (1 - (0.25 + 0.25) / 2) = 75
    fleet = [a_node("big").cpu(8).memory("32Gi"), a_node("small").cpu(4).memory("16Gi")]
    assert score("tightest-fit", a_pod().cpu(2).memory("8Gi"), fleet) == {"big": 25, "small": 75}


def test_cards_count_by_their_free_milli_for_pods_that_ask_for_cards() -> None:
    # Largest 2000 milli. CPU and memory weigh 0. Pod takes 500: two 1500/2000 -> 25, one 500/2000 -> 75
    fleet = [a_node("one").gpus(1), a_node("two").gpus(2)]
    weights = {"cpu": 0.0, "memory": 0.0}
    assert score("tightest-fit", a_pod().gpu(1, milli=500), fleet, params=weights) == {"one": 75, "two": 25}
    assert score("tightest-fit", a_pod(), fleet, params=weights) is None


def test_scoring_can_be_limited_to_gpu_pods() -> None:
    assert score("tightest-fit", a_pod(), [a_node("n")], params={"pods": "gpu"}) is None
