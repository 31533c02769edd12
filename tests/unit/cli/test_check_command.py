"""`hetsched check`: verdicts and program requirements as exit code, text, JUnit, SARIF and Markdown."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.builders import PodBuilder, a_pod
from tests.unit.cli.answering import Server
from tests.unit.cli.calling import cluster_file, document, run, workload_file

FITS = a_pod("fits").cpu(1)
WAITS = a_pod("waits").cpu(2).isa("rv64gcv")  # `vector` has 1 CPU left
TOO_BIG = a_pod("too-big").cpu(5)
WRONG = a_pod("wrong").wrong()


def riscv_program(folder: Path, arch: str = "rv64i2p1_m2p0_a2p1_f2p2_d2p2_c2p0_v1p0") -> Path:
    """Write an ELF program whose attributes state an architecture string, as compilers write them."""
    text = b"\x05" + arch.encode() + b"\0"  # Tag_RISCV_arch
    file_part = b"\x01" + struct.pack("<I", 5 + len(text)) + text
    vendor = b"riscv\0" + file_part
    attributes = b"A" + struct.pack("<I", 4 + len(vendor)) + vendor
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    size, entry = 64, 56
    segment = struct.pack("<IIQQQQQQ", 0x70000003, 4, size + entry, 0, 0, len(attributes), len(attributes), 1)
    path = folder / "program"
    fields = struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, 0, size, 0, 0x5, size, entry, 1, 64, 0, 0)
    path.write_bytes(header + fields + segment + attributes)
    return path


@pytest.mark.parametrize(
    ("pods", "options", "exit_code"),
    [
        ([FITS], [], 0),
        ([FITS, WAITS], [], 0),
        ([FITS, WAITS], ["--fail-on", "not-now"], 10),
        ([TOO_BIG, WAITS], [], 11),
        ([TOO_BIG, WRONG], [], 12),
    ],
)
def test_never_fitting_pod_blocks_a_merge(
    tmp_path: Path, pods: list[PodBuilder], options: list[str], exit_code: int
) -> None:
    pods_file = workload_file(tmp_path, *pods)
    assert run("check", "-f", pods_file, "--cluster", cluster_file(tmp_path), *options).exit_code == exit_code


def test_summary_of_one_pod_is_singular(tmp_path: Path) -> None:
    """The summary of one pod uses the singular."""
    nodes = cluster_file(tmp_path)

    def summary(*pods: PodBuilder) -> str:
        result = run("check", "-f", workload_file(tmp_path, *pods), "--cluster", nodes, "-o", "json")
        text: str = document(result)["summary"]
        return text

    one, wrong, both = summary(FITS), summary(TOO_BIG), summary(FITS, a_pod("too").cpu(1))
    assert one.startswith("the pod passes the check")
    assert wrong == "1 of 1 pods would not run as it is: 1 error"
    assert both.startswith("all 2 pods pass the check")


def test_folder_includes_all_its_manifests(tmp_path: Path) -> None:
    nodes, deploy = cluster_file(tmp_path), tmp_path / "deploy"
    (deploy / "jobs").mkdir(parents=True)
    workload_file(deploy, FITS)
    assert run("check", "-f", deploy, "--cluster", nodes).exit_code == 0
    workload_file(deploy / "jobs", TOO_BIG)
    result = run("check", "-f", deploy, "--cluster", nodes)
    assert (result.exit_code, str(deploy / "jobs") in result.stdout) == (11, True)
    (tmp_path / "empty").mkdir()
    assert "[WorkloadEmpty]" in run("check", "-f", tmp_path / "empty", "--cluster", nodes).stderr


def test_program_beyond_its_pods_requirement_fails(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("plain").cpu(1).isa("rv64gc"))
    result = run(
        "check", "-f", pods, "--cluster", cluster_file(tmp_path), "--artefact", riscv_program(tmp_path), "-o", "json"
    )
    assert result.exit_code == 12
    (finding,) = document(result)["findings"]
    assert (finding["rule"], finding["level"]) == ("IsaUnderstated", "error")
    assert "v may be missing" in finding["message"]


def test_undeclared_pod_is_tried_with_the_needs_of_its_program(tmp_path: Path) -> None:
    result = run(
        "check", "-f", workload_file(tmp_path, FITS), "--cluster", cluster_file(tmp_path),
        "--artefact", riscv_program(tmp_path), "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0
    (finding,) = document(result)["findings"]
    assert (finding["rule"], finding["level"]) == ("IsaUnstated", "warning")
    # 1 CPU is free on `vector`, the only node with vectors; without a stated requirement it would fit anywhere.
    assert [placed["node"] for placed in document(result)["whatIf"]["placements"]] == ["vector"]


def test_pod_requiring_more_than_its_program_is_noted(tmp_path: Path) -> None:
    program = riscv_program(tmp_path, "rv64i2p1_m2p0_a2p1_f2p2_d2p2_c2p0")
    pods = workload_file(tmp_path, a_pod("rich").cpu(1).isa("rv64gcv"))
    result = run("check", "-f", pods, "--cluster", cluster_file(tmp_path), "--artefact", program, "-o", "json")
    assert result.exit_code == 0
    assert [finding["rule"] for finding in document(result)["findings"]] == ["IsaOverstated"]


def test_program_for_another_architecture_exits_12(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("arm").cpu(1).isa("armv8.2-a"))
    result = run(
        "check", "-f", pods, "--cluster", cluster_file(tmp_path), "--artefact", riscv_program(tmp_path), "-o", "json"
    )
    assert result.exit_code == 12
    assert "IsaOtherArchitecture" in [finding["rule"] for finding in document(result)["findings"]]


def test_artefact_of_an_unused_image_is_rejected(tmp_path: Path) -> None:
    result = run(
        "check", "-f", workload_file(tmp_path, FITS), "--cluster", cluster_file(tmp_path),
        "--artefact", f"example/none:1={riscv_program(tmp_path)}",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "ArtefactUnused" in result.stderr


def test_reports_are_written_on_failure_with_line_numbers(tmp_path: Path) -> None:
    manifest = tmp_path / "pods.yaml"
    manifest.write_text("""\
