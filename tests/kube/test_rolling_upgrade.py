"""Upgrade to the next version and back under load: both versions run on one database and one message store.

Real here: kube-apiserver, PostgreSQL, Redis and all processes. HETSCHED_TEST_UPGRADE_PODS and
HETSCHED_TEST_UPGRADE_SUBMISSIONS are the numbers per second (by default half as many submissions as pods), which
HETSCHED_TEST_UPGRADE_CLIENTS clients of each kind send in parallel. HETSCHED_TEST_UPGRADE_SECONDS is the duration of
the load between two steps. The steps are those of docs/how-to/operations.md#upgrade.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES
from hetsched.lab.bench.processes import cpu_of, used_seconds
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
SUBMISSIONS_PER_SECOND = float(os.environ.get("HETSCHED_TEST_UPGRADE_SUBMISSIONS", PODS_PER_SECOND / 2))
CLIENTS = int(os.environ.get("HETSCHED_TEST_UPGRADE_CLIENTS", "2"))
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
        self.starts = 0

    def run(self, *words: str) -> None:
        """Run a program of this version to its end."""
        process = self._start("command", *words)
        wait_until(lambda: not process.running, what=process.said, seconds=PATIENCE_SECONDS)
        assert process.popen.returncode == 0, process.said()

    def start(self) -> None:
        """Start one process of each kind, as in a new pod, and wait until all are ready."""
        self.port = free_port()
        self.starts += 1
        self._env = self._env | {"HETSCHED_DATA": str(self._ours.folder / f"{self.name}-{self.starts}")}
        words = ("-m", "hetsched.project.web_server", "--port", str(self.port))
        for kind, command in {"web": words, "worker": WORKER, "beat": BEAT, "watch": ("-m", "django", "watch")}.items():
            self.processes[kind] = self._start(kind, *command)
        wait_until(lambda: accepts(self.port), what=self._ours.log_tails, seconds=PATIENCE_SECONDS)
        self.run("-m", "hetsched.cli", "health", "watch", "--ready", f"--wait={PATIENCE_SECONDS}")

    def resident_mib(self, kind: str) -> float:
        status = Path(f"/proc/{self.processes[kind].popen.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the records of an event in the log of the watch process; `at` is the time in seconds."""
        lines = (self._ours.folder / f"{self.name}-watch.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if f'"{event}"' in line]
        return [{**record, "at": datetime.fromisoformat(record["timestamp"]).timestamp()} for record in found]

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
    """Pods on the API server and submissions over REST, at a steady rate until the load is stopped.

    Each client keeps its connections open, because a new connection for each request takes processor time that the
    measured processes lack.
    """

    def __init__(self, api: Api, service: Service, token: str) -> None:
        self.pods: list[str] = []
        self.answers: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self._api, self._service, self._token = api, service, token
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._connections: dict[tuple[int, int], http.client.HTTPConnection] = {}  # by client and port

    @property
    def sent(self) -> tuple[int, int]:
        """Numbers of created pods and of accepted submissions."""
        return len(self.pods), len(self.accepted)

    @contextmanager
    def running(self) -> Iterator[None]:
        acts = ((self._create_pod, PODS_PER_SECOND), (self._submit, SUBMISSIONS_PER_SECOND))
        threads = [
            threading.Thread(target=self._repeat, args=(act, client, rate))
            for act, rate in acts for client in range(CLIENTS)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            for connection in self._connections.values():
                connection.close()

    def _repeat(self, act: Callable[[int], None], client: int, rate: float) -> None:
        """Act as one of the clients, which together act `rate` times per second."""
        due = time.monotonic() + client / rate
        for number in itertools.count(client, CLIENTS):
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return
            act(number)
            due += CLIENTS / rate

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
        client, ports = number % CLIENTS, self._service.ports
        port = ports[number // CLIENTS % len(ports)]
        connection = self._connections.get((client, port))
        if connection is None:
            connection = self._connections[client, port] = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("POST", "/api/v1/workloads/", json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            self._note(str(response.status), answer.get("id", ""))
        except OSError as error:
            self._note(type(error).__name__)
            connection.close()  # the next request opens it again

    def _note(self, answer: str, accepted: str = "") -> None:
        with self._lock:
            self.answers[answer] += 1
            if answer == "202":
                self.accepted.add(accepted)


class Handover(NamedTuple):
    """Times of a handover, in seconds since the epoch, the seconds of each phase of the takeover after the lease was
    acquired, and the resident memory of the standby before it."""

    terminated: float
    released: float
    acquired: float
    phases: dict[str, float]
    standby_mib: float

    def describe(self, began: float, decided: Sequence[float]) -> str:
        first = next((at for at in decided if at > self.acquired), float("inf"))
        before = max((at for at in decided if at <= self.acquired), default=float("-inf"))
        at = {"released": self.released, "acquired": self.acquired, "first decision": first}
        steps = ", ".join(f"{name} {moment - self.terminated:.1f} s" for name, moment in at.items())
        return (
            f"SIGTERM {self.terminated - began:.0f} s after the start; after SIGTERM: {steps}; "
            f"{first - before:.1f} s between decisions; phases {self.phases}; standby {self.standby_mib:.0f} MiB"
        )


def replace(before: Version, after: Version, service: Service) -> Handover:
    """Start the processes of `after`, then stop the processes of `before` one by one."""
    after.start()
    service.ports = [before.port, after.port]
    time.sleep(STEADY_SECONDS)
    service.move_to(after.port)
    time.sleep(1)  # requests in flight, as in the time between an endpoint's removal and SIGTERM
    before.stop("web")
    standby_mib, terminated = after.resident_mib("watch"), time.time()
    for kind in ("watch", "worker", "beat"):
        before.stop(kind)
    time.sleep(STEADY_SECONDS)
    released, acquired = before.logged("informer lease released")[-1], after.logged("informer lease acquired")[-1]
    phases = after.logged("informer took over")[-1]["phases"]
    return Handover(terminated, released["at"], acquired["at"], phases, standby_mib)


def describe_cores(used: Mapping[str, float], seconds: float) -> str:
    """Return the processor time by program, in cores, of the test with its clients and of all that it started."""
    cores = {name: value / seconds for name, value in used.items()}
    parts = ", ".join(f"{name} {value:.2f}" for name, value in cores.items() if value >= 0.01)
    return f"{sum(cores.values()):.2f} of {os.cpu_count()}: {parts}"


@pytest.fixture
def ours(plane: ControlPlane) -> Iterator[Plane]:
    with connected(plane, HETSCHED_LEASE_SECONDS=str(LEASE_SECONDS)) as found:
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
        began, before = time.time(), load.sent
        used = cpu_of(os.getpid())
        time.sleep(STEADY_SECONDS)
        used = used_seconds(used, cpu_of(os.getpid()))
        figures["cores in use before the upgrade"] = describe_cores(used, time.time() - began)
        new.run("-m", "django", "prepare")
        time.sleep(STEADY_SECONDS)  # the old version alone on the migrated database
        handovers = [replace(old, new, service), replace(new, old, service)]
        ended = time.time()
        rates = [(sent - earlier) / (ended - began) for sent, earlier in zip(load.sent, before, strict=True)]
    wait_until(lambda: all(map(node_of, listed(api)[0])), what=ours.log_tails, seconds=PATIENCE_SECONDS)
    assert len(listed(api)[0]) == len(load.pods)
    assert load.answers == {"202": len(load.accepted)}
    wait_until(
        lambda: ours.driver and ours.driver("placed_pods", workloads=sorted(load.accepted)) == [len(load.accepted), 0],
        what=ours.log_tails, seconds=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ours.driver("violations") == []
    at = [moment for moment in map(float, ours.driver("execute", code=_DECIDED).split()) if began <= moment <= ended]
    gap, gap_began = max((after - before, before) for before, after in itertools.pairwise([began, *at, ended]))
    figures["upgrade and rollback"] = (
        f"{len(load.pods)} pods, {len(load.accepted)} submissions, of these {rates[0]:.1f} pods/s and {rates[1]:.1f} "
        f"submissions/s in {ended - began:.0f} s: 0 refused, 0 lost, 0 bound twice; longest gap between decisions "
        f"{gap:.1f} s, {gap_began - began:.0f} s after the start; "
        f"seconds to stop {old.stop_seconds}, {new.stop_seconds}"
    )
    for step, handover in zip(("upgrade", "rollback"), handovers, strict=True):
        figures[f"handover of the {step}"] = handover.describe(began, at)
    relists = [version.logged("the standby lists again") for version in (old, new)]
    assert relists == [[], []]
    assert gap < LONGEST_GAP_SECONDS


def test_next_version_has_its_own_code_and_columns(tmp_path: Path) -> None:
    """Both versions must differ, or the upgrade test is without effect."""
    folder = copy_next_version(tmp_path / "next")
    code = (
        "import django, hetsched; django.setup(); from hetsched.placement.models import Pod;"
        "print(hetsched.__version__, Pod._meta.get_field('next_count').db_default)"
    )
    env = {**os.environ, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "hetsched.project.settings"}
    process = Process(python("-c", code), env=env, log=tmp_path / "log", cwd=tmp_path)
    wait_until(lambda: not process.running, what=process.said)
    assert "99.0.0 7" in process.said()
