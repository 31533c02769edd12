"""Upgrade to the next version and back under load: both versions run on one database and one message store.

Real here: kube-apiserver, PostgreSQL, Redis and all processes. HETSCHED_TEST_UPGRADE_PODS is the number of pods per
second, with half as many submissions, and HETSCHED_TEST_UPGRADE_SECONDS is the duration of the load between two steps.
The steps are those of docs/how-to/operations.md#upgrade.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES
from tests.kube.control_plane import ControlPlane
from tests.kube.live import connected, listed, node_of
from tests.kube.next_version import copy_next_version
from tests.kube.scene import empty_cluster, make, make_pod
from tests.system.plane import BEAT, WORKER, Plane
from tests.system.processes import Process, accepts, free_port, python, wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"),
    pytest.mark.timeout(1200),
]
PODS_PER_SECOND = float(os.environ.get("HETSCHED_TEST_UPGRADE_PODS", "6"))
STEADY_SECONDS = float(os.environ.get("HETSCHED_TEST_UPGRADE_SECONDS", "2"))  # load before and after each step
PATIENCE_SECONDS = 180
# Longer than the longest permitted gap, so that a lease that ends by expiry instead of a release is noticed.
LEASE_SECONDS = 30
LONGEST_GAP_SECONDS = 20  # below the lease; the figure is printed, and the goal on an idle machine is 5 s
NODES_COUNT = 40
BATCH_CLUSTER = "batch"
_DECIDED = """
from hetsched.placement.models import Decision
rows = Decision.objects.filter(cluster__name="live").order_by("created_at")
for at in rows.values_list("created_at", flat=True):
    print(at.timestamp())