# the first document
apiVersion: v1
kind: Pod
metadata: {name: fits}
spec: {containers: [{name: main, resources: {requests: {cpu: "1"}}}]}
---
# the second begins below this remark
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec: {containers: [{name: main, resources: {requests: {cpu: "5"}}}]}
""")
    reports = [tmp_path / name for name in ("junit.xml", "check.sarif", "check.md")]
    result = run(
        "check", "-f", manifest, "--cluster", cluster_file(tmp_path),
        "--junit", reports[0], "--sarif", reports[1], "--markdown", reports[2],
    )  # fmt: skip
    assert result.exit_code == 11
    (suite,) = ElementTree.fromstring(reports[0].read_bytes())
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [(case.get("name"), case.get("line"), case.find("failure") is not None) for case in suite] == [
        ("default/fits", "2", False),
        ("default/too-big", "8", True),
    ]
    (finding,) = json.loads(reports[1].read_bytes())["runs"][0]["results"]
    region = finding["locations"][0]["physicalLocation"]["region"]
    assert (finding["ruleId"], finding["level"], region) == ("NeverFits", "error", {"startLine": 8})
    assert "default/too\\-big" in reports[2].read_text()


def test_manifest_text_is_escaped_in_every_report(tmp_path: Path) -> None:
    manifest = tmp_path / "<b>&|`.yaml"
    manifest.write_text("""\
