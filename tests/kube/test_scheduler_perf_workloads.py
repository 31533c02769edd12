"""`hetsched bench cluster --suite scheduler-perf` runs workloads on both schedulers and leaves no objects behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from hetsched.cli.bench.cluster_objects import labelled_names
from tests.kube.control_plane import VERSION, ControlPlane
from tests.parts import require, require_module
from tests.system.processes import ROOT, plain_environment, python

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver", "kube-scheduler"), pytest.mark.timeout(300)]


def test_workload_runs_on_both_schedulers(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    module = require_module("k8s.io/kubernetes", VERSION)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    words = ["bench", "cluster", "--suite", "scheduler-perf", "--size", "5Nodes", "-o", "json"]
    words += ["--only", "SchedulingBasic", "--only", "SchedulingCSIPVs"]
    words += ["--kubeconfig", str(kubeconfig), "--kube-scheduler", str(require("kube-scheduler"))]
    command = python("-m", "hetsched.cli", *words)
    environment = {**plain_environment(), "GOMODCACHE": str(module.parents[1])}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["checks"] == {"compared": 20, "different": 0}
    assert "SchedulingBasic/5Nodes: hetsched / kube-scheduler: " in done.stderr  # printed when the workload is finished
    units = {row["case"]: row["unit"] for row in found["rows"]}
    for suffix, unit in (("hetsched", "pods/s"), ("kube-scheduler", "pods/s"), ("hetsched / kube-scheduler", "ratio")):
        assert units[f"SchedulingBasic/5Nodes: {suffix}"] == unit
    (skipped,) = found["machine"]["skipped"]
    assert skipped["case"] == "SchedulingCSIPVs/5Nodes"
    assert "is not supported" in skipped["reason"]
    assert [api.list_all(kind)[0] for kind in (NODES, PODS)] == [[], []]
    assert [labelled_names(api, kind) for kind in (NAMESPACES, PRIORITY_CLASSES)] == [[], []]