"""


class Version:
    """The processes of one version, on the environment of the control plane."""

    def __init__(self, ours: Plane, name: str, env: dict[str, str]) -> None:
        self.name = name
        self._ours = ours
        self._env = ours.env | env
        self.port = free_port()
        self.processes: dict[str, Process] = {}
        self.stop_seconds: dict[str, float] = {}

    def run(self, *words: str) -> None:
        """Run a program of this version to its end."""
        process = self._start("command", *words)
        wait_until(lambda: not process.running, what=process.said, seconds=PATIENCE_SECONDS)
        assert process.popen.returncode == 0, process.said()

    def start(self) -> None:
        """Start one process of each kind, and wait until the web process accepts connections."""
        self.port = free_port()
        words = ("-m", "hetsched.project.web_server", "--port", str(self.port))
        for kind, command in {"web": words, "worker": WORKER, "beat": BEAT, "watch": ("-m", "django", "watch")}.items():
            self.processes[kind] = self._start(kind, *command)
        wait_until(lambda: accepts(self.port), what=self._ours.log_tails, seconds=PATIENCE_SECONDS)

    def stop(self, kind: str) -> None:
        """End one process with SIGTERM; it must end by itself."""
        process = self.processes.pop(kind)
        process.popen.terminate()
        took = wait_until(lambda: not process.running, what=process.said, seconds=PATIENCE_SECONDS)
        self.stop_seconds[kind] = round(took, 1)

    def _start(self, kind: str, *words: str) -> Process:
        log = self._ours.folder / f"{self.name}-{kind}.log"
        process = Process(python(*words), env=self._env, log=log, cwd=self._ours.folder)
        self._ours.running.append(process)
        return process


class Service:
    """The addresses of the web processes that receive requests, like the endpoints of a Service."""

    def __init__(self) -> None:
        self.ports: list[int] = []

    def move_to(self, port: int) -> None:
        self.ports = [port]


class Load:
    """Pods on the API server and submissions over REST, at a steady rate until the load is stopped."""

    def __init__(self, api: Api, service: Service, token: str) -> None:
        self.pods: list[str] = []
        self.answers: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self._api, self._service, self._token = api, service, token
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._repeat, args=(self._create_pod, 1 / PODS_PER_SECOND)),
            threading.Thread(target=self._repeat, args=(self._submit, 2 / PODS_PER_SECOND)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _repeat(self, act: Callable[[int], None], seconds: float) -> None:
        due = time.monotonic()
        for number in itertools.count():
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return
            act(number)
            due += seconds

    def _create_pod(self, number: int) -> None:
        name = f"upgrade-{number:05}"
        make_pod(self._api, name, cpu="10m")
        self.pods.append(name)

    def _submit(self, number: int) -> None:
        container = {"name": "main", "image": "job:1", "resources": {"requests": {"cpu": "1m"}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"s-{number}", "namespace": "load"}}
        body = {"manifest": {**pod, "spec": {"containers": [container]}}, "cluster": BATCH_CLUSTER}
        headers = {
            "Authorization": f"Bearer {self._token}", "Content-Type": "application/json", "Host": "localhost",
            "Idempotency-Key": f"key-{number}",
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self._service.ports[number % len(self._service.ports)])
        try:
            connection.request("POST", "/api/v1/workloads/", json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            self.answers[str(response.status)] += 1
            if response.status == 202:
                self.accepted.add(answer["id"])
        except OSError as error:
            self.answers[type(error).__name__] += 1
        finally:
            connection.close()


def replace(before: Version, after: Version, service: Service) -> None:
    """Start the processes of `after` beside those of `before`, then stop those of `before` one by one."""
    after.start()
    service.ports = [before.port, after.port]
    time.sleep(STEADY_SECONDS)
    service.move_to(after.port)
    time.sleep(1)  # requests in flight, as in the time between an endpoint's removal and SIGTERM
    for kind in ("web", "watch", "worker", "beat"):
        before.stop(kind)
    time.sleep(STEADY_SECONDS)


@pytest.fixture
def ours(plane: ControlPlane) -> Iterator[Plane]:
    with connected(plane, HETSCHED_LEASE_SECONDS=str(LEASE_SECONDS), HETSCHED_SWEEP_SECONDS="1") as found:
        yield found


def test_upgrade_and_rollback_lose_nothing_under_load(
    plane: ControlPlane, ours: Plane, tmp_path: Path, figures: dict[str, object]
) -> None:
    api = empty_cluster(plane)
    room = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    for number in range(NODES_COUNT):
        status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
        make(api, NODES, f"node-{number:03}", status=status)
    assert ours.driver
    ours.driver("add_cluster", name=BATCH_CLUSTER, nodes=20, pods=1000)
    old = Version(ours, "old", {})
    new = Version(ours, "new", {"PYTHONPATH": str(copy_next_version(tmp_path / "next"))})
    service = Service()
    old.start()
    service.move_to(old.port)
    load = Load(api, service, ours.driver("token"))
    with load.running():
        wait_until(lambda: any(map(node_of, listed(api)[0])), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        began = time.time()
        time.sleep(STEADY_SECONDS)
        new.run("-m", "django", "prepare")
        time.sleep(STEADY_SECONDS)  # the old version alone on the migrated database
        replace(old, new, service)
        replace(new, old, service)
        ended = time.time()
    wait_until(lambda: all(map(node_of, listed(api)[0])), what=ours.log_tails, seconds=PATIENCE_SECONDS)
    assert len(listed(api)[0]) == len(load.pods)
    assert load.answers == {"202": len(load.accepted)}
    wait_until(
        lambda: ours.driver and ours.driver("placed_pods", workloads=sorted(load.accepted)) == [len(load.accepted), 0],
        what=ours.log_tails, seconds=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ours.driver("violations") == []
    at = [moment for moment in map(float, ours.driver("execute", code=_DECIDED).split()) if began <= moment <= ended]
    gap = max(after - before for before, after in itertools.pairwise([began, *at, ended]))
    figures["upgrade and rollback"] = (
        f"{len(load.pods)} pods, {len(load.accepted)} submissions in {ended - began:.0f} s: 0 refused, 0 lost, 0 bound "
        f"twice, longest gap between decisions {gap:.1f} s; seconds to stop {old.stop_seconds}, {new.stop_seconds}"
    )
    assert gap < LONGEST_GAP_SECONDS


def test_next_version_has_its_own_code_and_columns(tmp_path: Path) -> None:
    """The test above would prove nothing if both versions were the same code."""
    folder = copy_next_version(tmp_path / "next")
    code = (
        "import django, hetsched; django.setup(); from hetsched.placement.models import Pod;"
        "print(hetsched.__version__, Pod._meta.get_field('next_count').db_default)"
    )
    env = {**os.environ, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "hetsched.project.settings"}
    process = Process(python("-c", code), env=env, log=tmp_path / "log", cwd=tmp_path)
    wait_until(lambda: not process.running, what=process.said)
    assert "99.0.0 7" in process.said()
