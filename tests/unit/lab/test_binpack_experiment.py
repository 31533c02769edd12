"""The binpack experiment: its measurements and their evaluation."""

from __future__ import annotations

from hetsched.lab.experiments import binpack
from hetsched.lab.experiments.outcome import ResultRow

CASE = "2 nodes of 4 cards"


def measured(policy: str) -> list[float | None]:
    made = binpack.run(lambda done, total: None)
    return [row.value for row in made.rows if (row.policy, row.case) == (policy, CASE)]


def test_spreading_leaves_a_card_on_each_node_and_packing_two_on_one() -> None:
    # Six 1-GPU jobs on 4 + 4 GPUs: 3 + 3 leaves 1 + 1, 4 + 2 leaves 0 + 2, and two GPUs are requested on one node.
    assert measured("spread") == [3, 3, 0]
    assert measured("default-kube") == [3, 3, 0]
    assert measured("binpack") == [4, 2, 1]


def test_worked_scores_appear_in_both_arithmetics() -> None:
    made = binpack.run(lambda done, total: None)
    case = "0:0 100:10, GPU 3 of 4, CPU 16 of 32"
    # plain (7.5 + 5) / 2 = 6.25; upstream (75 + 50) / 2 = 62.5, half up
    assert ResultRow("plain", case, "score 0-10", 6.25) in made.rows
    assert ResultRow("upstream", case, "score 0-100", 63.0) in made.rows
    assert len(made.expectations) == 9
    assert made.held


def test_failed_expectation_is_reported(monkeypatch) -> None:
    monkeypatch.setitem(binpack.POLICIES, "binpack", binpack.POLICIES["spread"])
    made = binpack.run(lambda done, total: None)
    failed = [expectation.text for expectation in made.expectations if not expectation.held]
    assert failed == ["binpack: the six jobs are placed 3 + 3, the 2-card job waits"]


def test_every_step_is_reported() -> None:
    steps: list[tuple[int, int]] = []
    binpack.run(lambda done, total: steps.append((done, total)))
    assert steps == [(step, 9) for step in range(1, 10)]
