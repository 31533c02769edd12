"""The CI commands against the whole product on a real API server: every result of a run.

Real here: every process of the product, the API server, the command in its own shell. Not here: kubelets; a pod's label
sets its result.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import RUNS, BoundPod, Kubelet, PodOutcome, ends
from tests.kube.live import PACE, connected, start_watch
from tests.kube.scene import empty_cluster, make_node
from tests.system.plane import Plane
from tests.system.processes import accepts, free_port, plain_environment, python, wait_until

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"), pytest.mark.timeout(600)]
OUTCOMES = {"runs": RUNS, "ends": ends(seconds=0.5), "fails": ends(7, reason="Error", seconds=0.5)}
PATIENCE = ("--timeout", "180")


def outcome_of(pod: BoundPod) -> PodOutcome:
    return OUTCOMES[pod.labels["outcome"]]


class Pipeline:
    """A submitter's token for the namespace default, and the command in an otherwise empty environment."""

    def __init__(self, ours: Plane, api: Api) -> None:
        port = free_port()
        where = ("--host", "127.0.0.1", "--port", str(port), "--lifespan", "off", "--no-access-log")
        web = ours.start("web", "-m", "uvicorn", "hetsched.project.asgi:application", *where)
        start_watch(ours)
        ours.start_worker()
        ours.start_beat()
        asked = ("token", "create", "--role", "submitter", "--namespace", "default", "-o", "json")
        token = json.loads(ours.run("-m", "hetsched.cli", *asked))["token"]
        self.api, self.folder = api, ours.folder
        self.environment = plain_environment() | {
            "HETSCHED_SERVER": f"http://127.0.0.1:{port}", "HETSCHED_TOKEN": token, "HOME": str(ours.folder),
        }  # fmt: skip
        wait_until(lambda: accepts(port) or not web.running, what="the web server", seconds=180)
        assert web.running, web.said()

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = python("-m", "hetsched.cli", *map(str, words))
        return subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)

    def manifest(self, name: str, outcome: str) -> Path:
        requests = "{requests: {cpu: 100m, memory: 16Mi}}"
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{outcome: {outcome}}}}}\n"
            f"spec: {{restartPolicy: Never, containers: [{{name: main, image: busybox, resources: {requests}}}]}}\n"
        )
        return path

    def submitted(self, name: str, outcome: str, *words: str) -> dict[str, Any]:
        """Submit a pod and return the response."""
        done = self("submit", "-f", self.manifest(name, outcome), "-o", "json", *words)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def there(self, name: str) -> list[str]:
        """Return the pods on the API server that were created from this one."""
        names = [json.loads(item)["metadata"]["name"] for item in self.api.list_all(PODS)[0]]
        return [item for item in names if item.startswith(f"{name}-")]


@pytest.fixture(scope="module")
def pipeline(plane: ControlPlane) -> Iterator[Pipeline]:
    api = empty_cluster(plane)
    with connected(plane, **PACE) as ours, Kubelet(api, outcome_of):
        kubeconfig = ours.folder / "kubeconfig"
        ours.run("-m", "django", "connect", "live", f"--kubeconfig={kubeconfig}", "--namespace=default")
        make_node(api, "n1")
        yield Pipeline(ours, api)


def test_wait_for_running_and_success_exits_0(pipeline: Pipeline) -> None:
    workload = pipeline.submitted("good", "ends")["id"]
    running = pipeline("wait", workload, "--for", "running", *PATIENCE)
    assert running.returncode == 0, running.stderr
    finished = pipeline("wait", workload, "--for", "finished", *PATIENCE, "-o", "json")
    assert (finished.returncode, json.loads(finished.stdout)["state"]) == (0, "succeeded")


def test_failed_run_exits_14_with_its_reason(pipeline: Pipeline) -> None:
    manifest = pipeline.manifest("bad", "fails")
    done = pipeline("submit", "-f", manifest, "--for", "finished", "--watch", *PATIENCE)
    assert done.returncode == 14, done.stderr
    assert "main" in done.stdout
    assert "exit code 7" in done.stdout
    assert "-> failed" in done.stderr


