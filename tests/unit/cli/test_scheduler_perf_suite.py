"""Suite of scheduler_perf: module lookup, feature gates, rows and their table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetsched.cli.bench.scheduler_perf import suite
from hetsched.cli.bench.scheduler_perf.configuration import PerfWorkload, Unsupported
from hetsched.cli.bench.scheduler_perf.execution import Measurement
from hetsched.cli.bench.scheduler_perf.feature_gates import scheduler_arguments
from hetsched.cli.bench.scheduler_perf.table import show
from hetsched.contracts.errors import InputError
from hetsched.lab.bench.measure import Checks, Scenario

WORKLOAD = PerfWorkload("Basic/5Nodes", (), {}, {})
WAITED = tuple(float(number) for number in range(1, 102))
FOUND = {
    "hetsched": [Measurement(200.0, 400.0, WAITED), Measurement(100.0, 300.0, WAITED)],
    "kube-scheduler": [Measurement(100.0, 500.0, WAITED), Measurement(missing=5, reason="ended")],
}


def test_newest_version_of_the_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMODCACHE", str(tmp_path))
    for version in ("v1.9.1", "v1.36.3", "v1.36.10"):
        (tmp_path / "k8s.io" / f"kubernetes@{version}" / "test/integration/scheduler_perf").mkdir(parents=True)
    assert "kubernetes@v1.36.10" in suite.find_configurations().parts


def test_missing_module_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMODCACHE", str(tmp_path))
    with pytest.raises(InputError) as error:
        suite.find_configurations()
    assert (error.value.code, error.value.place) == ("ConfigurationMissing", "--scheduler-perf")
    assert "go mod download" in str(error.value.hint)


def test_size_without_a_workload_is_an_input_error(tmp_path: Path) -> None:
    case = "- name: Basic\n  workloadTemplate: []\n  workloads:\n  - name: 5Nodes\n"
    (tmp_path / "misc").mkdir()
    (tmp_path / "misc/performance-config.yaml").write_text(case)
    with pytest.raises(InputError) as error:
        suite.run({}, configurations=tmp_path, sizes=["9Nodes"], program=tmp_path)
    assert (error.value.code, error.value.place) == ("NoWorkload", "--size")
    assert "5Nodes" in str(error.value.hint)


@pytest.mark.parametrize(
    ("wanted", "arguments"),
    [
        ({}, []),
        ({"SchedulerQueueingHints": True, "DynamicResourceAllocation": True}, []),
        ({"SchedulerAsyncAPICalls": True}, ["--feature-gates=SchedulerAsyncAPICalls=true"]),
        (
            {"SchedulerQueueingHints": False},
            ["--emulated-version=1.33", "--feature-gates=SchedulerQueueingHints=false"],
        ),
    ],
)
def test_gates_of_the_scheduler_become_arguments(wanted: dict[str, bool], arguments: list[str]) -> None:
    in_effect = {"SchedulerQueueingHints": True, "DynamicResourceAllocation": True, "SchedulerAsyncAPICalls": False}
    assert scheduler_arguments(wanted, in_effect) == arguments


@pytest.mark.parametrize(("in_effect", "state"), [({"DRADeviceTaints": False}, "is false"), ({}, "is unknown")])
def test_gates_of_the_api_server_are_not_supported(in_effect: dict[str, bool], state: str) -> None:
    with pytest.raises(Unsupported, match=f"DRADeviceTaints has to be true, and {state}"):
        scheduler_arguments({"DRADeviceTaints": True}, in_effect)


def test_rows_have_the_throughput_and_the_ratio_of_complete_pairs() -> None:
    rows = {one.case: one for one in suite._rows(WORKLOAD, FOUND)}
    ours, theirs = rows["Basic/5Nodes: hetsched"], rows["Basic/5Nodes: kube-scheduler"]
    assert (ours.median, ours.n, ours.unit) == (150.0, 2, "pods/s")
    assert (theirs.median, theirs.n) == (100.0, 1)
    ratio = rows["Basic/5Nodes: hetsched / kube-scheduler"]
    assert (ratio.median, ratio.n, ratio.unit) == (2.0, 1, "ratio")
    assert rows["Basic/5Nodes: hetsched, created"].median == 350.0
    assert rows["Basic/5Nodes: hetsched, created to bound, p50"].median == 51.0
    assert rows["Basic/5Nodes: kube-scheduler, created to bound, p99"].median == 100.0


def test_table_lists_workloads_and_missing_results(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "skipped": [{"case": "Other", "reason": "no workload 5Nodes"}],
        "failed": [{"case": "Basic/5Nodes: kube-scheduler", "missing": 5, "reason": "ended"}],
        "turns": 2,
    }
    show(Scenario("cluster", tuple(suite._rows(WORKLOAD, FOUND)), facts, Checks(308, 5)))
    lines = capsys.readouterr().out.splitlines()
    cells = ["Basic/5Nodes", "150 (110 to 190)", "100", "2.00", "350 / 500", "51 / 100", "51 / 100", "2"]
    assert lines[1].split() == " ".join(cells).split()
    assert lines[2:5] == [
        "skipped Other: no workload 5Nodes",
        "failed Basic/5Nodes: kube-scheduler: 5 pods not bound: ended",
        "308 measured pods, 5 not bound",
    ]
