"""The steps of the pipelines in `docs/examples/ci`, verbatim, in a shell, against a real server.

This includes the program of `docs/reference/python-client.md`, all its parts in order. The scripts are parsed from the
files by their own formats. The environment has the variables and secrets that a CI system would set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.system.plane import Plane, embedded
from tests.system.processes import ROOT, accepts, free_port, wait_until

EXAMPLES = ROOT / "docs" / "examples" / "ci"
pytestmark = pytest.mark.timeout(180)


def _github(name: str) -> list[str]:
    jobs = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())["jobs"]
    return [step["run"] for step in jobs[name]["steps"] if "run" in step]


def _gitlab(name: str) -> list[str]:
    scripts: list[str] = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())[name]["script"]
    return scripts


def _tekton(name: str) -> list[str]:
    tasks = {task["metadata"]["name"]: task for task in yaml.safe_load_all((EXAMPLES / "tekton.yaml").read_text())}
    return [step["script"] for step in tasks[f"hetsched-{name}"]["spec"]["steps"]]


def _argo(name: str) -> list[str]:
    templates = yaml.safe_load((EXAMPLES / "argo-workflow.yaml").read_text())["spec"]["templates"]
    return [template["script"]["source"] for template in templates if template["name"] == name]


SYSTEMS = {"github": _github, "gitlab": _gitlab, "tekton": _tekton, "argo": _argo}


class Pipelines:
    """A server with the demo cluster, a submitter's token for the namespace `ci`, and shells to run scripts in."""

    def __init__(self, plane: Plane) -> None:
        plane.run("-m", "django", "prepare", "--demo")
        port = free_port()
        where = ("--host", "127.0.0.1", "--port", str(port), "--lifespan", "off", "--no-access-log")
        web = plane.start("web", "-m", "uvicorn", "hetsched.project.asgi:application", *where)
        plane.start_worker()
        asked = ("token", "create", "--role", "submitter", "--namespace", "ci", "-o", "json")
        made = plane.run("-m", "hetsched.cli", *asked)
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HETSCHED_SERVER": f"http://127.0.0.1:{port}",
            "HETSCHED_TOKEN": json.loads(made)["token"],
            "MANIFEST": "job.yaml",
        }
        wait_until(lambda: accepts(port) or not web.running, what="the web server", seconds=180)
        assert web.running, web.said()

    def run(self, scripts: list[str], folder: Path, pipeline: str) -> subprocess.CompletedProcess[str]:
        """Run a job's steps in turn, each in a shell of its own, until one fails."""
        ids = {
            "GITHUB_REPOSITORY": "team/project", "GITHUB_RUN_ID": pipeline, "CI_PROJECT_ID": "7",
            "CI_PIPELINE_ID": pipeline, "KEY": pipeline, "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        }  # fmt: skip
        done: subprocess.CompletedProcess[str] | None = None
        for script in scripts:
            written = script.replace("{{workflow.uid}}", pipeline)  # Argo substitutes this before it starts the pod
            done = subprocess.run(
                ["sh", "-e", "-c", written], cwd=folder, env=self.environment | ids, capture_output=True, text=True
            )
            if done.returncode:
                return done
        assert done is not None
        return done


@pytest.fixture(scope="module")
def pipelines() -> Iterator[Pipelines]:
    with embedded() as plane:
        yield Pipelines(plane)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLES / "job.yaml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("system", SYSTEMS)
def test_valid_change_passes_and_runs_once(system: str, pipelines: Pipelines, project: Path) -> None:
    steps: Callable[[str], list[str]] = SYSTEMS[system]
    job = project / "job.yaml"
    job.write_text(job.read_text().replace("unit-tests", f"tests-of-{system}"))  # names are unique in a cluster
    checked = pipelines.run(steps("check"), project, f"{system}-1")
    assert checked.returncode == 0, checked.stderr
    first = pipelines.run(steps("run"), project, f"{system}-1")
    again = pipelines.run(steps("run"), project, f"{system}-1")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout.split()[0] == again.stdout.split()[0]  # the ID: no second workload was created


@pytest.mark.parametrize("system", SYSTEMS)
def test_change_that_never_fits_fails_with_a_report(system: str, pipelines: Pipelines, project: Path) -> None:
    job = project / "job.yaml"
    job.write_text(job.read_text().replace("cpu: 500m", 'cpu: "500"'))  # the largest node has 192
    stopped = pipelines.run(SYSTEMS[system]("check"), project, f"{system}-2")
    assert stopped.returncode == 11, stopped.stderr
    assert "NeverFits" in stopped.stdout
    report = Path("/tmp/check.xml") if system == "argo" else project / "check.xml"
    assert ElementTree.parse(report).find(".//failure[@type='NeverFits']") is not None


def test_github_shows_the_reason_of_a_stopped_pipeline(pipelines: Pipelines, project: Path) -> None:
    job = project / "job.yaml"
    job.write_text(job.read_text().replace("x86-64-v2", "x86-64-v9"))
    check, report = _github("check")
    assert pipelines.run([check], project, "3").returncode == 12
    assert pipelines.run([report], project, "3").returncode == 0
    assert "misconfigured" in (project / "summary.md").read_text()
    results: list[dict[str, Any]] = json.loads((project / "check.sarif").read_text())["runs"][0]["results"]
    assert {result["level"] for result in results} == {"error"}


def test_client_page_runs_unchanged(pipelines: Pipelines, project: Path) -> None:
    page = (ROOT / "docs" / "reference" / "python-client.md").read_text()
    parts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (project / "page.py").write_text("\n".join(parts))
    done = pipelines.run([f"{sys.executable} page.py"], project, "4")
    assert done.returncode == 0, done.stderr
    reached, refused, planned, workload, never, *fits = done.stdout.splitlines()
    assert reached.startswith("reached [('ci/hello', '")
    assert refused.startswith("422 IdempotencyKeyReused")
    assert "ci/planned" in planned
    assert workload.startswith("w-")
    assert "ci/huge never fits" in never
    assert all(line.startswith("it would fit with cpu 5000 -> ") for line in fits)
    assert fits


def test_submitter_token_allows_plan_hold_and_batch(pipelines: Pipelines, project: Path) -> None:
    job = project / "job.yaml"
    job.write_text(job.read_text().replace("unit-tests", "by-hand"))
    (project / "jobs").mkdir()
    for name in ("one", "two"):
        (project / "jobs" / f"{name}.yaml").write_text(job.read_text().replace("by-hand", name))
    steps = [
        "hetsched plan -f job.yaml --out job.plan",
        "hetsched submit -f job.yaml --plan job.plan --wait",
        'HOLD=$(hetsched hold create -f jobs/one.yaml --for 5m -o json | grep -o "h-[0-9a-z]*" | head -1)\n'
        'hetsched hold extend "$HOLD" --for 10m\n'
        'hetsched hold cancel "$HOLD"',
        'hetsched batch -f jobs/ --idempotency-key "$CI_PIPELINE_ID" --wait',
    ]
    done = pipelines.run(steps, project, "5")
    assert done.returncode == 0, done.stdout + done.stderr
