"""The report: every chart has its table, the CSV files hold the same numbers, equal inputs give equal bytes."""

import csv
import io

import msgspec

from hetsched.engine.cluster.balance import ClusterMetrics
from hetsched.lab.replay import PodPlacement, Replay, ReplaySample
from hetsched.lab.report import PolicyRun, data_table, report_files

METRICS = ClusterMetrics(
    cpu_utilization=0.5,
    memory_utilization=0.25,
    gpu_allocation=None,
    unallocated_gpus=0.0,
    gpu_fragmentation=None,
    balance=0.9,
)


def runs(*policies: str) -> list[PolicyRun]:
    placements = (PodPlacement("default/a", "n1"), PodPlacement("default/b", None))
    samples = (ReplaySample(1, 0, None, METRICS), ReplaySample(2, 1, None, METRICS))
    return [PolicyRun(Replay(policy, 1, 1, placements, METRICS, 1234.5), samples) for policy in policies]


def rows(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode())))


def test_csv_files_hold_results_samples_and_placements() -> None:
    files = report_files("title", [("Nodes", "2")], runs("spread", "first-fit"))
    summary = rows(files["summary.csv"])
    assert summary[0][:4] == ["policy", "placed", "pending", "cpuUtilization"]
    assert summary[1][:4] == ["spread", "1", "1", "0.5"]
    assert summary[1][summary[0].index("gpuAllocation")] == ""
    assert [row[:2] for row in rows(files["samples.csv"])[1:]] == [
        ["spread", "1"], ["spread", "2"], ["first-fit", "1"], ["first-fit", "2"],
    ]  # fmt: skip
    assert rows(files["placements.csv"]) == [
        ["pod", "spread", "first-fit"],
        ["default/a", "n1", "n1"],
        ["default/b", "", ""],
    ]


def test_charts_have_tables_and_missing_metrics_have_no_chart() -> None:
    page = report_files("title", [], runs("spread"))["index.html"].decode()
    assert page.count("<svg") == page.count("<figure>") == page.count("<details>") > 0
    assert "gpuAllocation over" not in page
    assert "cpuUtilization over arrived pods" in page


def test_text_from_outside_is_escaped() -> None:
    page = report_files("<title>", [("<fact>", "&")], runs("<policy>"))["index.html"].decode()
    assert "<policy>" not in page
    assert "<fact>" not in page


def test_equal_runs_give_equal_bytes() -> None:
    first, second = (report_files("t", [], runs("spread")) for _ in range(2))
    assert first == second


def test_samples_with_gpus_are_drawn_over_gpu_demand() -> None:
    metrics = msgspec.structs.replace(METRICS, gpu_allocation=0.5, gpu_fragmentation=0.1)
    (run,) = runs("spread")
    with_cards = PolicyRun(run.result, tuple(ReplaySample(n, 0, n / 2, metrics) for n in (1, 2)))
    page = report_files("t", [], [with_cards])["index.html"].decode()
    assert "pending over arrived GPU demand / capacity" in page


def test_texts_are_left_aligned_and_numbers_right_aligned() -> None:
    table = data_table(["policy", "case", "value"], [["a", "b", 1.0]])
    assert '<th class="text">case</th><th>value</th>' in table
    assert '<td class="text">b</td><td>1</td>' in table
