"""The least-allocated plugin: more free capacity scores higher."""

from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import score

GIB_32, GIB_8 = "32Gi", "8Gi"


def test_mean_of_the_remaining_percentages() -> None:
    # n: cpu (8 - 2 - 1) / 8 = 62.5 -> 62, memory (32 - 8 - 4) / 32 = 62.5 -> 62: floor(124 / 2) = 62
    # empty: cpu 7/8 = 87.5 -> 87, memory 28/32 = 87.5 -> 87: 87
    fleet = [a_node("n").cpu(8).memory(GIB_32), a_node("empty").cpu(8).memory(GIB_32)]
    running = [a_pod("r").cpu(2).memory(GIB_8).running_on("n")]
    assert score("least-allocated", a_pod().cpu(1).memory("4Gi"), fleet, running) == {"empty": 87, "n": 62}


def test_weights_shift_the_mean() -> None:
    # cpu 4/8 = 50, memory 28/32 = 87: weights 3:1 -> floor((150 + 87) / 4) = 59;  1:0 -> 50;  0:1 -> 87
    asking, fleet = a_pod().cpu(4).memory("4Gi"), [a_node("n").cpu(8).memory(GIB_32)]
    for params, expected in (({"cpu": 3}, 59), ({"memory": 0}, 50), ({"cpu": 0}, 87), ({"cpu": 0, "memory": 0}, 0)):
        assert score("least-allocated", asking, fleet, params=params) == {"n": expected}


def test_pods_without_requests_count_as_a_little() -> None:
    # 100m of 8000m: (8000 - 100) / 8000 = 98.75 -> 98; 200 MiB of 32 GiB: 99.39 -> 99; floor(197 / 2) = 98
    # with one more such pod there: cpu 97.5 -> 97, memory 98.7 -> 98: floor(195 / 2) = 97
    fleet = [a_node("n").cpu(8).memory(GIB_32), a_node("used").cpu(8).memory(GIB_32)]
    running = [a_pod("r").best_effort().running_on("used")]
    assert score("least-allocated", a_pod().best_effort(), fleet, running) == {"n": 98, "used": 97}


def test_insufficient_resource_scores_0() -> None:
    # cpu short -> 0, memory 31/32 = 96.8 -> 96: floor(96 / 2) = 48
    assert score("least-allocated", a_pod().cpu(9).memory("1Gi"), [a_node("n").cpu(8).memory(GIB_32)]) == {"n": 48}


def test_measured_use_replaces_requests() -> None:
    # measured: cpu (8 - 3 - 3) / 8 = 25, memory (32 - 8 - 4) / 32 = 62.5 -> 62: floor(87 / 2) = 43
    # unmeasured: cpu (8 - 1 booked - 1 asked) / 8 = 75, memory (32 - 1 - 1) / 32 = 93.75 -> 93: 84
    asking = a_pod().cpu(1).memory("1Gi").expecting(cpu="3", memory="4Gi")
    fleet = [a_node("measured").cpu(8).using(cpu="3", memory="8Gi"), a_node("unmeasured").cpu(8)]
    running = [a_pod(f"on-{name}").cpu(1).memory("1Gi").running_on(name) for name in ("measured", "unmeasured")]
    found = score("least-allocated", asking, fleet, running, params={"use": "measured"})
    assert found == {"measured": 43, "unmeasured": 84}
