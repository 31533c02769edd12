"""The cassini experiment: its counts, and that its expectations can fail."""

from __future__ import annotations

import pytest

from hetsched.lab.colocation import machines, machines_of_every_kind
from hetsched.lab.experiments import cassini
from hetsched.lab.experiments.outcome import Experiment
from hetsched.lab.training import RunCounts, TrainingRun, guaranteed_pod, jobs


def quiet(done: int, total: int) -> None:
    pass


def small(patch: pytest.MonkeyPatch) -> None:
    """Run one seed, and a tenth of the burst."""
    patch.setattr(cassini, "_SEEDS", (1,))
    patch.setattr(cassini, "_BURST_MACHINES", 20)
    patch.setattr(cassini, "_BURST_PODS", 200)


@pytest.fixture(scope="module")
def made() -> Experiment:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        return cassini.run(quiet)


def test_no_kubelet_rejects_cassini_placements(made: Experiment) -> None:
    values = {(row.policy, row.case, row.metric): row.value for row in made.rows}
    rejections = "rejections by kubelets (schedule, reject, recreate)"
    assert values["cassini", "online workloads", rejections] == 0
    assert values["default-kube", "online workloads", rejections] > 0
    assert (
        values["cassini", "online workloads", "pods that ran"]
        == values["cassini", "online workloads", "pods submitted"]
    )


def test_expectations_hold_and_name_the_data_source(made: Experiment) -> None:
    assert [expectation.text for expectation in made.expectations if not expectation.held] == []
    assert made.reconstruction
    assert any("memory_penalty 0.6" in note for note in made.notes)
    assert made.charts[0].count("<polyline") == 4


def test_policy_without_zones_fails_the_cassini_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    monkeypatch.setattr(cassini, "_CASSINI", "default-kube")
    failed = [expectation.text for expectation in cassini.run(quiet).expectations if not expectation.held]
    assert len(failed) == 6


def test_run_is_deterministic() -> None:
    def run() -> RunCounts:
        return TrainingRun("cassini", machines(12), jobs(2), seed=2).run()

    assert run() == run()


def test_capacity_drop_releases_nothing_and_lists_pods_at_risk() -> None:
    tally = TrainingRun("cassini", machines(12), jobs(1)).run()
    assert tally.short_zones > 0
    assert tally.at_risk >= tally.short_zones / 2  # a pod may hold two zones
    assert (tally.freed, tally.into_short_zones, tally.doubled) == (0, 0, 0)


def test_burst_is_admitted_or_delayed() -> None:
    # 40 pods of 6 CPUs on 5 machines: under cassini each of them runs or was never sent to a kubelet.
    pods = [guaranteed_pod(f"p{number}", 6, 0, "none") for number in range(40)]
    fleet = machines_of_every_kind(5, seed=3)
    ours, blind = (TrainingRun(policy, fleet).admit(pods) for policy in ("cassini", "default-kube"))
    assert (ours.pods, ours.rejections, ours.loops) == (40, 0, 0)
    assert blind.rejections == 6 * blind.loops > 0  # created again five times, rejected six times
    assert ours.ran >= blind.ran