apiVersion: v1
kind: Pod
metadata: {name: odd, annotations: {hetsched.io/isa: "<script>|[x](y)`"}}
spec: {containers: [{name: main}]}
""")
    junit, page = tmp_path / "j.xml", tmp_path / "p.md"
    args = ("--junit", junit, "--markdown", page)
    assert run("check", "-f", manifest, "--cluster", cluster_file(tmp_path), *args).exit_code == 12
    assert ElementTree.fromstring(junit.read_bytes()).find(".//failure") is not None
    assert "<script>" not in page.read_text()
    assert "](y)" not in page.read_text()


def test_fleet_of_a_server_is_used(tmp_path: Path, server: Server) -> None:
    answer = document(
        run("whatif", "-f", workload_file(tmp_path, TOO_BIG), "--cluster", cluster_file(tmp_path), "-o", "json")
    )
    server.answers("POST", "/api/v1/what-if/", answer)
    result = run(
        "check", "-f", workload_file(tmp_path, TOO_BIG), "--server", "http://fleet", "--token", "hs_x", "--on", "lab"
    )
    assert result.exit_code == 11
    assert (server.body()["cluster"], server.body()["replace"]) == ("lab", True)


def test_running_pod_of_the_same_name_is_replaced(tmp_path: Path, server: Server) -> None:
    """`vector` has 1 of its 4 CPUs left with `old`, which requests 3: it fits there only after `old` is removed."""
    again = a_pod("old").cpu(4).memory("1Gi").isa("rv64gcv")
    pods = workload_file(tmp_path, again)
    result = run("check", "-f", pods, "--cluster", cluster_file(tmp_path), "--fail-on", "not-now")
    assert (result.exit_code, "default/old" in result.stderr) == (0, True)
    answer = document(
        run("whatif", "-f", workload_file(tmp_path, FITS), "--cluster", cluster_file(tmp_path), "-o", "json")
    )
    server.answers("POST", "/api/v1/what-if/", {**answer, "replaced": ["default/fits"]})
    result = run("check", "-f", workload_file(tmp_path, FITS), "--server", "http://fleet", "--token", "hs_x")
    assert (result.exit_code, "default/fits" in result.stderr) == (0, True)


def test_missing_fleet_is_an_error(tmp_path: Path) -> None:
    result = run("check", "-f", workload_file(tmp_path, FITS), env={"HETSCHED_SERVER": "", "HETSCHED_TOKEN": ""})
    assert result.exit_code == 2
    assert "FleetMissing" in result.stderr


def test_pod_that_does_not_fit_now_is_not_reported_as_placed(tmp_path: Path) -> None:
    reports = [tmp_path / name for name in ("junit.xml", "check.sarif", "check.md")]
    written = ("--junit", reports[0], "--sarif", reports[1], "--markdown", reports[2])
    files = ("check", "-f", workload_file(tmp_path, WAITS), "--cluster", cluster_file(tmp_path))
    result = run(*files, *written)
    assert result.exit_code == 0
    headline, finding, *_ = result.stdout.splitlines()
    assert headline.startswith("not-now  the pod does not fit now and would stay pending; this does not fail the check")
    assert headline.endswith(": 1 warning")
    assert "default/waits: does not fit now: " in finding
    assert "passes the check" not in result.stdout
    (suite,) = ElementTree.fromstring(reports[0].read_bytes())
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    skipped = suite[0].find("skipped")
    assert skipped is not None
    assert skipped.get("message", "").startswith("does not fit now: ")
    assert "does not fit now" in json.loads(reports[1].read_bytes())["runs"][0]["results"][0]["message"]["text"]
    assert reports[2].read_text().startswith("### hetsched: not\\-now".replace("\\", ""))
    assert "does not fit now" in reports[2].read_text()
    found = document(run(*files, "-o", "json"))
    assert (found["verdict"], found["waiting"]) == ("placed", ["default/waits"])
    two = run("check", "-f", workload_file(tmp_path, FITS, WAITS), "--cluster", cluster_file(tmp_path))
    headline = "not-now  1 of 2 pods does not fit now and would stay pending; this does not fail the check"
    assert two.stdout.startswith(headline)


MISSPELT = """\
apiVersion: v1
kind: Pod
metadata: {name: fits, annotations: {hetsched.io/gpu-modell: A100}}
spec: {containers: [{name: main, resources: {request: {cpu: "1"}}}]}
---
apiVersion: apps/v1
kind: Deplyment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: main}]}}}
"""


def test_misspelt_names_are_warnings_or_strict_errors(tmp_path: Path) -> None:
    manifest, junit = tmp_path / "pods.yaml", tmp_path / "junit.xml"
    manifest.write_text(MISSPELT)
    files = ("check", "-f", manifest, "--cluster", cluster_file(tmp_path), "--junit", junit)
    found = document(run(*files, "-o", "json"))
    assert found["verdict"] == "placed"
    assert [
        (finding["rule"], finding["level"], finding["pod"], finding.get("hint")) for finding in found["findings"]
    ] == [
        ("FieldUnknown", "warning", "default/fits", "Did you mean requests?"),
        ("AnnotationUnknown", "warning", "default/fits", "Did you mean hetsched.io/gpu-model?"),
        ("KindUnknown", "warning", "", "Did you mean Deployment?"),
    ]
    assert "Did you mean Deployment?" in junit.read_text()
    strict = run(*files, "--strict")
    assert strict.exit_code == 12
    assert "[FieldUnknown]" in strict.stdout
    assert ElementTree.fromstring(junit.read_bytes())[0].get("failures") == "1"


def test_whatif_warns_and_refuses_misspelt_names_where_strict(tmp_path: Path) -> None:
    manifest = tmp_path / "pods.yaml"
    manifest.write_text(MISSPELT)
    files = ("whatif", "-f", manifest, "--cluster", cluster_file(tmp_path), "-o", "json")
    warned = run(*files)
    assert [warning["code"] for warning in document(warned)["warnings"]] == [
        "FieldUnknown",
        "AnnotationUnknown",
        "KindUnknown",
    ]
    assert "warning [FieldUnknown]" in warned.stderr
    assert "Did you mean requests?" in warned.stderr
    refused = run(*files, "--strict")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Did you mean requests?" in refused.stderr
    only_kind = tmp_path / "kind.yaml"
    only_kind.write_text(MISSPELT.partition("---\n")[2])
    empty = run("whatif", "-f", only_kind, "--cluster", cluster_file(tmp_path))
    assert empty.exit_code == 2
    assert "Did you mean Deployment?" in empty.stderr.partition("[WorkloadEmpty]")[2]


QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: team}
spec: {hard: {pods: "1"}}
"""


