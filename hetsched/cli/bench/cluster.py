"""`hetsched bench cluster`: measure hetsched and kube-scheduler, one after the other, on one API server.

Both get the same nodes and the same pods: first a backlog that is pending when the scheduler starts, then, after the
scheduler has settled, pods that arrive at a steady rate. With several turns (A B A B), a row contains the median and
the spread of the turns, and each pair of turns yields one ratio. A pod is bound when a watch shows its node; its time
is measured from before its creation request. Schedulers run as separate processes, as an operator would start them. A
scheduler that only binds shows the limit of API server, etcd and client on this machine. CPU time is reported per
program, including the API server and PostgreSQL if they run on this machine. Only an API server without nodes is
accepted, and all created objects are deleted.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.lab.bench.measure import BenchmarkRow, Checks, Progress, Scenario, machine, row
from hetsched.lab.bench.processes import cpu_of, used_seconds

from .cluster_objects import AT_ONCE, LABEL, PodWatch, delete_labelled, require_empty
from .databases import facts_of
from .rivals import Rival, binding_only, hetsched, kube_scheduler, run_scheduler, wait_until_idle

RATE_PER_SECOND = 100
_ZONES = 3
_MIN_REPORTED_MS = 0.005
# The cases whose ratios are reported, and the names of these ratios.
_COMPARED = {": backlog": "", ": created to bound": ", created to bound", ": created to bound, p99": ", p99"}


def run(
    kubeconfig: dict[str, Any],
    *,
    nodes: int,
    pods: int,
    program: Path,
    database: str = "",
    turns: int = 1,
    progress: Progress | None = None,
) -> Scenario:
    """Measure hetsched and kube-scheduler (`program`) alternately, kube-scheduler also with every node scored.

    The last rival only binds.

    `database` is the URL of a PostgreSQL server for hetsched, empty for SQLite.
    Raises: InputError `ClusterInUse`; ApiFailure.
    """
    api = Api(from_kubeconfig(kubeconfig), agent="hetsched-bench")
    require_empty(api)
    notify = progress or (lambda *_: None)
    rivals = [
        hetsched(database),
        kube_scheduler(program),
        kube_scheduler(program, case="kube-scheduler, every node scored", percentage=100),
        binding_only(),
    ]
    found: dict[str, list[list[BenchmarkRow]]] = {rival.case: [] for rival in rivals}
    missing = 0
    with tempfile.TemporaryDirectory(prefix="hetsched-bench-") as folder, _fleet(api, nodes):
        path = Path(folder) / "kubeconfig"
        path.touch(0o600)
        path.write_text(json.dumps(kubeconfig))
        for number, rival in enumerate(rivals * turns):
            notify(number, len(rivals) * turns)
            own = Path(folder) / str(number)  # each run starts without stored data, as kube-scheduler does
            own.mkdir()
            rows, lost = _measure(api, rival, path, own, pods)
            found[rival.case].append(rows)
            missing += lost
    rows = [one for rival in rivals for one in _together(found[rival.case])]
    rows += [
        ratio
        for rival in rivals[1:]
        for ratio in _ratios(rivals[0].case, rival.case, found[rivals[0].case], found[rival.case])
    ]
    facts = {**machine(), **facts_of(database), "nodes": nodes, "pods": pods, "turns": turns}
    return Scenario("cluster", tuple(rows), facts, Checks(len(rivals) * 2 * pods * turns, missing))


def _together(turns: Sequence[Sequence[BenchmarkRow]]) -> list[BenchmarkRow]:
    """Merge the rows of one scheduler; with several turns, the values of a merged row are the medians of the turns."""
    if len(turns) == 1:
        return list(turns[0])
    values: dict[tuple[str, str], list[float]] = {}
    for rows in turns:
        for one in rows:
            values.setdefault((one.case, one.unit), []).append(one.median)
    return [row(case, unit, found) for (case, unit), found in values.items()]


def _ratios(
    ours: str, theirs: str, mine: Sequence[Sequence[BenchmarkRow]], others: Sequence[Sequence[BenchmarkRow]]
) -> list[BenchmarkRow]:
    """Return the ratios `ours` / `theirs` of each pair of turns: backlog rate, and times from creation to binding."""
    found: dict[str, list[float]] = {}
    for left, right in zip(mine, others, strict=True):
        known = {one.case.removeprefix(theirs): one.median for one in right}
        for one in left:
            case = one.case.removeprefix(ours)
            if case in _COMPARED and known.get(case):
                found.setdefault(_COMPARED[case], []).append(one.median / known[case])
    return [row(f"{ours} / {theirs}{suffix}", "ratio", values) for suffix, values in found.items()]


def _measure(api: Api, rival: Rival, kubeconfig: Path, folder: Path, pods: int) -> tuple[list[BenchmarkRow], int]:
    """Return the result rows of one scheduler, and the number of pods that it did not bind."""
    (cluster,) = json.loads(kubeconfig.read_text())["clusters"]
    port = urlsplit(cluster["cluster"]["server"]).port or 443
    with PodWatch(api) as watch:
        _create(api, rival, "backlog", range(pods))
        with run_scheduler(rival, kubeconfig, folder) as (process, roots):
            watch.wait_for_count(1)  # the start of the scheduler is not measured
            used = [cpu_of(*roots, api_port=port)]
            watch.wait_for_count(pods)
            times = sorted(watch.bound.values())
            rate = (len(times) - 1) / max(times[-1] - times[0], 1e-3) if times else 0.0
            wait_until_idle(process.pid)
            used.append(cpu_of(*roots, api_port=port))
            sent = _create(api, rival, "steady", range(pods), per_second=RATE_PER_SECOND)
            watch.wait_for_count(2 * pods)
            used.append(cpu_of(*roots, api_port=port))
        waited = [1000 * (watch.bound[name] - at) for name, at in sent.items() if name in watch.bound]
        missing = 2 * pods - len(watch.bound)
    delete_labelled(api, PODS)
    rows = [row(f"{rival.case}: backlog", "pods/s", [rate])]
    if waited:
        waited.sort()
        rows.append(row(f"{rival.case}: created to bound", "ms", waited, tail=True))
        rows.append(row(f"{rival.case}: created to bound, p99", "ms", [waited[int(0.99 * (len(waited) - 1))]]))
    for part, before, after in zip(("backlog", "steady"), used, used[1:], strict=False):
        for program, seconds in used_seconds(before, after).items():
            if 1000 * seconds / pods >= _MIN_REPORTED_MS:
                rows.append(row(f"{rival.case}: {part}, CPU of {program}", "ms/pod", [1000 * seconds / pods]))
    return rows, missing


# -- objects -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _fleet(api: Api, count: int) -> Iterator[None]:
    """Create nodes with 32 CPUs in three zones; at the end of the `with` block, delete all nodes and pods."""
    room = {"cpu": "32", "memory": "128Gi", "pods": "250"}
    ready = [{"type": "Ready", "status": "True"}]
    nodes = [
        {
            "metadata": {
                "name": f"bench-{number:05}",
                "labels": {
                    LABEL: "1", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                    "kubernetes.io/hostname": f"bench-{number:05}",
                    "topology.kubernetes.io/zone": f"z{number % _ZONES}",
                },
            },
            "status": {"allocatable": room, "capacity": room, "conditions": ready},
        }
        for number in range(count)
    ]  # fmt: skip
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda node: api.send("POST", NODES.path(), json.dumps(node).encode()), nodes))
        yield
    finally:
        delete_labelled(api, PODS)
        delete_labelled(api, NODES)


def _create(api: Api, rival: Rival, kind: str, numbers: Sequence[int], *, per_second: float = 0.0) -> dict[str, float]:
    """Create pods, immediately or at a rate; return the time of each request by `namespace/name`."""
    sent: dict[str, float] = {}
    began = time.monotonic()

    def create(number: int) -> None:
        if per_second:
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        requests = {"cpu": f"{100 * (1 + number % 4)}m", "memory": f"{128 * (1 + number % 4)}Mi"}
        container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": requests}}
        pod = {
            "metadata": {"name": f"{kind}-{number}", "labels": {LABEL: "1"}},
            "spec": {"schedulerName": rival.name, "containers": [container]},
        }
        sent[f"default/{kind}-{number}"] = time.monotonic()
        api.send("POST", PODS.path(namespace="default"), json.dumps(pod).encode())

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(create, numbers))
    return sent
