"""`hetsched bench cluster --suite scheduler-perf`: workloads of scheduler_perf on hetsched and on kube-scheduler.

The configurations are read from the source of Kubernetes, and both schedulers run each workload on the same API server,
in turns. Each run starts a new scheduler process with an empty working folder, and ends with the deletion of all
objects. Rows have the names `<test case>/<workload>: <scheduler>`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.contracts.errors import InputError
from hetsched.lab.bench.measure import BenchmarkRow, Checks, Progress, Scenario, machine, row

from ..cluster_objects import require_empty
from ..databases import facts_of
from ..rivals import hetsched, kube_scheduler
from .configuration import PerfWorkload, Skipped, Unsupported, read
from .execution import Measurement, measure
from .feature_gates import gates_in_effect, scheduler_arguments

OURS, THEIRS = "hetsched", "kube-scheduler"
RATIO = f"{OURS} / {THEIRS}"
_MODULE = "k8s.io"
_IN_MODULE = Path("test/integration/scheduler_perf")
_NODE_FACTS = "labels kubernetes.io/hostname, arch and os, a Ready condition, allocatable equal to capacity"


def find_configurations() -> Path:
    """Return the folder of scheduler_perf in the newest k8s.io/kubernetes of Go's module cache.

    Raises: InputError `ConfigurationMissing`.
    """
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    cache = os.environ.get("GOMODCACHE", "")
    if not cache and go:
        cache = subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=False).stdout.strip()
    found = [path / _IN_MODULE for path in (Path(cache) / _MODULE).glob("kubernetes@v*")] if cache else []
    found = [path for path in found if path.is_dir()]
    if not found:
        reason = f"no k8s.io/kubernetes in Go's module cache {cache}" if cache else "Go's module cache is unknown"
        hint = "Use --scheduler-perf FOLDER, or `go mod download k8s.io/kubernetes@VERSION`"
        raise InputError("ConfigurationMissing", reason, place="--scheduler-perf", hint=hint)
    return max(found, key=lambda path: [int(one) for one in re.findall(r"\d+", path.parents[2].name)])


def run(
    kubeconfig: dict[str, Any],
    *,
    configurations: Path,
    sizes: Sequence[str],
    only: Sequence[str] = (),
    program: Path,
    database: str = "",
    turns: int = 1,
    backlog: bool = False,
    progress: Progress | None = None,
    on_rows: Callable[[Sequence[BenchmarkRow]], None] = lambda rows: None,
) -> Scenario:
    """Measure both schedulers, in turns, with the workloads named in `sizes`; `program` is kube-scheduler.

    `database` is the URL of a PostgreSQL server for hetsched, empty for SQLite. With `backlog`, the measured pods are
    created while the scheduler is suspended.
    `on_rows` receives the rows of each workload when it is finished, so that an interrupted run keeps them.
    Raises: InputError `ClusterInUse`, `ConfigurationMissing`, `UnknownTestCase`, `NoWorkload`; ApiFailure.
    """
    workloads, skipped = read(configurations, sizes=sizes, only=only)
    if not workloads:
        hint = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:3])
        raise InputError("NoWorkload", "no test case has a supported workload of this size", place="--size", hint=hint)
    api = Api(from_kubeconfig(kubeconfig), agent="hetsched-bench")
    require_empty(api)
    in_effect = gates_in_effect(api)
    notify = progress or (lambda *_: None)
    rows: list[BenchmarkRow] = []
    failed: list[dict[str, Any]] = []
    measured = missing = 0
    with tempfile.TemporaryDirectory(prefix="hetsched-bench-") as name:
        path = Path(name) / "kubeconfig"
        path.touch(0o600)
        path.write_text(json.dumps(kubeconfig))
        for number, workload in enumerate(workloads):
            try:
                arguments = scheduler_arguments(workload.gates, in_effect)
            except Unsupported as error:
                skipped.append(Skipped(workload.name, str(error)))
                continue
            rivals = (hetsched(database), kube_scheduler(program, arguments=arguments))
            found: dict[str, list[Measurement]] = {rival.case: [] for rival in rivals}
            for turn in range(2 * turns):
                notify(2 * turns * number + turn, 2 * turns * len(workloads))
                rival = rivals[turn % 2]
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    one = measure(api, rival, path, Path(folder), workload, backlog=backlog)
                found[rival.case].append(one)
                measured += len(one.waited) + one.missing
                missing += one.missing
                if one.missing:
                    case = f"{workload.name}: {rival.case}"
                    failed.append({"case": case, "missing": one.missing, "reason": one.reason})
            finished = _rows(workload, found)
            on_rows(finished)
            rows += finished
    facts = {
        **machine(), **facts_of(database), "turns": turns, "configurations": str(configurations), "nodes": _NODE_FACTS,
        "measured pods": "created while the scheduler is suspended" if backlog else "created while it runs",
        "failed": failed, "skipped": [{"case": one.name, "reason": one.reason} for one in skipped],
    }  # fmt: skip
    return Scenario("cluster", tuple(rows), facts, Checks(measured, missing))


def _rows(workload: PerfWorkload, found: dict[str, list[Measurement]]) -> list[BenchmarkRow]:
    """Return the rows of one workload: throughput and its ratio for each pair of turns, creation rate, and times."""
    rows = []
    for case, measurements in found.items():
        if rates := [one.rate for one in measurements if one.rate]:
            rows.append(row(f"{workload.name}: {case}", "pods/s", rates))
    pairs = zip(found[OURS], found[THEIRS], strict=True)
    if ratios := [ours.rate / theirs.rate for ours, theirs in pairs if ours.rate and theirs.rate]:
        rows.append(row(f"{workload.name}: {RATIO}", "ratio", ratios))
    for case, measurements in found.items():
        known = [one for one in measurements if one.waited]
        if not known:
            continue
        rows.append(row(f"{workload.name}: {case}, created", "pods/s", [one.created for one in known]))
        for share in (50, 99):
            waited = [one.waited[int(share / 100 * (len(one.waited) - 1))] for one in known]
            rows.append(row(f"{workload.name}: {case}, created to bound, p{share}", "ms", waited))
    return rows