def test_resource_quota_is_a_warning_also_in_strict_mode(tmp_path: Path) -> None:
    quota = tmp_path / "quota.yaml"
    quota.write_text(QUOTA)
    files = ("-f", workload_file(tmp_path, FITS), "--cluster", cluster_file(tmp_path))
    for more in (("--cluster", quota), ("-f", quota)):
        answer = run("whatif", *files, *more, "--strict", "-o", "json")
        assert (answer.exit_code, [warning["code"] for warning in document(answer)["warnings"]]) == (
            0,
            ["AdmissionNotSimulated"],
        )
        assert "quota.yaml#1 kind: kube-apiserver enforces a ResourceQuota" in answer.stderr
        checked = run("check", *files, *more, "--strict")
        assert (checked.exit_code, "the pod passes the check: 1 warning" in checked.stdout) == (0, True)
        assert run("simulate", *("--workload" if one == "-f" else one for one in (*files, *more))).stderr.count(
            "[AdmissionNotSimulated]"
        )
        advised = run("advise", *files, *more, "--policy", "hetsched")
        assert "[AdmissionNotSimulated]" in advised.stderr


def test_summary_of_check_counts_wrong_pods_only(tmp_path: Path) -> None:
    manifest = tmp_path / "pods.yaml"
    manifest.write_text(MISSPELT.replace("request:", "requests:").replace("gpu-modell: A100", "load-profile: busy"))
    result = run("check", "-f", manifest, "--cluster", cluster_file(tmp_path), "--strict")
    assert result.exit_code == 12
    assert result.stdout.startswith("misconfigured  the manifests do not pass the check: 1 error")


def test_error_in_a_manifest_is_followed_by_its_warnings(tmp_path: Path) -> None:
    manifest = tmp_path / "pods.yaml"
    manifest.write_text(MISSPELT.replace('cpu: "1"', 'cpu: "1"}, limits: {cpu: 2x'))
    for command in (("whatif",), ("whatif", "--strict"), ("check",), ("check", "--strict")):
        result = run(*command, "-f", manifest, "--cluster", cluster_file(tmp_path))
        assert (result.exit_code, result.stdout) == (2, "")
        first, *rest = result.stderr.splitlines()
        assert first.startswith("error [QuantityMalformed]")
        warned = [line.split("]")[0] for line in rest if line.startswith("warning")]
        assert warned == ["warning [FieldUnknown", "warning [AnnotationUnknown", "warning [KindUnknown"]
