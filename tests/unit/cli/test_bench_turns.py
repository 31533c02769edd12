"""Several turns of `hetsched bench cluster` give medians over the turns and the ratio of each pair."""

from __future__ import annotations

from hetsched.cli.bench.cluster import _ratios, _together
from hetsched.lab.bench.measure import BenchmarkRow, row


def turn(case: str, rate: float, p50: float, p99: float) -> list[BenchmarkRow]:
    return [
        row(f"{case}: backlog", "pods/s", [rate]),
        row(f"{case}: created to bound", "ms", [p50 - 1, p50, p50 + 1], tail=True),
        row(f"{case}: created to bound, p99", "ms", [p99]),
    ]


OURS = [turn("a", 800, 10, 40), turn("a", 600, 12, 60), turn("a", 1000, 8, 50)]
THEIRS = [turn("b", 400, 5, 20), turn("b", 600, 6, 20), turn("b", 500, 4, 25)]


def test_one_turn_keeps_the_spread_of_its_pods() -> None:
    assert _together(OURS[:1]) == OURS[0]


def test_turns_are_summarized_by_their_medians() -> None:
    rate, p50, p99 = _together(OURS)
    assert (rate.median, rate.n) == (800, 3)
    assert (p50.case, p50.median, p99.median) == ("a: created to bound", 10, 50)


def test_ratios_are_of_pairs_of_turns() -> None:
    found = {ratio.case: (ratio.median, ratio.n) for ratio in _ratios("a", "b", OURS, THEIRS)}
    # Pairs: 800/400, 600/600, 1000/500; 10/5, 12/6, 8/4; 40/20, 60/20, 50/25.
    assert found == {"a / b": (2, 3), "a / b, created to bound": (2, 3), "a / b, p99": (2, 3)}
