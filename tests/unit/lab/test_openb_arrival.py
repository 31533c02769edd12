"""The arrival stream: shuffled list first, then draws with replacement, until the GPU demand is reached."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.lab.arrival import arrival_stream, gpu_capacity_milli, gpu_demand_milli
from tests.builders import a_card, a_node, a_pod

# Ten pods of 500 milli each: the list brings 5000 milli.
PODS = [a_pod(f"pod-{number}").gpu(1, milli=500).build() for number in range(10)]


def test_whole_list_arrives_first() -> None:
    stream = arrival_stream(PODS, capacity_milli=4000, ratio=2.0, seed=1)
    # 8000 milli are 16 pods: the ten of the list in another order, then six drawn again.
    assert len(stream) == 16
    assert sorted(pod.name for pod in stream[:10]) == sorted(pod.name for pod in PODS)
    assert [pod.name for pod in stream[:10]] != [pod.name for pod in PODS]


def test_stream_ends_with_the_pod_that_reaches_the_demand() -> None:
    stream = arrival_stream(PODS, capacity_milli=1000, ratio=1.3, seed=1)
    # 1300 milli: two pods bring 1000, the third 1500.
    assert len(stream) == 3


def test_pods_without_cards_arrive_too_but_count_nothing() -> None:
    stream = arrival_stream([*PODS, a_pod("cpu").build()], capacity_milli=5000, ratio=1.0, seed=3)
    assert sum(gpu_demand_milli(pod.shape) for pod in stream) == 5000


def test_names_stay_unique_even_where_the_list_holds_such_names() -> None:
    pods = [a_pod("job").gpu(1).build(), a_pod("job-2").gpu(1).build()]
    stream = arrival_stream(pods, capacity_milli=10_000, ratio=2.0, seed=5)
    names = [pod.name for pod in stream]
    assert len(set(names)) == len(names) == 20
    assert {pod.shape for pod in stream} == {pods[0].shape}


def test_arrival_stream_depends_on_the_seed() -> None:
    first, again, other = (
        [pod.name for pod in arrival_stream(PODS, capacity_milli=5000, ratio=1.5, seed=seed)] for seed in (9, 9, 10)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf"), 11.0])
def test_ratio_out_of_range_is_rejected(ratio: float) -> None:
    with pytest.raises(InputError) as caught:
        arrival_stream(PODS, capacity_milli=1000, ratio=ratio, seed=0)
    assert caught.value.code == "ArrivalRatioInvalid"


@pytest.mark.parametrize(("pods", "capacity_milli"), [(PODS, 0), ([a_pod().build()], 1000), ([], 1000)])
def test_arrival_stream_without_gpus_is_rejected(pods: list, capacity_milli: int) -> None:
    with pytest.raises(InputError) as caught:
        arrival_stream(pods, capacity_milli=capacity_milli, ratio=1.0, seed=0)
    assert caught.value.code == "ArrivalWithoutGpus"


def test_capacity_counts_healthy_cards() -> None:
    node = a_node().having(gpus=(a_card(0), a_card(1), a_card(2, healthy=False))).build()
    assert gpu_capacity_milli([node, a_node("none").build()]) == 2000
