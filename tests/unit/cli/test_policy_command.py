"""`hetsched policy`: previews and differences of a server, golden placements of a server or of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import a_node
from tests.unit.cli.answering import Server
from tests.unit.cli.calling import cluster_file, document, run

PREVIEW = "/api/v1/policies/dense/preview/"
METRICS = {
    "balance": 0.9, "cpuUtilization": 0.5, "memoryUtilization": 0.25, "gpuAllocation": None, "unallocatedGpus": 0.0,
    "gpuFragmentation": None,
}  # fmt: skip
GOLDEN = """\
apiVersion: hetsched.io/v1alpha1
kind: GoldenPlacement
metadata: {name: vectors}
spec:
  expect: {isa: rv64gcv}
  pod:
    apiVersion: v1
    kind: Pod
    metadata: {name: v, annotations: {hetsched.io/isa: %s}}
    spec: {containers: [{name: main, image: example.com/v}]}
"""


def a_preview(state: str = "done", **result: Any) -> dict[str, Any]:
    side = {"policy": "dense", "version": 1, "placed": 3, "pending": 0, "evicted": 0, "metrics": METRICS}
    document = {
        "decisions": 3, "from": "2026-11-20T10:00:00Z", "to": "2026-11-20T11:00:00Z", "departures": 0, "foreign": 0,
        "same": 2, "moved": 1, "infeasible": 0, "feasible": 0, "pendingBoth": 0, "baseline": side,
        "draft": {**side, "version": 2}, "fidelity": {"compared": 3, "equal": 3, "reasons": []}, "notes": [],
        "changes": [{"pod": "default/p", "from": "n1", "to": "n2", "margin": 1.5, "reason": None}], **result,
    }  # fmt: skip
    over = state == "done"
    return {
        "id": 7, "policy": "dense", "version": 2, "cluster": "lab", "state": state, "progress": 1.0 if over else 0.5,
        "problem": None, "result": document if over else None,
    }  # fmt: skip


def test_preview_is_requested_followed_and_printed(server: Server) -> None:
    server.answers("POST", PREVIEW, a_preview("waiting"), status=202)
    server.answers("GET", f"{PREVIEW}7/", a_preview("running"), a_preview())
    result = run("policy", "preview", "dense", "--version", 2, "--last", 500)
    assert result.exit_code == 0
    assert "same 2, moved 1, newly infeasible 0" in result.stdout
    assert "default/p" in result.stdout
    assert "+1.50" in result.stdout
    assert msgspec.json.decode(server.asked[0].content)["last"] == 500


def test_pipeline_fails_if_pods_would_move(server: Server) -> None:
    server.answers("POST", PREVIEW, a_preview("waiting"), status=202)
    server.answers("GET", f"{PREVIEW}7/", a_preview())
    command = ("policy", "preview", "dense", "--version", 2, "-o", "json")
    assert run(*command, "--fail-on", "moved").exit_code == 1
    assert run(*command, "--fail-on", "infeasible").exit_code == 0
    assert document(run(*command))["result"]["moved"] == 1


def test_failed_preview_prints_its_reason(server: Server) -> None:
    failed = {**a_preview("failed"), "problem": {"code": "NothingToReplay", "message": "nothing was decided"}}
    server.answers("POST", PREVIEW, a_preview("waiting"), status=202)
    server.answers("GET", f"{PREVIEW}7/", failed)
    result = run("policy", "preview", "dense", "--version", 2)
    assert result.exit_code == 2


def test_difference_is_shown_by_plugin(server: Server) -> None:
    change = {
        "plugin": "binpack", "change": "changed", "moved": False, "placeBefore": 3, "placeAfter": 3, "weightBefore": 1,
        "weightAfter": 2.5, "params": [{"name": "mode", "before": "plain", "after": "upstream"}],
    }  # fmt: skip
    difference = {"same": False, "plugins": [change], "ties": None, "description": None}
    server.answers("GET", "/api/v1/policies/dense/versions/1/diff/2/", {"diff": difference})
    result = run("policy", "diff", "dense", 1, 2)
    assert "1 -> 2.5" in result.stdout
    assert 'mode "plain" -> "upstream"' in result.stdout


@pytest.fixture
def agreed(tmp_path: Path) -> tuple[Path, Path]:
    """Return a cluster file of a node with vectors and one without, and a golden placement."""
    plain, vector = a_node("plain").arch("riscv64", "rv64gc"), a_node("vector").arch("riscv64", "rv64gcv")
    golden = tmp_path / "goldens.yaml"
    golden.write_text(GOLDEN % "rv64gcv")
    return cluster_file(tmp_path, plain, vector), golden


def test_files_are_judged_without_a_server(agreed: tuple[Path, Path]) -> None:
    cluster, golden = agreed
    result = run("policy", "golden", "check", "--cluster", cluster, "-f", golden, "-o", "json")
    assert result.exit_code == 0
    (found,) = document(result)["results"]
    assert (found["policy"], found["kept"], found["results"][0]["got"]) == ("hetsched", 1, "vector with rv64gcv")


def test_policy_that_breaks_a_golden_placement_exits_1(agreed: tuple[Path, Path], tmp_path: Path) -> None:
    cluster, golden = agreed
    policy = tmp_path / "blind.yaml"  # it ignores instruction sets, and the lowest name wins
    policy.write_text(
        "{apiVersion: hetsched.io/v1alpha1, kind: SchedulingPolicy, metadata: {name: blind}, "
        "spec: {plugins: [{name: resource-fit}]}}"
    )
    result = run("policy", "golden", "check", "--cluster", cluster, "--policy", policy, "-f", golden)
    assert result.exit_code == 1
    assert "1 broken" in result.stdout


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: []}}", "GoldensMissing"),
        (GOLDEN % "rv64gcv" + "  expected: x\n", "GoldenMalformed"),
        ((GOLDEN % "rv64gcv").replace("{isa: rv64gcv}", "{isa: nonsense}"), "Isa"),
        ((GOLDEN % "rv64gcv").replace("{isa: rv64gcv}", "{}"), "GoldenExpectationInvalid"),
        (GOLDEN % "rv64gcv" + "---\n" + GOLDEN % "rv64gc", "ObjectDuplicate"),
    ],
)
def test_wrong_files_are_refused(agreed: tuple[Path, Path], content: str, code: str) -> None:
    cluster, golden = agreed
    golden.write_text(content)
    result = run("policy", "golden", "check", "--cluster", cluster, "-f", golden)
    assert result.exit_code != 0
    assert code in f"{result.exception!r} {result.output}"


def test_server_checks_its_own_policies(server: Server) -> None:
    answer = {"policy": "dense", "version": 2, "results": [], "kept": 0, "broken": 0, "unknown": 0}
    server.answers("POST", "/api/v1/golden-placements/check/", answer)
    assert run("policy", "golden", "check", "--policy", "dense", "--version", 2, "--cluster", "lab").exit_code == 0
    asked = msgspec.json.decode(server.asked[0].content)
    assert asked == {"policy": "dense", "version": 2, "cluster": "lab"}


def test_placements_of_a_server_can_be_judged_as_files(
    server: Server, agreed: tuple[Path, Path], tmp_path: Path
) -> None:
    cluster, _ = agreed
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"
    row = {"name": "first", "policy": "", "expect": {"nodes": ["plain"]}, "manifest": pod}
    server.answers("GET", "/api/v1/golden-placements/", {"items": [row], "next": None})
    exported = run("policy", "golden", "export")
    golden = tmp_path / "exported.json"
    golden.write_text(exported.stdout)
    result = run("policy", "golden", "check", "--cluster", cluster, "-f", golden, "-o", "json")
    assert document(result)["results"][0]["kept"] == 1