def test_timeout_exits_13_and_the_run_continues(pipeline: Pipeline) -> None:
    workload = pipeline.submitted("long", "runs")["id"]
    assert pipeline("wait", workload, "--for", "running", *PATIENCE).returncode == 0
    late = pipeline("wait", workload, "--for", "finished", "--timeout", "1")
    assert late.returncode == 13, late.stderr
    assert len(pipeline.there("long")) == 1


def test_cancelled_workload_is_deleted_and_wait_exits_14(pipeline: Pipeline) -> None:
    workload = pipeline.submitted("gone", "runs")["id"]
    assert pipeline("wait", workload, "--for", "running", *PATIENCE).returncode == 0
    assert len(pipeline.there("gone")) == 1
    done = pipeline("cancel", workload, "--reason", "superseded", "--wait", *PATIENCE, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (0, "cancelled"), done.stderr
    assert pipeline.there("gone") == []
    assert pipeline("wait", workload, "--for", "finished").returncode == 14


def test_repeated_key_creates_one_set_of_objects(pipeline: Pipeline) -> None:
    first = pipeline.submitted("once", "runs", "--idempotency-key", "build-42")
    again = pipeline.submitted("once", "runs", "--idempotency-key", "build-42")
    assert again == first
    assert pipeline("wait", first["id"], "--for", "running", *PATIENCE).returncode == 0
    third = pipeline.submitted("once", "runs", "--idempotency-key", "build-42")
    assert third["id"] == first["id"]
    # Once a later submission runs, a duplicate of the first one would exist too.
    later = pipeline.submitted("later", "runs")["id"]
    assert pipeline("wait", later, "--for", "running", *PATIENCE).returncode == 0
    assert len(pipeline.there("once")) == 1
    other = pipeline("submit", "-f", pipeline.manifest("once", "ends"), "--idempotency-key", "build-42")
    assert other.returncode == 2
    assert "IdempotencyKeyReused" in other.stderr


def test_misconfigured_workload_has_its_own_exit_code(pipeline: Pipeline, tmp_path: Path) -> None:
    never = tmp_path / "never.yaml"
    never.write_text(pipeline.manifest("never", "runs").read_text().replace("cpu: 100m", 'cpu: "500"'))
    assert pipeline("submit", "-f", never, "--wait", *PATIENCE).returncode == 11
    wrong = tmp_path / "wrong.yaml"
    labels = "annotations: {hetsched.io/isa: rv64gq_zzz}, labels"
    wrong.write_text(pipeline.manifest("wrong", "runs").read_text().replace("labels", labels))
    assert pipeline("submit", "-f", wrong, "--wait", *PATIENCE).returncode == 12
    assert pipeline("submit", "-f", tmp_path / "none.yaml").returncode == 2
    assert pipeline("get", "nodes", "--token", "hs_wrong").returncode == 3
    assert pipeline("get", "nodes", "--server", "http://127.0.0.1:9").returncode == 3


def test_run_without_capacity_exits_10_and_a_longer_wait_succeeds(pipeline: Pipeline) -> None:
    """On a node of 8 CPUs, two pods of 5 CPUs cannot run at the same time."""
    texts = [pipeline.manifest(name, "runs").read_text().replace("cpu: 100m", "cpu: 5") for name in ("big", "bigger")]
    files = [pipeline.folder / f"{at}.yaml" for at in range(2)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    first = pipeline("submit", "-f", files[0], "--for", "running", *PATIENCE, "-o", "json")
    assert first.returncode == 0, first.stderr
    second = pipeline("submit", "-f", files[1], "--wait", *PATIENCE, "-o", "json")
    assert second.returncode == 10, second.stderr
    workload = json.loads(second.stdout)["id"]
    waiting = subprocess.Popen(
        python("-m", "hetsched.cli", "wait", workload, "--for", "running", "--patient", *PATIENCE),
        env=pipeline.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert pipeline("cancel", json.loads(first.stdout)["id"], "--wait", *PATIENCE).returncode == 0
    out, error = waiting.communicate(timeout=200)
    assert waiting.returncode == 0, out + error
