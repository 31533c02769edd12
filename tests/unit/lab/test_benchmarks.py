"""Benchmarks: the fleet is repeatable, rows sum up correctly, the comparison scheduler and the oracle agree."""

from hetsched.engine.cluster.columns import Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.isa import parse
from hetsched.lab.bench import fleet
from hetsched.lab.bench.isa import requirements
from hetsched.lab.bench.measure import row


def test_row_has_median_and_percentiles() -> None:
    found = row("case", "us", [float(value) for value in range(1, 12)], tail=True)
    # 1..11: the median is 6, the 10th percentile 2, the 90th 10, the 95th 10.5.
    assert (found.median, found.p10, found.p90, found.p95, found.n) == (6.0, 2.0, 10.0, 10.5, 11)


def test_fleet_is_repeatable_and_grows_at_its_end() -> None:
    assert fleet.fleet(30, seed=4) == fleet.fleet(60, seed=4)[:30]
    assert fleet.fleet(30, seed=4) != fleet.fleet(30, seed=5)


def test_fleet_has_three_architectures_and_eight_resources() -> None:
    state = ClusterState(fleet.fleet(300))
    assert len(state.resources) == 8
    assert {parse(report.isa.native or "").arch for report in state.reports} == {"x86", "arm", "riscv"}
    cards = Window(state.columns).static("card_milli").sum(axis=0)
    assert set(cards.tolist()) == {0, 8000}


def test_shapes_are_different_and_pods_follow_zipfs_law() -> None:
    kinds = fleet.shapes(64)
    assert len(set(kinds)) == 64
    pods = fleet.pods(5000, kinds)
    assert len({pod.key for pod in pods}) == 5000
    counts = [sum(pod.shape is kind for pod in pods) for kind in kinds]
    # Rank 1 against rank 32 should be near 32 ** 0.8 = 16.
    assert counts[0] > 8 * counts[31] > 0


def test_unlike_pods_share_no_shape() -> None:
    assert len({pod.shape for pod in fleet.distinct_pods(200)}) == 200


def test_requirements_are_different_and_readable() -> None:
    needs = requirements(1000)
    assert len(set(needs)) == 1000
    assert all(parse(need).arch for need in needs[::50])
