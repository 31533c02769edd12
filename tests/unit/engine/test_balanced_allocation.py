"""The balanced-allocation plugin: CPU and memory used to the same degree."""

from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import score


def test_score_decreases_with_the_usage_difference() -> None:
    # even: cpu 2/8 = 0.25, memory 8/32 = 0.25: 100
    # skewed, with 4 CPUs and 4 GiB booked: cpu 6/8 = 0.75, memory 12/32 = 0.375: floor((1 - 0.375 / 2) * 100) = 81
    fleet = [a_node("even").cpu(8).memory("32Gi"), a_node("skewed").cpu(8).memory("32Gi")]
    running = [a_pod("r").cpu(4).memory("4Gi").running_on("skewed")]
    assert score("balanced-allocation", a_pod().cpu(2).memory("8Gi"), fleet, running) == {"even": 100, "skewed": 81}


def test_use_above_the_capacity_counts_as_full() -> None:
    # cpu min(1, 16/8) = 1, memory 16/32 = 0.5: floor((1 - 0.5 / 2) * 100) = 75
    assert score("balanced-allocation", a_pod().cpu(16).memory("16Gi"), [a_node("n").cpu(8).memory("32Gi")]) == {
        "n": 75
    }


def test_node_with_one_resource_is_balanced() -> None:
    assert score("balanced-allocation", a_pod().cpu(0).memory("8Gi"), [a_node("n").cpu(0)]) == {"n": 100}


def test_pods_that_request_neither_are_left_to_the_other_scores() -> None:
    assert score("balanced-allocation", a_pod().best_effort(), [a_node("n")]) is None


def test_stated_requests_are_used() -> None:
    # A best-effort pod there adds nothing: cpu 2/8 = 0.25, memory 8/32 = 0.25: 100
    running = [a_pod("r").best_effort().running_on("n")]
    assert score("balanced-allocation", a_pod().cpu(2).memory("8Gi"), [a_node("n")], running) == {"n": 100}


def test_change_of_the_balance_counts_since_version_1_36() -> None:
    # skewed: before cpu .5, memory .125: 81; after .5, .375: 93; 50 + floor((50 + 93 - 81) / 2) = 81
    # empty:  before 0, 0: 100; after 0, .25: 87; 50 + floor((50 + 87 - 100) / 2) = 68
    # bare:   one resource is always balanced: 50 + floor((50 + 100 - 100) / 2) = 75
    fleet = [a_node("skewed").cpu(8).memory("32Gi"), a_node("empty").cpu(8).memory("32Gi"), a_node("bare").cpu(0)]
    running = [a_pod("r").cpu(4).memory("4Gi").running_on("skewed")]
    found = score("balanced-allocation", a_pod().cpu(0).memory("8Gi"), fleet, running, params={"form": "change"})
    assert found == {"skewed": 81, "empty": 68, "bare": 75}


def test_version_1_18_took_the_whole_difference() -> None:
    # cpu 6/8 = .75, memory 12/32 = .375: (1 - .375) * 100 = 62.5 -> 62;  full CPU 8/8 -> 0;  no memory counts as full
    fleet = [a_node("n").cpu(8).memory("32Gi"), a_node("full").cpu(6).memory("32Gi"), a_node("bare").memory(0)]
    asking = a_pod().cpu(6).memory("12Gi")
    found = score("balanced-allocation", asking, fleet, params={"form": "difference"})
    assert found == {"n": 62, "full": 0, "bare": 0}


def test_measured_use_replaces_requests() -> None:
    # measured 3 of 8 CPUs + 3 expected = .75, 8 of 32 GiB + 4 expected = .375; requests are 1 CPU and 1 GiB
    # std: floor((1 - .375 / 2) * 100) = 81;  difference: 62
    # above the capacity: 13 of 8 CPUs = 1.625, memory .375: 1 - 1.25 < 0 -> 0 by difference; std cuts at 1: 68
    asking = a_pod().expecting(cpu="3", memory="4Gi")
    fleet = [a_node("n").cpu(8).using(cpu="3", memory="8Gi"), a_node("over").cpu(8).using(cpu="10", memory="8Gi")]
    for form, expected in (("std", {"n": 81, "over": 68}), ("difference", {"n": 62, "over": 0})):
        params = {"form": form, "use": "measured"}
        assert score("balanced-allocation", asking, fleet, params=params) == expected
