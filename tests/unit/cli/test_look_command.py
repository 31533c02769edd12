"""`hetsched look`: reports of files and of a cluster, output formats and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.resources import NODES
from tests.seeded_clusters import Plain, node, pod, seeded_cluster
from tests.unit.adapters.api_server import serving
from tests.unit.cli.calling import document, run

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>&\x1b[31m[bold]'


def cluster_file(folder: Path, objects: list[Plain]) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return path


def test_json_document_has_the_documented_fields(tmp_path: Path) -> None:
    cluster = seeded_cluster("gpus", 0, faults=True)
    result = run("look", "-f", cluster_file(tmp_path, cluster.objects), "-o", "json")
    made = document(result)
    assert list(made) == [
        "evaluatedAt", "snapshot", "policy", "nodes", "running", "pending", "gpus", "counts", "findings", "regret",
        "unchecked",
    ]  # fmt: skip
    assert {(one["code"], one["kind"], one["name"]) for one in made["findings"]} == cluster.expected
    assert list(made["findings"][0]) == [
        "code", "level", "kind", "name", "message", "evidence", "remedy", "affected", "count",
    ]  # fmt: skip
    assert list(made["regret"]) == ["pods", "compared", "elsewhere", "mean", "largest"]
    assert made["gpus"]["total"] == 4 * made["nodes"]
    assert (made["gpus"]["stranded"], made["counts"]) == (3, {"error": 0, "warning": 3, "note": 0})
    assert 0 < made["gpus"]["fragmentation"] < 1


@pytest.mark.parametrize(
    ("kind", "faults", "fail_on", "code"),
    [
        ("instruction_sets", True, None, 1),
        ("instruction_sets", False, "note", 0),
        ("gpus", True, None, 0),
        ("gpus", True, "warning", 1),
        ("gpus", False, "warning", 0),
    ],
)
def test_exit_code_depends_on_the_worst_finding(
    tmp_path: Path, kind: str, faults: bool, fail_on: str | None, code: int
) -> None:
    path = cluster_file(tmp_path, seeded_cluster(kind, 0, faults=faults).objects)
    assert run("look", "-f", path, *(["--fail-on", fail_on] if fail_on else [])).exit_code == code


def test_text_names_evidence_remedy_and_summary(tmp_path: Path) -> None:
    result = run("look", "-f", cluster_file(tmp_path, seeded_cluster("instruction_sets", 0, faults=True).objects))
    first, *lines = [line for line in result.stdout.splitlines() if line]
    assert first.startswith("2 errors, 1 warning, 0 notes  ")
    text = "\n".join(lines)
    assert (
        "error [IsaMissingExtension] Pod default/vector: Pods run on nodes without the required instruction set" in text
    )
    assert "warning [MayLandOnWrongNode] ReplicaSet default/anywhere (2): " in text
    assert text.count("  remedy: ") == 3
    assert text.endswith("policy hetsched; the cluster was only read")


def test_fragmentation_is_explained(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, seeded_cluster("gpus", 0, faults=True).objects)
    page = tmp_path / "report.html"
    text = run("look", "-f", path, "--html", page).stdout
    assert re.search(r"^GPU fragmentation: \d+\.\d%, the share of all GPU capacity that is free but", text, re.M)
    assert '<p class="soft">GPU fragmentation is the share of all GPU capacity' in page.read_text()


def test_never_fitting_pods_are_a_fault_of_the_request(tmp_path: Path) -> None:
    text = run("look", "-f", cluster_file(tmp_path, [node("n"), pod("p", cpu="64")])).stdout
    assert "Pod default/p: The cluster cannot run the pending pods as requested, not even without other pods" in text


def test_dump_is_read_from_standard_input() -> None:
    objects = [node("n"), pod("p", cpu="64")]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    assert "[PodNeverFits] Pod default/p" in run("look", "-f", "-", stdin=text).stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-f", "absent.yaml"), "FileUnreadable"),
        (("-f", "pods.json"), "ClusterWithoutNodes"),
        (("-f", "pods.json", "--context", "prod"), "OptionInvalid"),
        (("--kubeconfig", "absent"), "KubeconfigMissing"),
        (("-f", "cluster.json", "--policy", "nonsense"), "PolicyUnknown"),
        (("-f", "cluster.json", "--registry", "https://x/"), "OptionInvalid"),
    ],
)
def test_invalid_input_has_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster_file(tmp_path, [node("n")])
    (tmp_path / "pods.json").write_text(json.dumps(pod("p")))
    result = run("look", *arguments)
    assert (result.exit_code, f"[{code}]" in result.stderr) == (2, True)


class _Tags(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_page_is_one_file_that_escapes_hostile_text(tmp_path: Path) -> None:
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": HOSTILE}
    objects = [node("n"), pod("p", on="n", status=status), pod("large", cpu="64")]
    page = tmp_path / "report.html"
    path = cluster_file(tmp_path, objects)
    result = run("look", "-f", path, "--html", page)
    assert result.exit_code == 1
    tags = _Tags()
    tags.feed(page.read_text())
    assert {"script", "img", "link", "iframe"} & set(tags.tags) == set()
    assert {"src", "href", "onerror", "style"} & tags.attributes == set()
    assert '<script>alert("x")</script>' in tags.text
    assert "prefers-color-scheme: dark" in page.read_text()
    assert "http" not in page.read_text().replace("https://", "http")
    assert "\x1b" not in result.stdout
    assert "[bold]" in result.stdout


def test_cluster_is_read_by_the_kubeconfig_of_the_environment(tmp_path: Path) -> None:
    with serving(seeded_cluster("kubelets", 0, faults=True).objects) as server:
        server.denied["/apis/storage.k8s.io/v1/csinodes"] = 403
        config = tmp_path / "config"
        config.write_text(json.dumps(server.kubeconfig({"token": "canary-1d2e"})))
        result = run("look", "-o", "json", env={"KUBECONFIG": str(config)})
        assert {call.method for call in server.calls} == {"GET"}
    made: dict[str, Any] = document(result)
    expected = seeded_cluster("kubelets", 0, faults=True).expected
    assert {(one["code"], one["kind"], one["name"]) for one in made["findings"]} == expected
    assert made["unchecked"] == [{"part": "csinodes.storage.k8s.io", "reason": "the user may not list this kind"}]
    assert (result.exit_code, "canary" in result.output) == (1, False)


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "renew the token"), (403, "permission to list nodes and pods"), (500, "internal or temporary error")],
)
def test_api_server_that_denies_nodes_has_exit_code_3(tmp_path: Path, status: int, hint: str) -> None:
    config = tmp_path / "config"
    with serving([]) as server:
        server.denied[NODES.path()] = status
        config.write_text(json.dumps(server.kubeconfig({"token": "canary-1d2e"})))
        result = run("look", "--kubeconfig", config)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"error [ApiServerFailed] API server: {status} " in result.stderr
    assert hint in " ".join(result.stderr.split())


def test_unreachable_api_server_is_not_reported_as_a_missing_permission(tmp_path: Path) -> None:
    config = tmp_path / "config"
    with serving([]) as server:
        config.write_text(json.dumps(server.kubeconfig({"token": "canary-1d2e"})))
    result = run("look", "--kubeconfig", config)  # the server has stopped
    said = " ".join(result.stderr.split())
    assert (result.exit_code, result.stdout, "Unreachable" in said) == (3, "", True)
    assert "Check the server address" in said
    assert "permission" not in said


def test_report_is_printed_if_the_page_cannot_be_written(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, [node("n")])
    result = run("look", "-f", path, "--html", tmp_path / "absent" / "report.html")
    assert result.stdout.startswith("0 errors, 0 warnings, 0 notes")
    said = " ".join(result.stderr.split())
    assert (result.exit_code, "[FileUnusable] --html" in said, "No such file" in said) == (2, True, True)


def test_program_is_a_plugin_of_kubectl(tmp_path: Path) -> None:
    """kubectl runs the script `kubectl-hetsched` of the package as `kubectl hetsched`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-hetsched"] == scripts["hetsched"] == "hetsched.cli.__main__:main"
    code = "import sys; sys.argv[0] = 'kubectl-hetsched'; from hetsched.cli.__main__ import main; main()"
    program = [sys.executable, "-c", code, "look"]
    path = cluster_file(tmp_path, [node("n")])
    made = subprocess.run([*program, "-f", path], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("0 errors, 0 warnings, 0 notes")
    help_text = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "Usage: kubectl hetsched look" in help_text


def test_unknown_image_platforms_name_the_option_that_reads_them(tmp_path: Path) -> None:
    objects = [node("x", isa="x86-64-v3"), node("r", arch="riscv64", isa="rv64gc"), pod("web", on="x")]
    printed = run("look", "-f", cluster_file(tmp_path, objects)).stdout
    assert "not checked: image platforms" in printed
    assert "--registry HOST" in printed
