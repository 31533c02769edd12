"""The gang experiment: the published cases, and invariants of any fleet."""

from __future__ import annotations

import pytest

from hetsched.lab.experiments import gang
from hetsched.lab.experiments.gang import GANG, FleetTrial, LargeFleet, slots_held
from hetsched.lab.experiments.gang_racks import RACKS
from hetsched.lab.experiments.outcome import Experiment
from hetsched.lab.policies import POLICIES


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return gang.run(lambda done, total: None)


def test_expectations_hold(experiment: Experiment) -> None:
    assert [expectation.text for expectation in experiment.expectations if not expectation.held] == []


def test_published_results_are_next_to_ours(experiment: Experiment) -> None:
    published = [row for row in experiment.rows if row.published is not None]
    assert len(published) == 6
    assert all(row.value == row.published for row in published)


def test_racks_are_compared_with_the_rule_of_least_free_gpus(experiment: Experiment) -> None:
    rows = {(row.policy, row.metric): row.value or 0 for row in experiment.rows if row.case.endswith("seed 0")}
    ours, rival = rows["binpack", "empty racks, mean"], rows["least free GPUs", "empty racks, mean"]
    assert ours >= rival > 0
    assert rival < RACKS - 5  # the stream uses a large part of the fleet
    (decision,) = [row for row in experiment.rows if row.metric == "decision, processor time, s"]
    assert decision.value


def test_plot_shows_both_policies(experiment: Experiment) -> None:
    (chart,) = experiment.charts
    assert GANG.name in chart
    assert "default-kube<" in chart


@pytest.mark.parametrize(
    ("slots", "jobs", "held"),
    [
        # Capacity for 3: as many as fit beyond the minimum; none if the minimum is 4.
        (3, {"job": (6, 3)}, {"job": 3}),
        (3, {"job": (6, 4)}, {"job": 0}),
        # 6 slots: the first job whole, then 2 are left, too few for the other's 4, enough for its 2.
        (6, {"a": (4, 4), "b": (4, 4)}, {"a": 4, "b": 0}),
        (6, {"a": (4, 4), "b": (4, 2)}, {"a": 4, "b": 2}),
    ],
)
def test_slots_are_used_by_complete_gangs(slots: int, jobs: dict[str, tuple[int, int]], held: dict[str, int]) -> None:
    assert slots_held(GANG, slots, jobs) == (held, 0)


def test_interleaved_jobs_deadlock_without_the_plugin() -> None:
    # Three jobs alternately on 9 slots: 3 each of the 4 they need.
    found, partial = slots_held(POLICIES["default-kube"], 9, {"a": (4, 4), "b": (4, 4), "c": (4, 4)})
    assert (found, partial) == ({"a": 3, "b": 3, "c": 3}, 3)


def test_oversized_gangs_are_rejected_whole() -> None:
    # Gangs 0, 5 and 10 of 11 are too large: 8 can be placed, with 32 slots of 40.
    large = LargeFleet("small", 40, 11, 5, 8)
    fleet = FleetTrial(GANG, *large.drawn())
    assert (fleet.whole, fleet.partial) == (8, 0)
    assert set(fleet.refusals) == {"default/g0", "default/g5", "default/g10"}
    assert fleet.stuck[-1] == (44.0, 0.0)
