"""The cassini experiment: what it counts, and that its expectations can fail."""

from __future__ import annotations

import pytest

from hetsched.lab.colocation import CostModel
from hetsched.lab.experiments import cassini
from hetsched.lab.experiments.outcome import Experiment
from hetsched.lab.training import Tally, World


def quiet(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def made() -> Experiment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cassini, "_SEEDS", (1,))
        return cassini.run(quiet)


def test_no_kubelet_rejects_what_cassini_places(made: Experiment) -> None:
    values = {(row.policy, row.case, row.metric): row.value for row in made.rows}
    rejections = "rejections by kubelets (schedule, reject, recreate)"
    assert values["cassini", "online workloads", rejections] == 0
    assert values["default-kube", "online workloads", rejections] > 0
    assert (
        values["cassini", "online workloads", "pods that ran"]
        == values["cassini", "online workloads", "pods submitted"]
    )


def test_everything_expected_holds_and_says_that_the_data_is_ours(made: Experiment) -> None:
    assert [expectation.text for expectation in made.expectations if not expectation.held] == []
    assert made.reconstruction
    assert any("memory_penalty 0.6" in note for note in made.notes)
    assert made.charts[0].count("<polyline") == 4


def test_a_blind_policy_in_cassinis_place_fails_the_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassini, "_SEEDS", (1,))
    monkeypatch.setattr(cassini, "_CASSINI", "default-kube")
    failed = [expectation.text for expectation in cassini.run(quiet).expectations if not expectation.held]
    assert len(failed) == 5


def test_a_run_repeats_itself() -> None:
    def run() -> Tally:
        return World("cassini", 2, CostModel()).run()

    assert run() == run()


def test_a_fall_of_capacity_frees_nothing_and_lists_who_is_at_risk() -> None:
    tally = World("cassini", 1, CostModel()).run()
    assert tally.short_zones > 0
    assert tally.at_risk >= tally.short_zones / 2  # a pod may hold two zones
    assert (tally.freed, tally.into_short_zones, tally.doubled) == (0, 0, 0)
