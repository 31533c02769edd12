"""`hetsched bench cluster` measures both schedulers on one API server and leaves no objects behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS
from tests.kube.control_plane import ControlPlane, find
from tests.kube.scene import make_node
from tests.system.databases import postgres
from tests.system.processes import ROOT, plain_environment, python

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.timeout(300)]


def bench(plane: ControlPlane, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    program = find("kube-scheduler") or pytest.skip("kube-scheduler is not there")
    peers = ("--kubeconfig", kubeconfig, "--kube-scheduler", program)
    words = ("bench", "cluster", "--quick", "-o", "json", *peers, *options)
    command = python("-m", "hetsched.cli", *map(str, words))
    return subprocess.run(command, env=plain_environment(), cwd=ROOT, capture_output=True, text=True)


def test_every_pod_is_bound_by_both_schedulers(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    done = bench(plane, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    # two kinds of load with 40 pods each, for four schedulers
    assert found["checks"] == {"compared": 320, "different": 0}
    ratios = {row["case"]: row["n"] for row in found["rows"] if row["unit"] == "ratio"}
    names = ("hetsched / kube-scheduler", "hetsched / kube-scheduler, every node scored", "hetsched / bindings only")
    assert ratios == {name + suffix: 1 for name in names for suffix in ("", ", created to bound", ", p99")}
    assert (api.list_all(NODES)[0], api.list_all(PODS)[0]) == ([], [])


@pytest.mark.needs("postgres")
def test_every_pod_is_bound_with_postgresql(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    with postgres() as server:
        done = bench(plane, tmp_path, "--database", server.url)
        with server.connect() as connection:
            left = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'hetsched_bench%'").fetchall()
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["database"].startswith("PostgreSQL")
    assert found["checks"] == {"compared": 320, "different": 0}
    cases = {row["case"] for row in found["rows"]}
    assert {f"hetsched: {part}, CPU of postgres" for part in ("backlog", "steady")} <= cases
    assert left == []


def test_cluster_in_use_is_not_benchmarked(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    make_node(api, "n1")
    done = bench(plane, tmp_path)
    assert done.returncode == 2
    assert "ClusterInUse" in done.stderr
