"""`hetsched whatif`: 0 all placed, 10 not now, 11 never fits, 12 misconfigured; the worst of several wins."""

from pathlib import Path

import pytest

from tests.builders import PodBuilder, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file

FITS = a_pod("fits").cpu(1)
# 2 CPUs with vectors: `vector` has 4 - 3 = 1 left, `plain` has no vectors.
WAITS = a_pod("waits").cpu(2).isa("rv64gcv")
# No node has 5 CPUs, not even an empty one.
TOO_BIG = a_pod("too-big").cpu(5)
WRONG = a_pod("wrong").wrong()


@pytest.mark.parametrize(
    ("pods", "exit_code", "verdict"),
    [
        ([FITS], 0, "placed"),
        ([FITS, WAITS], 10, "not-now"),
        ([WAITS, TOO_BIG, FITS], 11, "never-fits"),
        ([TOO_BIG, WRONG, WAITS, FITS], 12, "misconfigured"),
    ],
)
def test_exit_code_is_that_of_the_worst_verdict(
    tmp_path: Path, pods: list[PodBuilder], exit_code: int, verdict: str
) -> None:
    result = run("whatif", "-f", workload_file(tmp_path, *pods), "--cluster", cluster_file(tmp_path), "-o", "json")
    assert result.exit_code == exit_code
    assert document(result)["verdict"] == verdict
    assert [item["pod"] for item in document(result)["placements"]] == ["default/fits"] * (FITS in pods)


def test_wrong_annotations_are_the_pods_own_mistake(tmp_path: Path) -> None:
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: share, annotations: {hetsched.io/gpu-milli: "0"}}
spec: {containers: [{name: main}]}
"""
    result = run("whatif", "-f", "-", "--cluster", cluster_file(tmp_path), "-o", "json", stdin=manifest)
    assert result.exit_code == 12
    (reason,) = document(result)["unplaced"][0]["reasons"]
    assert reason["field"] == "hetsched.io/gpu-milli"


def test_invalid_quantity_exits_2(tmp_path: Path) -> None:
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: minus}
spec: {containers: [{name: main, resources: {requests: {cpu: "-1"}}}]}
"""
    result = run("whatif", "-f", "-", "--cluster", cluster_file(tmp_path), "-o", "json", stdin=manifest)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "QuantityNegative" in result.stderr


def test_unknown_policy_of_a_pod_exits_12(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("lost").policy("nowhere"))
    result = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path), "-o", "json")
    assert result.exit_code == 12
    assert document(result)["unplaced"][0]["reasons"][0]["code"] == "PolicyUnknown"
