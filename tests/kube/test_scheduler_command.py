"""`hetsched scheduler` for an operator: a kubeconfig and one command give pods nodes; Ctrl-C stops all processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.journal.heartbeat import WATCH_IDLE
from tests.system.processes import ROOT, Process, children_of, plain_environment, python, wait_until

from .control_plane import ControlPlane
from .scene import make_node, make_pod, pod_of

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.timeout(300)]


@contextlib.contextmanager
def scheduler(data: Path, *words: str | Path) -> Iterator[Process]:
    """Run the command without its console."""
    command = python("-m", "hetsched.cli", "scheduler", "--no-web", "--data", str(data), *map(str, words))
    run = Process(command, env=plain_environment(), log=data.parent / f"{data.name}.log", cwd=ROOT)
    try:
        yield run
    finally:
        below = children_of(run.popen.pid)
        run.stop(signal.SIGINT)
        for pid in set(below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def logs(data: Path) -> str:
    return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in data.glob("logs/*.log"))


@pytest.fixture
def kubeconfig(plane: ControlPlane, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(plane.kubeconfig()))
    return path


def test_pods_get_nodes_and_all_processes_stop(api: Api, plane: ControlPlane, kubeconfig: Path) -> None:
    data = kubeconfig.parent / "data"
    make_node(api, "n1")
    make_pod(api, "first")
    with scheduler(data, "--kubeconfig", kubeconfig) as run:
        wait_until(lambda: "is running" in run.said() or not run.running, what=run.said, seconds=120)
        assert run.running, run.said() + logs(data)
        wait_until(lambda: pod_of(api, "first")["spec"].get("nodeName"), what=lambda: run.said() + logs(data))
        assert (data / "pulse" / WATCH_IDLE).exists()  # the workers did not wait for the time limit
        assert run.stop(signal.SIGINT) == 0
        assert not children_of(run.popen.pid)
    kept = [file for file in data.rglob("*") if file.is_file()]
    assert [file for file in kept if plane.token.encode() in file.read_bytes()] == []
    # The cluster is stored: no kubeconfig is needed any more.
    make_pod(api, "second")
    with scheduler(data) as run:
        wait_until(lambda: pod_of(api, "second")["spec"].get("nodeName"), what=run.said, seconds=120)


@pytest.mark.parametrize(
    "words",
    [
        ["--extender"], ["--context", "x"], ["--namespace", "x"], ["--kubeconfig", "/nowhere/at/all"],
        ["--shadow", "default-scheduler"], ["--in-cluster", "--shadow", "default-scheduler", "--no-shadow"],
    ],
)  # fmt: skip
def test_errors_are_reported_before_the_start(tmp_path: Path, words: list[str]) -> None:
    with scheduler(tmp_path / "data", *words) as run:
        assert run.popen.wait(60) == 2
        assert not (tmp_path / "data").exists()


def test_outside_a_cluster_in_cluster_is_refused(tmp_path: Path) -> None:
    with scheduler(tmp_path / "data", "--in-cluster") as run:
        assert run.popen.wait(60) == 2
        assert "NotInCluster" in run.said()
